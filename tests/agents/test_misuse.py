"""Mistakes that users make: found early, and told so that they can be mended."""

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Key, ToolCall
from holdfast.errors import (
    InputDiffers,
    MisuseError,
    RunBlocked,
    RunFailed,
    RunNotFound,
    RunWaiting,
    ToolFailed,
    UnsupportedValue,
)
from holdfast.testing.store_suite import async_test


class Foreign:
    """No data."""


def yields(n: int) -> Iterator[int]:
    yield n


async def takes_foreign(thing: Foreign) -> str:
    return "x"


async def fine(n: int) -> str:
    return "x"


class Shop:
    def sell(self, n: int) -> str:
        return "sold"


def find_by_order(order: str, key: Key) -> holdfast.NotDone:
    return holdfast.NotDone()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: holdfast.tool(yields), "yields"),
        (lambda: holdfast.tool(takes_foreign), "a type that a model cannot give"),
        (lambda: holdfast.tool(Shop.sell), "method"),
        (lambda: holdfast.tool("read"), "not a function"),
        (lambda: holdfast.tool(verify=find_by_order)(fine), "verify of fine takes 'order'"),
        (lambda: holdfast.agent(tools=holdfast.tool(fine))(greet.function), "list of tools"),
        (lambda: holdfast.Holdfast("memory://", agents=greet), "list of agents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistake_is_told_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        make()


def test_bound_method_is_a_tool() -> None:
    tool = holdfast.tool(Shop().sell)
    assert tool.input_schema["required"] == ["n"]


@holdfast.agent
async def greet(run: holdfast.Run, name: str, times: int = 2) -> str:
    return " ".join([name] * times)


@async_test
async def test_wrong_input_does_not_use_up_the_id(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[greet]) as hf:
        with pytest.raises(UnsupportedValue, match="name of greet is not a str"):
            await hf.run(greet, 5, run_id="r")  # type: ignore[call-overload]
        with pytest.raises(RunNotFound):
            await hf.runs.get("r")
        assert await hf.run(greet, "ann", run_id="r") == "ann ann"
        assert await hf.run(greet, "ann", 2, run_id="r") == "ann ann"
        with pytest.raises(InputDiffers):
            await hf.run(greet, "ann", 3, run_id="r")
        for bad in (greet.function, "greet", holdfast.tool(fine)):
            with pytest.raises(MisuseError, match="is not an agent"):
                await hf.run(bad, "ann")  # type: ignore[call-overload]


@async_test
async def test_misspelled_name_of_an_input_is_told_as_such(store: str) -> None:
    @holdfast.agent
    async def one(run: holdfast.Run, name: str) -> str:
        return name

    async with holdfast.Holdfast(store, agents=[one]) as hf:
        await hf.runs.create("r", agent="one", input={"nme": "ann"})
        task = hf._work.start_pass(await hf.leases.take("r"))
        assert "agent one takes: name" in str((await task).error)
        assert (await hf.runs.result("r"))["traceback"] == ""


@async_test
async def test_state_of_another_type_is_refused_before_it_is_stored(store: str) -> None:
    @holdfast.agent
    async def sloppy(run: holdfast.Run) -> str:
        with pytest.raises(MisuseError, match="log 'l' is not a str"):
            run.log("l", str).append(5)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="value 'v' is not a int"):
            run.value("v", int, 0).set("five")  # type: ignore[arg-type]
        await run.checkpoint()
        return "ok"

    async with holdfast.Holdfast(store, agents=[sloppy]) as hf:
        assert await hf.run(sloppy, run_id="r") == "ok"
        assert (await hf.checkpoints.load("r")).get("l") is None


@async_test
async def test_value_that_was_never_set_and_has_no_default_says_so(store: str) -> None:
    @holdfast.agent
    async def reads(run: holdfast.Run) -> str:
        plan = run.value("plan", str)
        with pytest.raises(
            MisuseError, match=r"'plan' was never set; give run\.value\(\) a default"
        ):
            plan.get()
        plan.set("first the roof")
        return plan.get()

    async with holdfast.Holdfast(store, agents=[reads]) as hf:
        assert await hf.run(reads) == "first the roof"


@async_test
async def test_what_a_tool_raised_is_in_the_reason_and_in_the_log(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    def find(n: int) -> holdfast.NotDone:
        raise OSError("the bank is closed")

    @holdfast.tool(verify=find, verify_seconds=0)
    async def charge(n: int) -> str:
        raise ConnectionError("line dead")

    @holdfast.tool(effect="read")
    async def look() -> str:
        raise KeyError("nothing there")

    @holdfast.agent(tools=[charge, look])
    async def agent(run: holdfast.Run) -> str:
        with pytest.raises(ToolFailed, match="look raised KeyError") as failed:
            await run.call(look)
        assert isinstance(failed.value.__cause__, KeyError)
        with pytest.raises(MisuseError, match="is not a tool"):
            await run.call(len, "x")  # type: ignore[call-overload]
        return await run.call(charge, 1)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked) as blocked:
            await hf.run(agent)
        assert "charge raised ConnectionError: line dead" in str(blocked.value)
        assert "verify raised OSError: the bank is closed" in str(blocked.value)
    assert "line dead" in caplog.text


@async_test
async def test_object_that_a_reading_tool_returns_is_given_as_text(store: str) -> None:
    @holdfast.tool(effect="read")
    async def look() -> object:
        return {1, 2}

    @holdfast.agent(tools=[look])
    async def agent(run: holdfast.Run) -> str:
        (message,) = await run.tools([ToolCall("c", "look")])
        return message.results[0].content

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent) == "{1, 2}"


@async_test
async def test_recorded_result_of_another_type_is_a_failure_the_agent_can_handle(
    store: str,
) -> None:
    @holdfast.tool
    async def charge() -> dict[str, str]:
        raise ConnectionError("line dead")

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        with pytest.raises(ToolFailed, match="charge happened, but the result of charge is not"):
            await run.call(charge)
        return "went on"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(agent, run_id="r")
        (effect,) = await hf.effects.unsettled()
        await hf.effects.settle(effect.effect_id, "completed", result="receipt")
        assert await hf.run(agent, run_id="r") == "went on"


@async_test
async def test_session_is_closed_once_and_keeps_its_metadata(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[greet]) as hf:
        chat = hf.session(greet, "alpha", metadata={"pad": "a"})
        with pytest.raises(RunNotFound):
            await chat.close()
        with pytest.raises(UnsupportedValue):
            await chat.send(5)
        assert await chat.send("ann") == "ann ann"
        with pytest.raises(InputDiffers, match="metadata"):
            await hf.session(greet, "alpha", metadata={"pad": "b"}).send("bob")
        await chat.close()
        await chat.close()
        assert await chat.status() == "completed"


@async_test
async def test_message_cannot_have_the_id_that_ends_a_session(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[greet]) as hf:
        chat = hf.session(greet, "alpha")
        with pytest.raises(MisuseError, match=r"'holdfast\.close' is what ends a session"):
            await chat.send("ann", id="holdfast.close")
        with pytest.raises(RunNotFound):
            await chat.status()
        assert await chat.send("ann") == "ann ann"


@async_test
async def test_step_that_is_refused_is_not_on_record(store: str) -> None:
    async def untyped():  # type: ignore[no-untyped-def]
        return holdfast.Message.user("x")

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return (await run.step(untyped)).text

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunFailed, match="say in its signature"):
            await hf.run(agent, run_id="r")
        kinds = [entry.kind for entry in await hf.journal.read("r")]
        assert "STEP_RECORDED" not in kinds


def test_unknown_option_of_an_agent_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"agent\(\) has no option 'tool'; did you mean 'tools'\?"):
        holdfast.agent(tool=[])  # type: ignore[call-overload]


@async_test
async def test_failure_that_is_stored_says_so(store: str) -> None:
    @holdfast.agent
    async def breaks(run: holdfast.Run) -> None:
        raise ValueError("no luck")

    async with holdfast.Holdfast(store, agents=[breaks]) as hf:
        with pytest.raises(RunFailed, match=r"r has failed: ValueError: no luck$"):
            await hf.run(breaks, run_id="r")
        said = "no luck; this is its stored end. `holdfast runs fork r`, or another run id"
        with pytest.raises(RunFailed, match=said):
            await hf.run(breaks, run_id="r")


@async_test
async def test_run_that_is_put_off_says_until_when(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[greet]) as hf:
        await hf.runs.create("r", agent="greet", input={"name": "a"})
        held = await hf.leases.take("r")
        await held.release(delay_seconds=3600)
        with pytest.raises(RunWaiting, match=r"r is put off until 20\d\d-.* UTC; call again"):
            await hf.run(greet, "a", run_id="r", timeout=0.01)
