"""The exercises of seed 004 (§21.8) with real processes that are killed; its measured failures.

This module is also the process: `python -m tests.integration.test_seed_004 ROLE STORE …`.
"""

import asyncio
import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Happened, Message, NotDone, ToolCall, ToolResult
from holdfast.compat.loops.checkpointer import Checkpointer, check_pending_tool_calls
from holdfast.compat.loops.registry import ToolRegistry
from holdfast.compat.loops.serde import (
    deserialize_plan,
    deserialize_transcript,
    serialize_plan,
    serialize_transcript,
)
from holdfast.errors import CheckpointCorrupted, IndexCorrupted, OutcomeUnknown, StoreBusy
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.holding import holder_of
from tests.processes import Child

MODULE = "tests.integration.test_seed_004"
SESSION = "session-alpha"
TURNS = 7
LIMIT_SECONDS = 1.5


@dataclass
class Step:
    text: str
    evidence: str = ""


@dataclass
class Plan:
    steps: list[Step] = field(default_factory=list[Step])


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def mail_tool(
    outbox: Path, *, hang_at: int = -1, verify: bool = True, limit_seconds: float = LIMIT_SECONDS
) -> Any:
    """A mock "email": a line in a file. At one turn it hangs when the line is written."""

    def was_sent(number: int) -> Any:
        lines = outbox.read_text().split() if outbox.exists() else []
        return Happened(f"mail {number} is in the outbox") if str(number) in lines else NotDone()

    @holdfast.tool(
        name="email",
        side_effects={"write"},
        verify=was_sent if verify else None,
        limit_seconds=limit_seconds,
    )
    async def email(number: int) -> str:
        with outbox.open("a") as file:
            file.write(f"{number}\n")
        if number == hang_at:
            say(["hanging", number])
            await asyncio.sleep(600)
        return f"sent {number}"

    return email


class Process:
    """The roles a child process plays."""

    async def agent(self, store: str, outbox: str, hang_at: str, verify: str) -> None:
        """A loop as the seed has it: resume, then a turn at a time, saved after each."""
        checkpointer = Checkpointer(store)
        email = mail_tool(Path(outbox), hang_at=int(hang_at), verify=verify == "yes")
        registry = ToolRegistry([email], checkpointer, SESSION)
        say(["pending", await check_pending_tool_calls(checkpointer, SESSION)])
        say(["left", await registry.verify_pending()])
        transcript, plan, spent = [Message.user("send some mails")], Plan(), 0.0
        latest = await checkpointer.load_latest(SESSION)
        if latest is not None:
            transcript = deserialize_transcript(latest["transcript"])
            plan = deserialize_plan(latest["plan"], Plan) or Plan()
            spent = latest["budget_spent_usd"]
        say(["resumed", len(plan.steps), spent])
        await checkpointer.start_session(SESSION, metadata={"scratchpad": outbox})
        for turn in range(len(plan.steps) + 1, TURNS + 1):
            call = ToolCall(f"call-{turn}", "email", {"number": turn})
            result = await registry.adispatch(call.name, {"number": turn}, call.id)
            transcript += [Message.assistant(f"turn {turn}", [call]), Message.tool(result)]
            plan.steps.append(Step(f"mail {turn}", result.content))
            spent += 0.25
            version = await checkpointer.save_checkpoint(
                SESSION, serialize_transcript(transcript), serialize_plan(plan), spent
            )
            say(["saved", version, result.content, result.is_error])
        await checkpointer.end_session(SESSION)
        say(["ended"])

    async def saver(self, store: str, who: str, count: str) -> None:
        async with Checkpointer(store) as checkpointer:
            say(["ready"])
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            for n in range(int(count)):
                transcript = [{"who": who, "n": n, "text": "x" * 100}]
                say([await checkpointer.save_checkpoint("s", transcript, {"who": who}, n), n])

    async def sender(self, store: str, outbox: str, who: str) -> None:
        async with Checkpointer(store) as checkpointer:
            email = mail_tool(Path(outbox), verify=False, limit_seconds=60)
            registry = ToolRegistry([email], checkpointer, "s")
            say(["ready"])
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            for n in range(10):
                result = await registry.adispatch("email", {"number": n}, f"{who}-{n}")
                say([result.call_id, result.content, result.is_error])


def answers_until(child: Child, word: str) -> list[Any]:
    """What the child says, up to a word."""
    found = [child.answer()]
    while found[-1][0] != word:
        found.append(child.answer())
    return found


def agent(store: str, outbox: Path, *, hang_at: int = -1, verify: str = "yes") -> Child:
    return Child(MODULE, "agent", store, outbox, hang_at, verify)


def kill(child: Child) -> None:
    child.signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


# Exercise 1: crash and resume.


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission(
    *("S4-001", "S4-002", "S4-003", "S4-004", "S4-006", "S4-010", "S4-060", "S4-068", "S4-069"),
    *("S4-070", "S4-071", "S4-076", "S4-078"),
)
def test_killed_in_turn_five_the_session_goes_on_where_it_was(store: str, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    with agent(store, outbox, hang_at=5) as first:
        said = answers_until(first, "hanging")
        assert said[:3] == [["pending", []], ["left", []], ["resumed", 0, 0.0]]
        assert [answer for answer in said if answer[0] == "saved"][-1][1] == 4
        kill(first)
    with agent(store, outbox) as second:
        said = answers_until(second, "ended")
    pending = said[0][1]
    assert [(call["call_id"], json.loads(call["args_json"])) for call in pending] == [
        ("call-5", {"number": 5})
    ]
    assert said[1] == ["left", []]
    assert said[2] == ["resumed", 4, 1.0]
    saved = [answer[1:] for answer in said if answer[0] == "saved"]
    assert saved == [
        [5, "[idempotent replay of call-5]: mail 5 is in the outbox", False],
        [6, "sent 6", False],
        [7, "sent 7", False],
    ]
    assert outbox.read_text().split() == list("1234567")
    asyncio.run(check_story(store))


async def check_story(store: str, *, ended_with: str | None = "sent 7") -> None:
    """Every version tells the session as it was after that turn."""
    async with Checkpointer(store) as checkpointer:
        session = await checkpointer.get_session(SESSION)
        assert session["status"] == "completed"
        assert session["metadata"]["scratchpad"].endswith("outbox")
        for version in range(1, TURNS + 1):
            loaded = await checkpointer.load_version(SESSION, version)
            plan = deserialize_plan(loaded["plan"], Plan)
            assert plan is not None
            assert [step.text for step in plan.steps] == [f"mail {n + 1}" for n in range(version)]
            assert loaded["budget_spent_usd"] == version * 0.25
            transcript = deserialize_transcript(loaded["transcript"])
            assert [m.text for m in transcript if m.role == "assistant"] == [
                f"turn {n + 1}" for n in range(version)
            ]
        newest = await checkpointer.load_version(SESSION, TURNS)
        (last,) = deserialize_transcript(newest["transcript"])[-1].results
        assert last == ToolResult("call-7", ended_with or last.content)


@pytest.mark.mission("S4-078")
def test_what_nobody_can_verify_is_surfaced_and_never_sent_again(
    store: str, tmp_path: Path
) -> None:
    outbox = tmp_path / "outbox"
    with agent(store, outbox, hang_at=2, verify="no") as first:
        answers_until(first, "hanging")
        kill(first)
    with agent(store, outbox, verify="no") as second:
        said = answers_until(second, "ended")
    assert [call["call_id"] for call in said[1][1]] == ["call-2"]
    number, content, is_error = next(answer[1:] for answer in said if answer[0] == "saved")
    assert (number, is_error) == (2, True)
    assert "resolve_pending('session-alpha', 'call-2'" in content
    assert outbox.read_text().split() == list("1234567")


async def status_of(store: str) -> str:
    """Where the session is; "" if its process was killed before it began one."""
    async with holdfast.open(store) as hf:
        found = [run.status for run in await hf.runs.list() if run.run_id == SESSION]
        return found[0] if found else ""


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S4-003", "S4-004", "S4-078")
def test_killed_at_random_moments_every_mail_goes_out_once(store: str, tmp_path: Path) -> None:
    chance, outbox, has_ended = random.Random(4), tmp_path / "outbox", False
    for kills_left in reversed(range(7)):
        with agent(store, outbox) as child:
            answers_until(child, "resumed")
            for _ in range(chance.randint(0, 1) if kills_left else TURNS + 1):
                has_ended = has_ended or child.answer() == ["ended"]
                if has_ended:
                    break
            time.sleep(chance.uniform(0, 0.02))
            kill(child)
        # It may have come to its end, and been killed before it could say so.
        if has_ended or asyncio.run(status_of(store)) == "completed":
            break
    assert asyncio.run(status_of(store)) == "completed"
    assert outbox.read_text().split() == list("1234567")
    asyncio.run(check_story(store, ended_with=None))


# Exercise 2: duplicate write.


@pytest.mark.mission("S4-048", "S4-076", "S4-079")
def test_two_processes_that_send_the_same_mails_send_each_once(store: str, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    children = [Child(MODULE, "sender", store, outbox, who) for who in ("a", "b")]
    try:
        said = race(children, count=10)
    finally:
        for child in children:
            child.close()
    assert sorted(outbox.read_text().split(), key=int) == [str(n) for n in range(10)]
    for n in range(10):
        results = [answers[n] for answers in said]
        assert not any(is_error for _, _, is_error in results)
        sent = [call_id for call_id, content, _ in results if content == f"sent {n}"]
        replays = [content for _, content, _ in results if content != f"sent {n}"]
        assert len(sent) == 1
        assert replays == [f"[idempotent replay of {sent[0]}]: sent {n}"]


def race(children: list[Child], *, count: int) -> list[list[Any]]:
    """Start all at the same moment; what each says."""
    for child in children:
        assert child.answer() == ["ready"]
    for child in children:
        child.tell("go")
    return [[child.answer() for _ in range(count)] for child in children]


# Exercise 3: corruption audit.


async def four_versions(checkpointer: Checkpointer) -> None:
    for n in range(1, 5):
        transcript = [{"turn": turn} for turn in range(n)]
        await checkpointer.save_checkpoint("s", transcript, {"step": n}, n / 2)


@async_test
async def test_row_of_a_middle_version_is_missed_and_rebuilt_and_resume_works(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf, Checkpointer(hf=hf) as checkpointer:
        await four_versions(checkpointer)
        versions = [row["version"] for row in await checkpointer.list_versions("s")]
        assert versions == [1, 2, 3, 4]
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM checkpoints WHERE version = 2") == 1
        latest = await checkpointer.load_latest("s")
        assert latest is not None
        assert latest["version"] == 4
        with pytest.raises(IndexCorrupted, match="version 2 of run s is missing"):
            await checkpointer.load_version("s", 2)
        (problem,) = await hf.journal.verify("s")
        assert "index row" in problem.what
        assert await checkpointer.save_checkpoint("s", [{"turn": 9}], None, 9.0) == 5
        await hf.reindex("s")
        assert await hf.journal.verify("s") == []
        assert (await checkpointer.load_version("s", 2))["plan"] == {"step": 2}


@pytest.mark.mission("S4-080")
@async_test
async def test_middle_version_deleted_by_tombstone_does_not_stop_a_resume(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf, Checkpointer(hf=hf) as checkpointer:
        await four_versions(checkpointer)
        versions = [row["version"] for row in await checkpointer.list_versions("s")]
        assert versions == [1, 2, 3, 4]
        story = [(await checkpointer.load_version("s", v))["plan"] for v in versions]
        assert story == [{"step": v} for v in versions]
        latest = await checkpointer.load_latest("s")
        await checkpointer.delete_version("s", 2, note="asked for")
        assert [row["version"] for row in await checkpointer.list_versions("s")] == [1, 3, 4]
        assert await checkpointer.load_latest("s") == latest
        assert await checkpointer.save_checkpoint("s", [{"turn": 9}], None, 9.0) == 5
        assert await hf.journal.verify("s") == []


@pytest.mark.mission("S4-080")
@async_test
async def test_deleted_middle_version_is_reported_and_an_earlier_one_can_go_on(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        async with Checkpointer(hf=hf) as checkpointer:
            await four_versions(checkpointer)
        second = (await hf.checkpoints.history("s"))[-2]
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM journal WHERE seq = ?", second.seq) == 1
        checkpointer = Checkpointer(hf=hf)
        assert second.seq in [problem.seq for problem in await hf.journal.verify("s")]
        with pytest.raises(CheckpointCorrupted, match="version"):
            await checkpointer.load_latest("s")
        with pytest.raises(CheckpointCorrupted):
            await checkpointer.save_checkpoint("s", [], None, 0.0)
        assert (await checkpointer.get_session("s"))["blocked_reason"] == "corruption"
        intact = await checkpointer.load_newest_intact("s")
        assert intact == await checkpointer.load_version("s", 1)
        kinds = [entry.kind for entry in await hf.journal.read("s", checked=False)]
        assert kinds.count("CHECKPOINT_CORRUPTED") == 3
        await hf.runs.fork("s", 1, new_run_id="s-mended")
        assert await checkpointer.save_checkpoint("s-mended", [{"turn": 0}], None, 1.0) == 2
        await checkpointer.close()


# What was measured to fail with the seed's own code.


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S4-017", "S4-022", "S4-037")
def test_four_processes_save_without_a_gap_or_a_clash(store: str) -> None:
    count = 100
    children = [Child(MODULE, "saver", store, who, count) for who in "abcd"]
    try:
        said = race(children, count=count)
    finally:
        for child in children:
            child.close()
    saved = {
        version: (who, n)
        for who, answers in zip("abcd", said, strict=True)
        for version, n in answers
    }
    assert sorted(saved) == list(range(1, 4 * count + 1))

    async def check() -> None:
        async with Checkpointer(store) as checkpointer:
            assert len(await checkpointer.list_versions("s")) == 4 * count
            for version in random.Random(1).sample(sorted(saved), 40):
                loaded = await checkpointer.load_version("s", version)
                (message,) = loaded["transcript"]
                assert (message["who"], message["n"]) == saved[version]
                assert (loaded["plan"], loaded["budget_spent_usd"]) == (
                    {"who": saved[version][0]},
                    saved[version][1],
                )

    asyncio.run(check())


@pytest.mark.mission("S4-037")
@async_test
async def test_three_hundred_turns_take_the_room_of_what_they_say(tmp_path: Path) -> None:
    noise = random.Random(7)
    transcript: list[dict[str, Any]] = []
    async with Checkpointer(tmp_path / "sessions.db") as checkpointer:
        for n in range(300):
            transcript.append({"role": "user", "text": noise.randbytes(1024).hex()})
            assert await checkpointer.save_checkpoint("s", transcript, {"step": n}, n / 10) == n + 1
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < 1_200_000
    async with Checkpointer(tmp_path / "sessions.db") as checkpointer:
        latest = await checkpointer.load_latest("s")
        assert latest is not None
        assert latest["transcript"] == transcript


@pytest.mark.mission("S4-035", "S4-040")
@async_test
async def test_lost_answer_loses_nothing_and_repeats_nothing(backend: Backend) -> None:
    async def insist(work: Any) -> Any:
        for _ in range(5):
            try:
                return await work()
            except OutcomeUnknown:
                continue
        raise AssertionError("the outcome was never known")

    with holder_of(backend) as holder:
        async with Checkpointer(holder.url) as checkpointer:
            await checkpointer.start_session("s")
            with holder.lose_answer():
                version = await insist(
                    lambda: checkpointer.save_checkpoint("s", [{"turn": 1}], None, 1.0)
                )
            listed = [row["version"] for row in await checkpointer.list_versions("s")]
            assert listed == list(range(1, version + 1))
            with holder.lose_answer():
                await insist(
                    lambda: checkpointer.record_tool_call_issued("s", "c", "send", {}, "k")
                )
            assert len(await checkpointer.list_tool_calls("s")) == 1
            with holder.lose_answer():
                await insist(lambda: checkpointer.record_tool_call_result("s", "c", "sent", True))
            (call,) = await checkpointer.list_tool_calls("s")
            assert (call["status"], call["result_text"]) == ("completed", "sent")
            with holder.lose_answer():
                await insist(lambda: checkpointer.end_session("s"))
            assert (await checkpointer.get_session("s"))["status"] == "completed"


@pytest.mark.mission("S4-035")
@async_test
async def test_write_that_fails_leaves_nothing_and_its_error_is_raised(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "sessions.db")
    settings = holdfast.Settings(busy_timeout_seconds=0.1)
    async with Checkpointer(backend.url, settings=settings) as checkpointer:
        await checkpointer.save_checkpoint("s", [{"turn": 1}], None, 1.0)
        with backend.raw() as raw:
            raw.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy):
                await checkpointer.save_checkpoint("s", [{"turn": 2}], None, 2.0)
            raw.execute("ROLLBACK")
        latest = await checkpointer.load_latest("s")
        assert latest is not None
        assert (latest["version"], latest["budget_spent_usd"]) == (1, 1.0)
        assert await checkpointer.save_checkpoint("s", [{"turn": 3}], None, 3.0) == 2


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    asyncio.run(getattr(Process(), role)(*given))
