"""What LangGraph asks of a saver and its kit does not test."""

import asyncio
import copy
import os
import threading
from typing import Any

import pytest
from langgraph.checkpoint.base import ERROR, INTERRUPT, RESUME, BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.testing.store_suite import async_test
from tests.integrations.langgraph.making import (
    checkpoint,
    config,
    get,
    id_of,
    ids_of,
    listed,
    put,
    put_chain,
)
from tests.integrations.langgraph.savers import Saver, face_of, opened

ODD_IDS = [
    "Äpfel ☃ 🦀",
    "z" * 255,
    "a/b/../c",
    "'; DROP TABLE runs; --",
    "with space\tand\nlines",
    "%_%",
    "-",
    "0",
    "null",
]
NESTED = "|".join(f"node{n}:01234567-89ab-cdef-0123-456789abcdef" for n in range(40))
ODD_SPACES = ["sub:1", "Äpfel|☃:🦀", "a'b\"c", NESTED, "%", "sub:"]
EMPTY: dict[str, Any] = {
    "none": None,
    "text": "",
    "bytes": b"",
    "list": [],
    "dict": {},
    "zero": 0,
    "false": False,
    "set": set(),
}


@async_test
async def test_writes_may_come_before_their_checkpoint(saver: Saver) -> None:
    made = checkpoint({"n": 1})
    await saver.aput_writes(config(id=made["id"]), [("n", 2), ("m", 3)], "task", "~p")
    assert await saver.aget_tuple(config()) is None
    assert await listed(saver, config()) == []
    await saver.aput(config(), made, {"source": "loop", "step": 0}, made["channel_versions"])
    found = await get(saver, config())
    assert found.checkpoint["channel_values"] == {"n": 1}
    assert found.pending_writes == [("task", "n", 2), ("task", "m", 3)]


@async_test
async def test_writes_of_a_checkpoint_that_never_came_do_not_show_elsewhere(saver: Saver) -> None:
    root = await put(saver, {"n": 0})
    await saver.aput_writes(config(id="never"), [("n", "lost")], "task")
    after = await put(saver, {"n": 1}, after=root)
    assert [found.pending_writes for found in await listed(saver, config())] == [[], []]
    assert id_of(await get(saver, config())) == id_of(after)


@async_test
async def test_pending_writes_are_ordered_by_path_task_and_place(saver: Saver) -> None:
    root = await put(saver, {})
    await saver.aput_writes(root, [("x", "c")], "a-task", "~2")
    await saver.aput_writes(root, [("x", "b0"), ("y", "b1")], "z-task", "~1")
    await saver.aput_writes(root, [("x", "a")], "m-task", "")
    await saver.aput_writes(root, [("x", "b2")], "zz-task", "~1")
    expected = ["a", "b0", "b1", "b2", "c"]
    assert [value for _, _, value in (await get(saver, root)).pending_writes or ()] == expected
    (found,) = await listed(saver, config())
    assert [value for _, _, value in found.pending_writes or ()] == expected


@async_test
async def test_many_writes_of_one_task_keep_their_order(saver: Saver) -> None:
    root = await put(saver, {})
    await saver.aput_writes(root, [("x", n) for n in range(30)], "task")
    found = await get(saver, root)
    assert [value for _, _, value in found.pending_writes or ()] == [*range(30)]


@async_test
async def test_the_first_write_of_a_task_wins(saver: Saver) -> None:
    root = await put(saver, {})
    await saver.aput_writes(root, [("x", "first")], "task")
    await saver.aput_writes(root, [("x", "second"), ("y", "new")], "task")
    found = await get(saver, root)
    assert found.pending_writes == [("task", "x", "first"), ("task", "y", "new")]


@pytest.mark.parametrize("channel", [ERROR, INTERRUPT, RESUME])
@async_test
async def test_the_last_write_to_a_special_channel_wins(saver: Saver, channel: str) -> None:
    root = await put(saver, {})
    for value in ("first", "second", "third"):
        await saver.aput_writes(root, [(channel, value)], "task")
    assert (await get(saver, root)).pending_writes == [("task", channel, "third")]


@async_test
async def test_special_and_plain_writes_of_a_task_do_not_replace_each_other(saver: Saver) -> None:
    root = await put(saver, {})
    await saver.aput_writes(root, [("x", 1)], "task")
    await saver.aput_writes(root, [(INTERRUPT, "why")], "task")
    await saver.aput_writes(root, [(RESUME, ["yes"])], "task")
    await saver.aput_writes(root, [(INTERRUPT, "other")], "task 2")
    assert sorted((await get(saver, root)).pending_writes or (), key=str) == [
        ("task 2", INTERRUPT, "other"),
        ("task", INTERRUPT, "why"),
        ("task", RESUME, ["yes"]),
        ("task", "x", 1),
    ]


@async_test
async def test_putting_a_checkpoint_again_changes_nothing(saver: Saver) -> None:
    root = await put(saver, {"n": 0})
    made = checkpoint({"n": 1})
    for _ in range(2):
        where = await saver.aput(
            config(id=id_of(root)), made, {"source": "loop", "step": 1}, made["channel_versions"]
        )
        assert id_of(where) == made["id"]
    found = await listed(saver, config())
    assert ids_of(found) == [made["id"], id_of(root)]
    assert found[0].checkpoint["channel_values"] == {"n": 1}


@async_test
async def test_ids_need_not_be_uuids(saver: Saver) -> None:
    last = None
    for name in ("1ef", "not a uuid", "Äpfel", "z" * 100):
        last = await put(saver, {"name": name}, after=last, id=name)
        assert (await get(saver, config(id=name))).checkpoint["channel_values"] == {"name": name}
    assert len(await listed(saver, config())) == 4
    assert id_of(await get(saver, config())) == "z" * 100


@async_test
async def test_the_latest_is_the_one_put_last_whatever_the_clocks_say(
    saver: Saver, store: str, face: str
) -> None:
    """Ids are time by the clock of whoever made them; LangGraph's savers take the largest."""
    ahead = await put(saver, {"n": 1}, id="1f0ffff0-0000-6000-8000-000000000000")
    with opened(store) as other:
        behind = await put(
            face_of(other, face),
            {"n": 2},
            after=ahead,
            id="1f000000-0000-6000-8000-000000000000",
        )
    assert id_of(await get(saver, config())) == id_of(behind)
    assert ids_of(await listed(saver, config())) == ids_of([behind, ahead])
    assert ids_of(await listed(saver, config(), before=behind)) == ids_of([ahead])
    assert await listed(saver, config(), before=ahead) == []


@pytest.mark.parametrize("thread", ODD_IDS, ids=lambda name: ascii(name)[:12])
@async_test
async def test_threads_may_have_odd_names(saver: Saver, thread: str) -> None:
    stays = await put(saver, {"n": 0}, thread="t")
    root = await put(saver, {"n": 1}, thread=thread)
    await saver.aput_writes(root, [("x", 1)], "task")
    found = await get(saver, config(thread))
    assert found.config == root
    assert found.pending_writes == [("task", "x", 1)]
    assert ids_of(await listed(saver, config(thread))) == ids_of([root])
    await saver.adelete_thread(thread)
    assert await saver.aget_tuple(config(thread)) is None
    assert ids_of(await listed(saver, None)) == ids_of([stays])


@async_test
async def test_a_thread_may_be_named_by_a_number(saver: Saver) -> None:
    root = await put(saver, {"n": 1}, thread=7)  # type: ignore[arg-type]
    assert id_of(await get(saver, config(7))) == id_of(root)  # type: ignore[arg-type]


@async_test
async def test_namespaces_may_have_odd_names(saver: Saver) -> None:
    roots = [await put(saver, {"n": n}, ns=ns) for n, ns in enumerate(["", *ODD_SPACES])]
    for n, ns in enumerate(["", *ODD_SPACES]):
        found = await get(saver, config(ns=ns))
        assert found.config["configurable"]["checkpoint_ns"] == ns
        assert found.checkpoint["channel_values"] == {"n": n}
        assert ids_of(await listed(saver, config(ns=ns))) == [id_of(roots[n])]
    everywhere = await listed(saver, {"configurable": {"thread_id": "t"}})
    assert sorted(ids_of(everywhere)) == sorted(ids_of(roots))


@async_test
async def test_a_value_of_five_megabytes_comes_back_whole(saver: Saver) -> None:
    large = os.urandom(5_000_000)
    root = await put(saver, {"bytes": large, "text": "ä" * 1_000_000})
    await saver.aput_writes(root, [("bytes", large)], "task")
    found = await get(saver, config())
    assert found.checkpoint["channel_values"] == {"bytes": large, "text": "ä" * 1_000_000}
    assert found.pending_writes == [("task", "bytes", large)]


@async_test
async def test_empty_values_come_back_as_what_they_are(saver: Saver) -> None:
    root = await put(saver, EMPTY)
    await saver.aput_writes(root, [*EMPTY.items()], "task")
    found = await get(saver, config())
    values = found.checkpoint["channel_values"]
    assert {name: (type(value), value) for name, value in values.items()} == {
        name: (type(value), value) for name, value in EMPTY.items()
    }
    writes = [(name, type(value), value) for _, name, value in found.pending_writes or ()]
    assert writes == [(name, type(value), value) for name, value in EMPTY.items()]


@async_test
async def test_five_hundred_channels_and_only_what_changed(saver: Saver) -> None:
    values: dict[str, Any] = {f"channel {n}": {"n": n} for n in range(500)}
    made = checkpoint(values)
    root = await saver.aput(config(), made, {"source": "loop"}, made["channel_versions"])
    changed = {"channel 7": "new", "channel 500": "added"}
    after = checkpoint({**values, **changed})
    versions = {**made["channel_versions"]}
    versions.update(dict.fromkeys(changed, f"{2:032}.1"))
    after["channel_versions"] = versions
    await saver.aput(root, after, {"source": "loop"}, {name: versions[name] for name in changed})
    found = await listed(saver, config())
    assert found[0].checkpoint["channel_values"] == {**values, **changed}
    assert found[1].checkpoint["channel_values"] == values


@async_test
async def test_a_channel_that_is_gone_is_not_in_later_checkpoints(saver: Saver) -> None:
    made = checkpoint({"kept": 1, "gone": 2})
    root = await saver.aput(config(), made, {"source": "loop"}, made["channel_versions"])
    versions = {**made["channel_versions"], "gone": f"{2:032}.1"}
    after = checkpoint({"kept": 1})
    after["channel_versions"] = versions
    await saver.aput(root, after, {"source": "loop"}, {"gone": versions["gone"]})
    found = await listed(saver, config())
    assert found[0].checkpoint["channel_values"] == {"kept": 1}
    assert found[1].checkpoint["channel_values"] == {"kept": 1, "gone": 2}


@async_test
async def test_what_is_changed_after_it_was_put_is_not_changed_in_the_store(saver: Saver) -> None:
    value = {"items": [1]}
    made = checkpoint({"x": value})
    await saver.aput(config(), made, {"source": "loop"}, made["channel_versions"])
    value["items"].append(2)
    found = await get(saver, config())
    assert found.checkpoint["channel_values"] == {"x": {"items": [1]}}
    found.checkpoint["channel_values"]["x"]["items"].append(3)
    again = await get(saver, config())
    assert again.checkpoint["channel_values"] == {"x": {"items": [1]}}


@async_test
async def test_before_and_limit_together(saver: Saver) -> None:
    chain = await put_chain(saver, 6)
    found = await listed(saver, config(), before=chain[4], limit=2)
    assert ids_of(found) == ids_of([chain[3], chain[2]])
    assert await listed(saver, config(), limit=0) == []
    assert ids_of(await listed(saver, config(), limit=100)) == ids_of(chain[::-1])
    assert await listed(saver, config(), before=chain[0]) == []


@async_test
async def test_listing_one_id_gives_that_checkpoint(saver: Saver) -> None:
    chain = await put_chain(saver, 3)
    assert ids_of(await listed(saver, chain[1])) == ids_of([chain[1]])
    assert await listed(saver, config(id="nobody")) == []


@async_test
async def test_listing_without_a_thread_gives_those_of_all_threads(saver: Saver) -> None:
    chains = [await put_chain(saver, 2, thread=f"t{n}") for n in range(3)]
    chains.append(await put_chain(saver, 2, thread="t0", ns="sub:1"))
    found = await listed(saver, None)
    assert sorted(ids_of(found)) == sorted(id_of(each) for chain in chains for each in chain)
    assert len(await listed(saver, None, limit=5)) == 5
    firsts = await listed(saver, None, filter={"step": 0})
    assert sorted(ids_of(firsts)) == sorted(id_of(chain[0]) for chain in chains)


@async_test
async def test_what_a_listing_says_of_a_checkpoint_is_what_getting_it_says(saver: Saver) -> None:
    chain = await put_chain(saver, 3)
    await saver.aput_writes(chain[1], [("x", 1)], "task", "~p")
    found = await listed(saver, config())
    assert [*reversed(found)] == [await get(saver, each) for each in chain]


@async_test
async def test_metadata_is_what_langgraphs_saver_keeps(saver: Saver) -> None:
    """Scalars of the config are metadata too, private ones are not, and NUL is left out."""
    metadata: Any = {"source": "input", "step": -1, "parents": {"": "x"}, "nul": "a\x00b"}
    where: Any = config()
    where["configurable"].update({"tenant": "a\x00b", "__private": 1, "object": [1], "is": True})
    where["metadata"] = {"user": "me", "langgraph_step": 3, "half": 0.5, "deep": {"no": 1}}
    memory = InMemorySaver()
    made = checkpoint({"x": 1})
    for each in (memory, saver):
        await each.aput(where, made, metadata, made["channel_versions"])
    expected = await memory.aget_tuple(config())
    assert expected is not None
    assert (await get(saver, config())).metadata == expected.metadata


@async_test
async def test_a_config_needs_no_namespace(saver: Saver) -> None:
    root = await put(saver, {"n": 1})
    assert (await get(saver, {"configurable": {"thread_id": "t"}})).config == root
    await saver.aput_writes(
        {"configurable": {"thread_id": "t", "checkpoint_id": id_of(root)}}, [("x", 1)], "task"
    )
    assert (await get(saver, root)).pending_writes == [("task", "x", 1)]


def test_versions_grow(store: str) -> None:
    with opened(store) as saver:
        versions = [saver.get_next_version(None, None)]
        for _ in range(20):
            versions.append(saver.get_next_version(versions[-1], None))
        assert versions == sorted(set(versions))
        theirs = InMemorySaver().get_next_version(None, None)
        assert saver.get_next_version(theirs, None) > theirs


@async_test
async def test_branches_may_use_the_same_versions_for_different_values(saver: Saver) -> None:
    """Two who go on from one checkpoint count alike; LangGraph's savers need random versions."""
    root = await put(saver, {"n": 0})
    for value in ("left", "right"):
        made = checkpoint({"n": value}, id=value)
        made["channel_versions"] = {"n": 2}
        await saver.aput(root, made, {"source": "fork"}, {"n": 2})
    for value in ("left", "right"):
        found = await get(saver, config(id=value))
        assert found.checkpoint["channel_values"] == {"n": value}


def test_a_copy_of_a_saver_shares_its_store(store: str) -> None:
    with opened(store) as saver:
        early = copy.copy(saver)
        made = checkpoint({"n": 1})
        early.put(config(), made, {"source": "loop"}, made["channel_versions"])
        late = copy.copy(saver)
        for each in (saver, early, late):
            found = each.get_tuple(config())
            assert found is not None
            assert found.checkpoint["channel_values"] == {"n": 1}


def test_a_saver_with_more_types_allowed_shares_its_store(store: str) -> None:
    with opened(store) as saver:
        clone = saver.with_allowlist([("tests.integrations.langgraph.test_saver", "Nobody")])
        assert isinstance(clone, BaseCheckpointSaver)
        made = checkpoint({"n": 1})
        clone.put(config(), made, {"source": "loop"}, made["channel_versions"])
        assert saver.get_tuple(config()) is not None


def test_one_saver_serves_several_event_loops(store: str) -> None:
    """Each `asyncio.run` is a loop of its own; LangGraph's async savers belong to one."""
    with opened(store) as saver:
        for n in range(3):
            asyncio.run(put(saver, {"n": n}, thread=f"t{n}"))
        assert len(asyncio.run(listed(saver, None))) == 3


def test_one_saver_serves_event_loops_of_several_threads(store: str) -> None:
    with opened(store) as saver:
        together = threading.Barrier(4)

        def work(name: str) -> None:
            together.wait()
            asyncio.run(put_chain(saver, 5, thread=name))

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([*saver.list(None)]) == 20


@async_test
async def test_sync_methods_work_inside_an_event_loop(store: str) -> None:
    with opened(store) as saver:
        made = checkpoint({"n": 1})
        saver.put(config(), made, {"source": "loop"}, made["channel_versions"])
        assert id_of(await get(saver, config())) == made["id"]
        assert ids_of([*saver.list(config())]) == [made["id"]]


@async_test
async def test_many_threads_at_once_lose_nothing(saver: Saver) -> None:
    async def fill(thread: str) -> list[str]:
        chain = ids_of(await put_chain(saver, 20, thread=thread))
        last = config(thread, id=chain[-1])
        await asyncio.gather(*(saver.aput_writes(last, [("x", n)], f"task {n}") for n in range(3)))
        return chain

    names = [f"t{n}" for n in range(50)]
    chains = await asyncio.gather(*map(fill, names))
    for name, chain in zip(names, chains, strict=True):
        found = await listed(saver, config(name))
        assert ids_of(found) == chain[::-1]
        assert [each.checkpoint["channel_values"]["n"] for each in found] == [*range(20)][::-1]
        assert len(found[0].pending_writes or ()) == 3


@async_test
async def test_writes_of_one_checkpoint_at_once_lose_nothing(saver: Saver) -> None:
    root = await put(saver, {})
    await asyncio.gather(
        *(saver.aput_writes(root, [("x", n), ("y", n)], f"{n:03}") for n in range(60))
    )
    found = (await get(saver, root)).pending_writes or ()
    assert [*found] == [(f"{n:03}", name, n) for n in range(60) for name in "xy"]


@async_test
async def test_nothing_is_only_in_memory(saver: Saver, store: str, face: str) -> None:
    chain = await put_chain(saver, 3)
    await saver.aput_writes(chain[-1], [("x", 1)], "task")
    with opened(store) as other:
        assert await listed(face_of(other, face), None) == await listed(saver, None)


@async_test
async def test_branch_keeps_channels_without_a_new_version_as_they_were_stored(
    saver: Saver,
) -> None:
    """LangGraph changes the set of a join in place, while the branch's first checkpoint is put."""
    for each in (InMemorySaver(), saver):
        joined: set[str] = set()
        first = await put(each, {"joined": joined, "n": 1})
        last = await put(each, {"joined": {"a", "b"}, "n": 2}, after=first)
        earlier = (await get(each, config(id=id_of(first)))).checkpoint
        made = checkpoint({"n": 3})
        made["channel_values"]["joined"] = {"a", "b"}
        made["channel_versions"]["joined"] = earlier["channel_versions"]["joined"]
        told: Any = {"source": "input", "step": 1}
        new = {"n": made["channel_versions"]["n"]}
        branch = await each.aput(first, made, told, new)
        found = (await get(each, branch)).checkpoint["channel_values"]
        assert found == {"joined": set(), "n": 3}
        assert (await get(each, last)).checkpoint["channel_values"]["joined"] == {"a", "b"}
