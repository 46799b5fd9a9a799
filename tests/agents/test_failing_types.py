"""Types of an agent whose own code raises: the agent fails, as if its body had raised."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast
from holdfast import BlockedReason, RecoveryPolicy, RunStatus
from holdfast.agents.work import executor
from holdfast.errors import PeerFailed, RunBlocked, RunFailed, UnsupportedValue
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, kinds, start
from tests.agents.test_exits import QUICK, SOON, blocked


@dataclass
class HalfMade:
    total: int = field(init=False)


class Undumpable:
    """Looks like a Pydantic model, and cannot be stored."""

    __pydantic_validator__ = None

    def model_dump(self) -> dict[str, Any]:
        raise KeyError("total")


class Strict:
    """Looks like a Pydantic model of which a validator raises what is no ValueError."""

    @classmethod
    def model_validate(cls, value: object) -> "Strict":
        raise KeyError("no such currency")


class Cancelling:
    """Looks like a Pydantic model that raises what only a task should."""

    __pydantic_validator__ = None

    def model_dump(self) -> dict[str, Any]:
        raise asyncio.CancelledError


MADE = {"half": HalfMade, "undumpable": Undumpable}


@holdfast.agent
async def maker(run: holdfast.Run, what: str) -> Any:
    return MADE[what]()


@holdfast.agent
async def strict(run: holdfast.Run, given: Strict) -> str:
    return "never"


@pytest.mark.parametrize("what", list(MADE))
@async_test
async def test_result_that_cannot_be_encoded_fails_the_run(store: str, what: str) -> None:
    async with holdfast.Holdfast(store, agents=[maker]) as hf:
        async with asyncio.timeout(20):
            with pytest.raises(RunFailed, match="total"):
                await hf.run(maker, what, run_id="r")
        assert (await kinds(hf, "r"))[-1] == "RUN_FAILED"


@async_test
async def test_retry_policy_counts_a_result_that_cannot_be_encoded(store: str) -> None:
    entered = 0

    @holdfast.agent(recovery=RecoveryPolicy(backoff_seconds=0.01, errors=(KeyError,)))
    async def stubborn(run: holdfast.Run) -> Any:
        nonlocal entered
        entered += 1
        return Undumpable()

    async with holdfast.Holdfast(store, agents=[stubborn]) as hf:
        async with asyncio.timeout(20):
            with pytest.raises(RunBlocked, match="3 tries failed"):
                await hf.run(stubborn, run_id="r")
        assert entered == 3


@async_test
async def test_result_whose_type_raises_a_cancellation_is_tried_again_and_then_blocked(
    store: str,
) -> None:
    entered = 0

    @holdfast.agent(recovery=QUICK)
    async def stubborn(run: holdfast.Run) -> Any:
        nonlocal entered
        entered += 1
        return Cancelling()

    async with holdfast.Holdfast(store, agents=[stubborn]) as hf:
        async with asyncio.timeout(20):
            with pytest.raises(RunBlocked, match="3 tries failed"):
                await hf.run(stubborn, run_id="r")
        assert entered == 3


@pytest.mark.parametrize("called", ["maker", "strict"])
@async_test
async def test_caller_of_a_peer_whose_types_raise_is_told(store: str, called: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        with pytest.raises(PeerFailed):
            await run.peer(called, "half")
        return "told"

    async with holdfast.Holdfast(store, agents=[caller, maker, strict]) as hf:
        async with asyncio.timeout(20):
            assert await hf.run(caller) == "told"


@async_test
async def test_validator_that_raises_counts_as_a_failure_of_its_agent(store: str) -> None:
    @holdfast.agent(recovery=QUICK, name="patient")
    async def patient(run: holdfast.Run, given: Strict) -> str:
        return "never"

    given: Any = 1
    async with holdfast.Holdfast(store, agents=[patient], settings=SOON) as hf:
        with pytest.raises(UnsupportedValue, match="no such currency"):
            await hf.start(patient, given)
        await hf.runs.create("r", agent="patient", input={"given": 1})
        working = asyncio.create_task((worker := hf.new_worker()).run())
        async with asyncio.timeout(20):
            run = await blocked(hf, "r")
        worker.stop()
        await working
        assert run.blocked_reason == BlockedReason.BREAKER
        assert (await kinds(hf, "r")).count("RUN_LEASED") == 3


@async_test
async def test_message_of_which_the_answer_cannot_be_encoded_fails_alone(store: str) -> None:
    @holdfast.agent
    async def talker(run: holdfast.Run, message: str) -> Any:
        return MADE[message]() if message in MADE else message

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        chat = hf.session(talker, "s")
        async with asyncio.timeout(20):
            with pytest.raises(holdfast.errors.HoldfastError, match="total"):
                await chat.send("half")
            assert await chat.send("hello") == "hello"


def break_passes(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Put a mistake of Holdfast's own into every pass."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake of our own")

    if where == "memo":
        monkeypatch.setattr(executor, "Memo", broken)
    else:
        monkeypatch.setattr(executor.Pass, "_forget_edits", broken)
        monkeypatch.setattr(executor.Pass, "_complete", broken)


@holdfast.agent
async def fine(run: holdfast.Run) -> str:
    return "fine"


@pytest.mark.parametrize("where", ["memo", "end"])
@async_test
async def test_unexpected_error_in_a_pass_is_counted_and_blocks_the_run(
    store: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with holdfast.Holdfast(store, agents=[fine], settings=SOON) as hf:
        await hf.start(fine, run_id="r")
        break_passes(monkeypatch, where)
        working = asyncio.create_task((worker := hf.new_worker()).run())
        async with asyncio.timeout(20):
            run = await blocked(hf, "r")
        worker.stop()
        await working
        assert run.blocked_reason == BlockedReason.BREAKER
        assert "a mistake of our own" in await hf.runs.note("r")
        assert await kinds(hf, "r") == [
            "RUN_CREATED",
            *["RUN_LEASED", "RECOVERY_INITIATED"],
            *["RUN_LEASED", "RECOVERY_COMPLETED", "RECOVERY_INITIATED"],
            *["RUN_LEASED", "RECOVERY_COMPLETED", "RECOVERY_FAILED", "RUN_BLOCKED"],
        ]


@async_test
async def test_reply_is_not_asked_for_again_after_an_unexpected_error(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def reply() -> str:
        asked.append(len(asked))
        return "a reply"

    @holdfast.agent(cadence=holdfast.every(turns=9))
    async def asks(run: holdfast.Run) -> str:
        return await run.model(reply)

    async with holdfast.Holdfast(store, agents=[asks]) as hf:
        await start(hf, asks)
        with monkeypatch.context() as broken:
            break_passes(broken, "end")
            with pytest.raises(ZeroDivisionError):
                await advance(hf, "r")
        await advance(hf, "r")
        assert await hf.runs.result("r") == "a reply"
    assert len(asked) == 1


@async_test
async def test_whoever_waits_is_told_an_unexpected_error_and_then_that_the_run_is_blocked(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, agents=[fine]) as hf:
        break_passes(monkeypatch, "memo")
        async with asyncio.timeout(20):
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await hf.run(fine, run_id="r")
            with pytest.raises(RunBlocked, match="a mistake of our own"):
                await hf.run(fine, run_id="r")
        assert (await hf.runs.get("r")).status is RunStatus.BLOCKED
