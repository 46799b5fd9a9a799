"""What a delta channel is rebuilt from: a seed, and the writes on the way from it, in order."""

from collections import Counter
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from holdfast.testing.store_suite import async_test
from tests.integrations.langgraph.making import config, id_of, put
from tests.integrations.langgraph.savers import Saver, opened
from tests.integrations.langgraph.zoo import make_deltas


async def write(
    saver: Saver, where: RunnableConfig, *items: Any, channel: str = "d", task: str = "k", path=""
) -> None:
    await saver.aput_writes(where, [(channel, item) for item in items], task, path)


async def history(saver: Saver, where: RunnableConfig, *channels: str) -> Any:
    return await saver.aget_delta_channel_history(config=where, channels=list(channels or ("d",)))


def values(entry: Any) -> list[Any]:
    return [value for _, _, value in entry["writes"]]


@async_test
async def test_a_root_has_neither_seed_nor_writes(saver: Saver) -> None:
    root = await put(saver, {})
    assert await history(saver, root) == {"d": {"writes": []}}


@async_test
async def test_the_seed_is_the_value_of_the_nearest_ancestor_that_has_one(saver: Saver) -> None:
    first = await put(saver, {"d": ["old"]})
    second = await put(saver, {"d": ["new"]}, after=first)
    third = await put(saver, {"other": 1}, after=second)
    last = await put(saver, {"other": 2}, after=third)
    await write(saver, first, "subsumed")
    await write(saver, second, "a")
    await write(saver, third, "b")
    found = await history(saver, last)
    assert found["d"]["seed"] == ["new"]
    assert values(found["d"]) == ["a", "b"]


@async_test
async def test_a_value_of_the_target_itself_is_not_its_seed(saver: Saver) -> None:
    first = await put(saver, {"d": ["old"]})
    last = await put(saver, {"d": ["own"]}, after=first)
    assert (await history(saver, last))["d"]["seed"] == ["old"]


@async_test
async def test_without_a_value_on_the_way_all_writes_from_the_root_come(saver: Saver) -> None:
    chain = [await put(saver, {})]
    for n in range(5):
        await write(saver, chain[-1], n)
        chain.append(await put(saver, {}, after=chain[-1]))
    found = await history(saver, chain[-1])
    assert "seed" not in found["d"]
    assert values(found["d"]) == [0, 1, 2, 3, 4]


@async_test
async def test_writes_of_the_target_are_left_out(saver: Saver) -> None:
    root = await put(saver, {})
    last = await put(saver, {}, after=root)
    await write(saver, root, "taken")
    await write(saver, last, "pending")
    assert values((await history(saver, last))["d"]) == ["taken"]


@async_test
async def test_only_writes_on_the_path_of_a_fork_come(saver: Saver) -> None:
    root = await put(saver, {})
    left = await put(saver, {}, after=root)
    right = await put(saver, {}, after=root, source="fork")
    await write(saver, root, "root")
    await write(saver, left, "left")
    await write(saver, right, "right")
    left_end = await put(saver, {}, after=left)
    right_end = await put(saver, {}, after=right)
    assert values((await history(saver, left_end))["d"]) == ["root", "left"]
    assert values((await history(saver, right_end))["d"]) == ["root", "right"]


@async_test
async def test_writes_of_a_step_come_by_path_task_and_place(saver: Saver) -> None:
    root = await put(saver, {})
    await write(saver, root, "b0", "b1", task="b", path="~1")
    await write(saver, root, "z0", task="z", path="")
    await write(saver, root, "a0", task="a", path="~2")
    await write(saver, root, "c0", "c1", task="c", path="~1")
    last = await put(saver, {}, after=root)
    assert values((await history(saver, last))["d"]) == ["z0", "b0", "b1", "c0", "c1", "a0"]


@async_test
async def test_each_channel_has_its_own_seed_and_writes(saver: Saver) -> None:
    first = await put(saver, {"d": "seed of d"})
    second = await put(saver, {"e": "seed of e"}, after=first)
    last = await put(saver, {}, after=second)
    await write(saver, first, 1, channel="d")
    await write(saver, first, "before e's seed", channel="e", task="k2")
    await write(saver, second, 2, channel="d")
    await write(saver, second, 3, channel="e", task="k2")
    found = await history(saver, last, "d", "e", "never")
    assert (found["d"]["seed"], values(found["d"])) == ("seed of d", [1, 2])
    assert (found["e"]["seed"], values(found["e"])) == ("seed of e", [3])
    assert found["never"] == {"writes": []}


@async_test
async def test_no_channels_give_an_empty_answer(saver: Saver) -> None:
    root = await put(saver, {"d": 1})
    assert await saver.aget_delta_channel_history(config=root, channels=[]) == {}


@async_test
async def test_a_thread_that_is_not_there_has_no_history(saver: Saver) -> None:
    assert await history(saver, config("nobody")) == {"d": {"writes": []}}


@async_test
async def test_without_an_id_it_is_the_history_of_the_latest(saver: Saver) -> None:
    root = await put(saver, {})
    await write(saver, root, "a")
    await put(saver, {}, after=root)
    assert values((await history(saver, config()))["d"]) == ["a"]


@async_test
async def test_namespaces_do_not_see_each_other(saver: Saver) -> None:
    outer = await put(saver, {"d": "outer"})
    inner = await put(saver, {}, ns="sub:1")
    await write(saver, outer, "outer")
    await write(saver, inner, "inner")
    last = await put(saver, {}, after=inner, ns="sub:1")
    found = await history(saver, last)
    assert "seed" not in found["d"]
    assert values(found["d"]) == ["inner"]


@async_test
async def test_a_copy_has_the_same_history(saver: Saver) -> None:
    last = await a_thread(saver)
    expected = await history(saver, last)
    await saver.acopy_thread("t", "copy")
    assert await history(saver, config("copy", id=id_of(last))) == expected
    await saver.adelete_thread("t")
    assert await history(saver, config("copy")) == expected


@async_test
async def test_pruning_keeps_what_the_latest_is_rebuilt_from(saver: Saver) -> None:
    last = await a_thread(saver)
    expected = await history(saver, last)
    await saver.aprune(["t"], strategy="keep_latest")
    assert await history(saver, last) == expected
    assert values(expected["d"]) == ["a", "b", "c"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
@async_test
async def test_graphs_with_delta_channels_can_be_pruned_at_any_time(
    store: str, durability: str
) -> None:
    """Each thread is longer by one step than the one before it, of whatever kind that is."""
    with opened(store) as saver:
        graph = make_deltas(saver, Counter())
        for many in range(1, 12):
            where: Any = {"configurable": {"thread_id": f"t{many}"}}
            for n in range(many):
                await one_step(graph, where, n, durability)
            before = await graph.aget_state(where)
            await saver.aprune([f"t{many}"], strategy="keep_latest")
            after = await graph.aget_state(where)
            assert after.values == before.values, many
            assert after.next == before.next
            await graph.ainvoke({"items": ["on"]}, where, durability=durability)
            on = await graph.aget_state(where)
            assert on.values["items"][: len(before.values["items"])] == before.values["items"]
            assert len(on.values["items"]) == len(before.values["items"]) + 4


async def one_step(graph: Any, where: Any, n: int, durability: str) -> None:
    if n % 4 == 2:
        await graph.aupdate_state(where, {"items": [f"by hand {n}"]}, as_node="z")
    elif n % 4 == 3:
        await graph.aupdate_state(where, {"n": n}, as_node="z")
    else:
        await graph.ainvoke({"items": [f"turn {n}"]}, where, durability=durability)


async def a_thread(saver: Saver) -> RunnableConfig:
    """A seed, and three steps that wrote to a delta channel since, which they count."""
    last = await put(saver, {"d": ["seed"]})
    for n, item in enumerate("abc", 1):
        await write(saver, last, item)
        counted = {"counters_since_delta_snapshot": {"d": [n, n]}}
        last = await put(saver, {"n": item}, after=last, **counted)
    return last
