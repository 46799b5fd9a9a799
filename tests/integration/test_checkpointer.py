"""The checkpointer, its registry of tools and its plain data, on every store."""

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import (
    Happened,
    Key,
    Message,
    NotDone,
    Reasoning,
    Settings,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.agents.definitions.tools import effect_of
from holdfast.compat.loops.call_log import CallLog
from holdfast.compat.loops.checkpointer import Checkpointer, check_pending_tool_calls
from holdfast.compat.loops.registry import ToolRegistry
from holdfast.compat.loops.serde import (
    deserialize_plan,
    deserialize_transcript,
    serialize_plan,
    serialize_transcript,
)
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.errors import (
    CheckpointCorrupted,
    CheckpointNotFound,
    ConflictError,
    EffectNotFound,
    IllegalMove,
    InputDiffers,
    MisuseError,
    RunCancelled,
    RunEnded,
    RunNotFound,
    StoreClosed,
    UnsupportedValue,
)
from holdfast.faults import install
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.holding import holder_of

SCRIPT = """
import asyncio, sys
from holdfast.compat.loops.call_log import CallLog
from holdfast.compat.loops.checkpointer import Checkpointer

async def main():
    checkpointer = Checkpointer(sys.argv[1])
    await checkpointer.start_session("s")
    print(await checkpointer.save_checkpoint("s", [{"n": 1}], None, 0.0))

asyncio.run(main())
"""


def turns(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "text": f"turn {n}"} for n in range(count)]


def key_of(checkpointed: list[dict[str, Any]]) -> str:
    return checkpointed[-1]["idempotency_key"]


# Sessions.


@pytest.mark.mission("S4-012", "S4-013", "S4-014", "S4-036", "S4-044")
@async_test
async def test_session_keeps_its_beginning_and_moves_with_every_use(store: str) -> None:
    async with Checkpointer(store) as checkpointer:
        await checkpointer.start_session("s", "hello", "be brief")
        first = await checkpointer.get_session("s")
        assert first["session_id"] == "s"
        assert first["status"] == "active"
        assert await checkpointer.load_latest("s") is None
        await checkpointer.start_session("s", "another message")
        again = await checkpointer.get_session("s")
        assert again["created_at"] == first["created_at"]
        assert again["updated_at"] > first["updated_at"]
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        saved = await checkpointer.get_session("s")
        assert saved["updated_at"] > again["updated_at"]
        await checkpointer.record_tool_call_issued("s", "c", "t", {}, "k")
        issued = await checkpointer.get_session("s")
        assert issued["updated_at"] > saved["updated_at"]
        assert issued["created_at"] == first["created_at"]


@pytest.mark.mission("S4-015")
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
@async_test
async def test_session_really_ends(status: Any, store: str) -> None:
    async with Checkpointer(store) as checkpointer:
        await checkpointer.save_checkpoint("s", turns(1), None, 0.5)
        await checkpointer.end_session("s", status)
        await checkpointer.end_session("s", status)
        assert (await checkpointer.get_session("s"))["status"] == status
        expected = RunCancelled if status == "cancelled" else RunEnded
        with pytest.raises(expected, match="has ended"):
            await checkpointer.start_session("s")
        with pytest.raises(RunEnded):
            await checkpointer.save_checkpoint("s", turns(2), None, 1.0)
        other = "failed" if status == "completed" else "completed"
        with pytest.raises(RunEnded):
            await checkpointer.end_session("s", other)
        latest = await checkpointer.load_latest("s")
        assert latest is not None
        assert (latest["version"], latest["transcript"]) == (1, turns(1))


@async_test
async def test_end_that_is_none_and_session_that_is_none_are_refused(store: str) -> None:
    async with Checkpointer(store) as checkpointer:
        await checkpointer.start_session("s")
        with pytest.raises(MisuseError, match="completed, failed, cancelled"):
            await checkpointer.end_session("s", "active")  # type: ignore[arg-type]
        with pytest.raises(RunNotFound):
            await checkpointer.end_session("nobody")
        with pytest.raises(RunNotFound):
            await checkpointer.get_session("nobody")
        assert await checkpointer.load_latest("nobody") is None
        assert await checkpointer.list_versions("nobody") == []


@pytest.mark.mission("S4-009")
@async_test
async def test_metadata_is_kept_from_the_first_start_on(store: str) -> None:
    where = {"scratchpad": "/tmp/scratch/s"}
    async with Checkpointer(store) as checkpointer:
        await checkpointer.start_session("s", metadata=where)
        await checkpointer.start_session("s")
        await checkpointer.start_session("s", metadata=where)
        with pytest.raises(InputDiffers, match="other metadata"):
            await checkpointer.start_session("s", metadata={"scratchpad": "/elsewhere"})
    async with Checkpointer(store) as checkpointer:
        assert (await checkpointer.get_session("s"))["metadata"] == where


@async_test
async def test_run_of_an_agent_is_not_taken_for_a_session(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r", agent="support")
        checkpointer = Checkpointer(hf=hf)
        for refused in (
            checkpointer.start_session("r"),
            checkpointer.save_checkpoint("r", [], None, 0.0),
            checkpointer.end_session("r"),
            checkpointer.get_session("r"),
        ):
            with pytest.raises(InputDiffers, match="support"):
                await refused
        held.append("log", 1)
        assert (await held.checkpoint()).version == 1


# Opening and closing.


@pytest.mark.mission("S4-034")
@async_test
async def test_checkpointer_makes_its_folder_and_opens_at_the_first_call(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "sessions.db"
    checkpointer = Checkpointer(path)
    assert path.parent.is_dir()
    assert not path.exists()
    await asyncio.gather(*(checkpointer.start_session(f"s{n}") for n in range(8)))
    with SQLiteBackend(path).raw() as raw:
        assert raw.rows("PRAGMA journal_mode") == [("wal",)]
    await checkpointer.close()
    await checkpointer.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("holdfast")]
    with pytest.raises(StoreClosed, match="closed"):
        await checkpointer.load_latest("s1")


@pytest.mark.mission("S4-034")
@async_test
async def test_event_loop_goes_on_while_a_save_is_written(backend: Backend) -> None:
    with holder_of(backend) as holder:
        async with Checkpointer(holder.url) as checkpointer:
            await checkpointer.start_session("s")
            with holder.hold("before") as held:
                saving = asyncio.create_task(checkpointer.save_checkpoint("s", [], None, 0.0))
                while not held.reached:
                    await asyncio.sleep(0.001)
                assert not saving.done()
                held.release()
                assert await saving == 1


def test_script_that_never_closes_ends_cleanly(store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, store],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


@pytest.mark.mission("S4-044")
@async_test
async def test_session_is_listed_though_its_checkpoint_cannot_be_read(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf, Checkpointer(hf=hf) as checkpointer:
        await checkpointer.start_session("without any")
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        with backend.raw() as raw:
            raw.execute("UPDATE journal SET nonce = ? WHERE kind = 'CHECKPOINT_CREATED'", b"0" * 16)
        listed = await hf.runs.list(agent="checkpointer")
        assert [run.run_id for run in listed] == ["s", "without any"]
        with pytest.raises(CheckpointCorrupted):
            await checkpointer.load_latest("s")


@pytest.mark.mission("S4-076")
@async_test
async def test_open_holdfast_is_shared_and_stays_open(store: str) -> None:
    async with holdfast.open(store) as hf:
        async with Checkpointer(hf=hf) as checkpointer:
            await checkpointer.save_checkpoint("s", turns(2), None, 0.25)
        assert (await hf.runs.get("s")).status == "ready"
        assert (await hf.checkpoints.load("s"))["transcript"] == turns(2)
        assert [run.run_id for run in await hf.runs.list(agent="checkpointer")] == ["s"]
        with pytest.raises(MisuseError, match="not both"):
            Checkpointer(store, hf=hf)


@async_test
async def test_session_that_the_breaker_stopped_goes_on(store: str) -> None:
    async with holdfast.open(store) as hf:
        checkpointer = Checkpointer(hf=hf)
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        await hf.runs.block("s", "breaker")
        assert await checkpointer.save_checkpoint("s", turns(2), None, 0.0) == 2
        await hf.runs.block("s", "budget", note="too dear")
        with pytest.raises(ConflictError, match="budget"):
            await checkpointer.save_checkpoint("s", turns(3), None, 0.0)
        assert (await checkpointer.get_session("s"))["blocked_reason"] == "budget"


# Checkpoints.


@pytest.mark.mission("S4-016", "S4-017", "S4-018", "S4-019", "S4-020", "S4-021", "S4-041", "S4-042")
@async_test
async def test_every_version_is_given_back_as_it_was_saved(store: str) -> None:
    plans = [None, {"steps": ["look"]}, {}]
    async with Checkpointer(store) as checkpointer:
        for n, plan in enumerate(plans):
            assert await checkpointer.save_checkpoint("s", turns(n + 1), plan, n / 4) == n + 1
        listed = await checkpointer.list_versions("s")
        assert [row["version"] for row in listed] == [1, 2, 3]
        assert {row["session_id"] for row in listed} == {"s"}
        session = await checkpointer.get_session("s")
        moments = [session["created_at"], *(row["created_at"] for row in listed)]
        assert moments == sorted(set(moments))
        assert moments[-1] <= session["updated_at"]
        for n, plan in enumerate(plans):
            assert await checkpointer.load_version("s", n + 1) == {
                "transcript": turns(n + 1),
                "plan": plan,
                "budget_spent_usd": n / 4,
                "version": n + 1,
            }
        assert await checkpointer.load_latest("s") == await checkpointer.load_version("s", 3)
        with pytest.raises(CheckpointNotFound):
            await checkpointer.load_version("s", 4)


@pytest.mark.mission("S4-020", "S4-021", "S4-041")
@async_test
async def test_version_without_a_plan_and_a_budget_has_none_and_spent_nothing(store: str) -> None:
    async with holdfast.open(store) as hf, Checkpointer(hf=hf) as checkpointer:
        await checkpointer.start_session("s")
        held = await hf.runs.open("s", takeover=True)
        await held.save({"transcript": turns(1)})
        assert await checkpointer.load_latest("s") == {
            "transcript": turns(1),
            "plan": None,
            "budget_spent_usd": 0.0,
            "version": 1,
        }


@async_test
async def test_rewritten_transcript_is_a_version_like_any_other(store: str) -> None:
    edited = [*turns(3)[:1], {"role": "user", "text": "edited"}]
    async with Checkpointer(store) as checkpointer:
        for transcript in (turns(3), edited, edited, []):
            await checkpointer.save_checkpoint("s", transcript, None, 0.0)
        loaded = [(await checkpointer.load_version("s", v))["transcript"] for v in (1, 2, 3, 4)]
        assert loaded == [turns(3), edited, edited, []]


@pytest.mark.mission("S4-035")
@async_test
async def test_save_that_fails_changes_nothing_and_says_so(store: str) -> None:
    async with Checkpointer(store) as checkpointer:
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        with pytest.raises(UnsupportedValue, match=r'transcript"\]\[1\]'):
            await checkpointer.save_checkpoint("s", [*turns(1), {"bad": object()}], None, 0.0)
        with pytest.raises(UnsupportedValue, match="budget"):
            await checkpointer.save_checkpoint("s", turns(2), None, float("nan"))
        latest = await checkpointer.load_latest("s")
        assert latest is not None
        assert (latest["version"], latest["transcript"]) == (1, turns(1))
        assert await checkpointer.save_checkpoint("s", turns(2), None, 0.0) == 2


@pytest.mark.mission("S4-037", "S4-075")
@async_test
async def test_save_is_one_commit_of_what_is_new_however_long_the_session(
    backend: Backend,
) -> None:
    passed = Counter[str]()
    transcript: list[dict[str, Any]] = []
    # Signs of life are commits as well, every third of a lease.
    seldom = Settings(lease_seconds=3600)
    async with Checkpointer(backend.url, settings=seldom) as checkpointer:
        await checkpointer.start_session("s")
        for n in range(300):
            transcript.append({"role": "user", "text": f"{n}:" + "0123456789abcdef" * 128})
            install(lambda point: passed.update([point]))
            await checkpointer.save_checkpoint("s", transcript, {"step": n}, n / 100)
            install(None)
        assert passed["batch.before_begin"] == 300
    with backend.raw() as raw:
        sizes = [len(row[-2] or b"") for row in raw.entries() if row[1] == "CHECKPOINT_CREATED"]
    assert len(sizes) == 300
    assert max(sizes[10:]) < 3 * min(sizes[1:])


@async_test
async def test_tasks_of_one_process_take_turns(store: str) -> None:
    async with Checkpointer(store) as one, Checkpointer(store) as other:
        saves = [
            each.save_checkpoint("s", [{"who": who, "n": n}], None, 0.0)
            for n in range(10)
            for who, each in (("one", one), ("other", other))
        ]
        assert sorted(await asyncio.gather(*saves)) == list(range(1, 21))


# Tool calls.


@pytest.mark.mission(
    *("S4-011", "S4-023", "S4-024", "S4-025", "S4-026", "S4-027", "S4-028", "S4-029"),
    *("S4-030", "S4-031", "S4-039", "S4-043", "S4-054"),
)
@async_test
async def test_call_is_on_record_from_its_intent_to_its_result(store: str) -> None:
    args = {"to": "ann", "lines": [1, 2.5, None, "ü"]}
    async with Checkpointer(store) as checkpointer:
        await checkpointer.record_tool_call_issued("s", "c1", "send", args, "k1")
        (issued,) = await checkpointer.list_tool_calls("s")
        assert issued["status"] == "issued"
        assert (issued["result_text"], issued["completed_at"]) == (None, None)
        (pending,) = await check_pending_tool_calls(checkpointer, "s")
        assert pending == {
            name: issued[name] for name in ("call_id", "tool_name", "args_json", "started_at")
        }
        assert json.loads(pending["args_json"]) == args
        await checkpointer.record_tool_call_result("s", "c1", "sent", True)
        (completed,) = await checkpointer.list_tool_calls("s")
        assert completed["session_id"] == "s"
        assert (completed["call_id"], completed["tool_name"]) == ("c1", "send")
        assert (completed["idempotency_key"], completed["status"]) == ("k1", "completed")
        assert completed["result_text"] == "sent"
        assert completed["completed_at"] > completed["started_at"]
        assert await check_pending_tool_calls(checkpointer, "s") == []
        assert await checkpointer.load_latest("s") is None


@pytest.mark.mission("S4-033", "S4-038", "S4-040")
@async_test
async def test_issued_call_blocks_a_second_one_until_it_is_resolved(store: str) -> None:
    issue = ("send", {"to": "ann"}, "k")
    async with Checkpointer(store) as crashed:
        await crashed.record_tool_call_issued("s", "c1", *issue)
    async with Checkpointer(store) as checkpointer:
        assert await checkpointer.find_completed_call("k") is None
        for call_id in ("c1", "c2"):
            with pytest.raises(ConflictError, match="resolve_pending"):
                await checkpointer.record_tool_call_issued("s", call_id, *issue)
        with pytest.raises(ConflictError, match="session 's'"):
            await checkpointer.record_tool_call_issued("another", "c1", *issue)
        assert len(await checkpointer.list_tool_calls("s")) == 1
        await checkpointer.resolve_pending("s", "c1", happened=False, by="ann")
        assert [c["status"] for c in await checkpointer.list_tool_calls("s")] == ["failed"]
        await checkpointer.record_tool_call_issued("s", "c2", *issue)
        await checkpointer.record_tool_call_result("s", "c2", "sent", True)
        with pytest.raises(ConflictError, match="find_completed_call"):
            await checkpointer.record_tool_call_issued("s", "c3", *issue)
        found = await checkpointer.find_completed_call("k")
        assert found == {
            "call_id": "c2",
            "tool_name": "send",
            "args_json": '{"to":"ann"}',
            "result_text": "sent",
            "status": "completed",
        }


@pytest.mark.mission("S4-032")
@async_test
async def test_call_id_that_is_used_again_neither_drops_nor_overwrites(store: str) -> None:
    async with Checkpointer(store) as crashed:
        await crashed.record_tool_call_issued("s", "1", "send", {"to": "ann"}, "ann")
    async with Checkpointer(store) as checkpointer:
        await checkpointer.record_tool_call_issued("s", "1", "send", {"to": "bob"}, "bob")
        await checkpointer.record_tool_call_result("s", "1", "sent to bob", True)
        await checkpointer.record_tool_call_result("s", "1", "sent to bob", True)
        found = {c["idempotency_key"]: c for c in await checkpointer.list_tool_calls("s")}
        assert found["ann"]["status"] == "issued"
        assert json.loads(found["ann"]["args_json"]) == {"to": "ann"}
        assert found["bob"]["result_text"] == "sent to bob"
        with pytest.raises(IllegalMove):
            await checkpointer.record_tool_call_result("s", "1", "something else", True)
        await checkpointer.record_tool_call_issued("s", "1", "send", {"to": "cy"}, "cy")
        await checkpointer.record_tool_call_issued("s", "1", "send", {"to": "di"}, "di")
        with pytest.raises(MisuseError, match="idempotency_key: cy, di"):
            await checkpointer.record_tool_call_result("s", "1", "sent", True)
        for key in ("di", "cy"):
            await checkpointer.record_tool_call_result(
                "s", "1", f"sent to {key}", True, idempotency_key=key
            )
        found = {c["idempotency_key"]: c for c in await checkpointer.list_tool_calls("s")}
        assert [found[key]["result_text"] for key in ("cy", "di")] == ["sent to cy", "sent to di"]
        assert found["ann"]["status"] == "issued"


@pytest.mark.mission("S4-028", "S4-031", "S4-039", "S4-056")
@async_test
async def test_failed_call_did_not_happen_and_may_be_made_again(store: str) -> None:
    async with Checkpointer(store) as crashed:
        await crashed.record_tool_call_issued("s", "c1", "send", {}, "k")
    async with Checkpointer(store) as checkpointer:
        await checkpointer.record_tool_call_result("s", "c1", "send raised E: no", False)
        (failed,) = await checkpointer.list_tool_calls("s")
        assert (failed["status"], failed["result_text"]) == ("failed", "send raised E: no")
        assert failed["completed_at"] > failed["started_at"]
        assert await check_pending_tool_calls(checkpointer, "s") == []
        await checkpointer.record_tool_call_issued("s", "c2", "send", {}, "k")
        with pytest.raises(EffectNotFound, match="no tool call 'c9'"):
            await checkpointer.record_tool_call_result("s", "c9", "", True)
        await checkpointer.end_session("s", "cancelled")
        await checkpointer.resolve_pending("s", "c2", happened=True, result_text="it was sent")
        found = await checkpointer.find_completed_call("k")
        assert found is not None
        assert found["result_text"] == "it was sent"


@async_test
async def test_result_with_half_a_character_is_not_lost(store: str) -> None:
    async with Checkpointer(store) as checkpointer:
        long_id = "call\n" + "x" * 300
        await checkpointer.record_tool_call_issued("s", long_id, "t", {}, "k")
        await checkpointer.record_tool_call_result("s", long_id, "a\ud800b", True)
        found = await checkpointer.find_completed_call("k")
        assert found is not None
        assert found["result_text"] == "a?b"


# The registry.


class Outbox:
    """A world outside that counts what is done to it."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.error: Exception | None = None

    def tool(self, **options: Any) -> Any:
        def send(to: str) -> str:
            """Send a mail."""
            if self.error is not None:
                raise self.error
            self.sent.append(to)
            return f"sent to {to}"

        return holdfast.tool(**options)(send)


@pytest.mark.mission("S4-045", "S4-047", "S4-048", "S4-049", "S4-079")
@async_test
async def test_identical_calls_at_once_run_once(store: str) -> None:
    started = 0

    @holdfast.tool(side_effects={"network", "mutate"})
    async def charge(cents: int) -> str:
        nonlocal started
        started += 1
        (pending,) = await check_pending_tool_calls(checkpointer, "s")
        assert json.loads(pending["args_json"]) == {"cents": 7}
        await asyncio.sleep(0.05)
        return "receipt 1"

    async with Checkpointer(store) as checkpointer, Checkpointer(store) as elsewhere:
        first = ToolRegistry([charge], checkpointer, "s")
        second = ToolRegistry([charge], elsewhere, "s")
        results = await asyncio.gather(
            *(r.adispatch("charge", {"cents": 7}, f"c{n}") for n, r in enumerate((first, second)))
        )
        assert started == 1
        ran, replayed = sorted(results, key=lambda result: "replay" in result.content)
        assert ran.content == "receipt 1"
        assert replayed.content == f"[idempotent replay of {ran.call_id}]: receipt 1"
        assert not any(result.is_error for result in results)
        again = await first.adispatch("charge", '{"cents": 7}', "c9")
        assert again == ToolResult("c9", f"[idempotent replay of {ran.call_id}]: receipt 1")


@pytest.mark.mission("S4-047")
def test_side_effects_say_whether_a_tool_mutates() -> None:
    for mutating in ({"mutate"}, {"write"}, {"write", "network"}):
        assert effect_of(mutating) == "mutate"
    assert effect_of({"read", "network"}) == "read"
    assert effect_of(set()) == "read"


@pytest.mark.mission("S4-051", "S4-052", "S4-053")
@async_test
async def test_what_is_one_operation_is_the_tools_to_say(store: str) -> None:
    async with Checkpointer(store) as checkpointer:

        async def send_twice(*sessions: str, **options: Any) -> int:
            box = Outbox()
            for number, session in enumerate(sessions):
                registry = ToolRegistry([box.tool(**options)], checkpointer, session)
                await registry.adispatch("send", {"to": "ann"}, f"c{number}")
                await registry.adispatch("send", {"to": "ann"}, f"d{number}")
            return len(box.sent)

        assert await send_twice("a") == 1
        assert await send_twice("b") == 1
        assert await send_twice("c", "d") == 2
        assert await send_twice("e", repeat=True) == 2
        assert await send_twice("f", "g", key="tenant") == 1
        assert await send_twice("h", "i", key=lambda to: f"mail-to-{to}") == 1


@pytest.mark.mission("S4-027", "S4-051")
@async_test
async def test_key_is_a_digest_of_session_tool_and_arguments(store: str) -> None:
    @holdfast.tool
    def send(to: str, text: str) -> str:
        return "sent"

    @holdfast.tool
    def post(to: str, text: str) -> str:
        return "posted"

    async def keys(session: str) -> list[str]:
        registry = ToolRegistry([send, post], checkpointer, session)
        await registry.adispatch("send", {"to": "ann", "text": "hi"}, "c1")
        await registry.adispatch("send", {"text": "hi", "to": "ann"}, "c2")
        await registry.adispatch("send", {"to": "ann", "text": "bye"}, "c3")
        await registry.adispatch("post", {"to": "ann", "text": "hi"}, "c4")
        return [c["idempotency_key"] for c in await checkpointer.list_tool_calls(session)]

    def expected(session: str, tool: str, text: str) -> str:
        arguments = msgspec.msgpack.encode({"text": text, "to": "ann"})
        digest = hashlib.sha256(arguments).digest()
        return hashlib.sha256(msgspec.msgpack.encode((session, tool, digest))).hexdigest()

    async with Checkpointer(store) as checkpointer:
        for session in ("a", "b"):
            assert await keys(session) == [
                expected(session, "send", "hi"),
                expected(session, "send", "bye"),
                expected(session, "post", "hi"),
            ]


@pytest.mark.mission("S4-053")
@async_test
async def test_key_is_given_to_the_tool_for_its_vendor(store: str) -> None:
    keys: list[str] = []

    @holdfast.tool(key="tenant")
    def book(room: int, key: Key) -> str:
        keys.append(key)
        return "booked"

    async with Checkpointer(store) as checkpointer:
        for session in ("a", "b"):
            await ToolRegistry([book], checkpointer, session).adispatch("book", {"room": 1}, "c")
        assert keys == [key_of(await checkpointer.list_tool_calls("a"))]
        assert await checkpointer.list_tool_calls("b") == []


@pytest.mark.mission("S4-052")
@async_test
async def test_repeats_of_a_turn_that_is_done_again_are_not_made_again(store: str) -> None:
    box = Outbox()
    for _ in range(2):  # the second time after a crash, from the same version
        async with Checkpointer(store) as checkpointer:
            registry = ToolRegistry([box.tool(repeat=True)], checkpointer, "s")
            for call_id in ("c1", "c2"):
                await registry.adispatch("send", {"to": "ann"}, call_id)
    assert box.sent == ["ann", "ann"]
    async with Checkpointer(store) as checkpointer:
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        registry = ToolRegistry([box.tool(repeat=True)], checkpointer, "s")
        await registry.adispatch("send", {"to": "ann"}, "c3")
    assert len(box.sent) == 3


@pytest.mark.mission("S4-048")
@async_test
async def test_call_is_checked_before_anything_is_recorded(store: str) -> None:
    box = Outbox()

    def permission(tool: Any, args: Any) -> Any:
        return "not to bob" if args["to"] == "bob" else None

    async with Checkpointer(store) as checkpointer:
        tools = [box.tool(repeat=True)]
        registry = ToolRegistry(tools, checkpointer, "s", permission=permission, loop_limit=2)
        refused = [
            await registry.adispatch("sned", {"to": "ann"}, "c1"),
            await registry.adispatch("send", {"to": 5}, "c2"),
            await registry.adispatch("send", "no json", "c3"),
            await registry.adispatch("send", {"to": "bob"}, "c4"),
        ]
        assert [result.is_error for result in refused] == [True] * 4
        assert "the tools are: send" in refused[0].content
        assert "not to bob" in refused[3].content
        assert await checkpointer.list_tool_calls("s") == []
        results = [await registry.adispatch("send", {"to": "ann"}, f"d{n}") for n in range(3)]
        assert [result.is_error for result in results] == [False, False, True]
        assert "2 times in a row" in results[2].content
        assert box.sent == ["ann", "ann"]


@pytest.mark.mission("S4-028", "S4-050")
@async_test
async def test_exception_becomes_a_text_and_is_not_recorded_as_done(store: str) -> None:
    box = Outbox()
    async with Checkpointer(store) as checkpointer:
        box.error = ValueError("no such address")
        declined = ToolRegistry([box.tool(not_done_on=(ValueError,))], checkpointer, "a")
        result = await declined.adispatch("send", {"to": "ann"}, "c1")
        assert result == ToolResult("c1", "send raised ValueError: no such address", is_error=True)
        assert [c["status"] for c in await checkpointer.list_tool_calls("a")] == ["failed"]
        doubtful = ToolRegistry([box.tool()], checkpointer, "b")
        result = await doubtful.adispatch("send", {"to": "ann"}, "c1")
        assert result.is_error
        assert result.content.startswith("send raised ValueError: no such address (whether")
        (unknown,) = await checkpointer.list_tool_calls("b")
        assert (unknown["status"], unknown["completed_at"]) == ("unknown", None)
        box.error = None
        told = await doubtful.adispatch("send", {"to": "ann"}, "c2")
        assert told.is_error
        assert "resolve_pending('b', 'c1'" in told.content
        assert box.sent == []
        await checkpointer.resolve_pending("b", "c1", happened=False)
        assert (await doubtful.adispatch("send", {"to": "ann"}, "c3")).content == "sent to ann"
        assert box.sent == ["ann"]


@async_test
async def test_call_that_takes_too_long_is_in_doubt(store: str) -> None:
    @holdfast.tool(limit_seconds=0.3)
    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    async with Checkpointer(store) as checkpointer:
        result = await ToolRegistry([slow], checkpointer, "s").adispatch("slow", {}, "c1")
        assert result.content.startswith("slow raised TimeoutError: it took over")
        (call,) = await checkpointer.list_tool_calls("s")
        assert call["status"] == "unknown"


@async_test
async def test_cancelled_call_is_in_doubt_and_the_cancellation_goes_on(store: str) -> None:
    started = asyncio.Event()

    @holdfast.tool
    async def hang() -> None:
        started.set()
        await asyncio.sleep(60)

    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([hang], checkpointer, "s")
        task = asyncio.create_task(registry.adispatch("hang", {}, "c1"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [c["status"] for c in await checkpointer.list_tool_calls("s")] == ["unknown"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "completed"),
        (holdfast.NotDone("declined"), "failed"),
        (OSError("reset"), "unknown"),
    ],
)
@async_test
async def test_thread_that_ends_while_its_call_is_cancelled_says_how_it_ended(
    store: str, error: Exception | None, status: str
) -> None:
    started, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @holdfast.tool
    def pay() -> str:
        loop.call_soon_threadsafe(started.set)
        may_end.wait(60)
        if error is not None:
            raise error
        return "paid"

    async with Checkpointer(store) as checkpointer:
        task = asyncio.create_task(ToolRegistry([pay], checkpointer, "s").adispatch("pay", {}, "c"))
        await started.wait()
        task.cancel()
        loop.call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        (call,) = await checkpointer.list_tool_calls("s")
        assert call["status"] == status


@async_test
async def test_twin_of_a_call_that_a_thread_still_makes_past_its_limit_waits(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, begins = threading.Event(), list[str]()
    real_begin = CallLog.begin

    async def begin(calls: CallLog, session_id: str, request: EffectRequest) -> Begun:
        begins.append(session_id)
        return await real_begin(calls, session_id, request)

    monkeypatch.setattr(CallLog, "begin", begin)

    @holdfast.tool(limit_seconds=0.2)
    def pay() -> str:
        may_end.wait(60)
        return "paid"

    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([pay], checkpointer, "s")
        calls = [asyncio.create_task(registry.adispatch("pay", {}, id_)) for id_ in ("a", "b")]
        await asyncio.sleep(1)
        seen = len(begins)
        may_end.set()
        contents = sorted([result.content for result in await asyncio.gather(*calls)])
    assert contents[0].startswith("[idempotent replay of ")
    assert contents[1] == "paid"
    assert seen <= 3


@async_test
async def test_process_that_stood_still_does_not_make_the_call_it_announced(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, late = Outbox(), [True]
    async with Checkpointer(store) as checkpointer:
        monkeypatch.setattr(CallLog, "is_late", lambda log, effect: late and late.pop())
        result = await ToolRegistry([box.tool()], checkpointer, "s").adispatch(
            "send", {"to": "ann"}, "c1"
        )
        assert result.content == "sent to ann"
        statuses = [call["status"] for call in await checkpointer.list_tool_calls("s")]
        assert statuses == ["failed", "completed"]
        assert box.sent == ["ann"]


async def interrupt(store: str, tool: Any, to: str = "ann") -> None:
    """Leave a call on record whose end nobody saw, and whose time is over."""
    async with Checkpointer(store) as crashed:
        registry = ToolRegistry([tool], crashed, "s")
        call = await registry._place(tool, tool.parse({"to": to}), "c1")
        call.tool = holdfast.tool(name="send", limit_seconds=0.001)(tool.function)
        calls = await crashed.calls()
        assert (await calls.begin("s", call.request)).answer == "fresh"
        await asyncio.sleep(0.01)


@pytest.mark.mission("S4-005", "S4-046", "S4-057", "S4-059")
@async_test
async def test_verify_settles_what_was_interrupted(store: str) -> None:
    box = Outbox()

    def verify(to: str) -> Any:
        return Happened("it was sent") if to == "ann" else NotDone()

    tool = box.tool(verify=verify)
    await interrupt(store, tool, "ann")
    await interrupt(store, tool, "bob")
    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([tool], checkpointer, "s")
        assert await registry.verify_pending() == []
        statuses = [call["status"] for call in await checkpointer.list_tool_calls("s")]
        assert statuses == ["completed", "failed"]
        ann = await registry.adispatch("send", {"to": "ann"}, "c2")
        assert ann.content == "[idempotent replay of c1]: it was sent"
        bob = await registry.adispatch("send", {"to": "bob"}, "c3")
        assert bob.content == "sent to bob"
        assert box.sent == ["bob"]


@pytest.mark.mission("S4-057")
@async_test
async def test_interrupted_call_is_verified_when_it_is_asked_for_again(store: str) -> None:
    box = Outbox()
    tool = box.tool(verify=lambda: Happened("it was sent"))
    await interrupt(store, tool)
    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([tool], checkpointer, "s")
        result = await registry.adispatch("send", {"to": "ann"}, "c2")
        assert (result.content, result.is_error) == ("it was sent", False)
        assert box.sent == []


@pytest.mark.parametrize(("in_doubt", "sent"), [("ask", 0), ("fail", 0), ("retry", 1)])
@async_test
async def test_doubt_is_decided_by_the_tools_policy(in_doubt: Any, sent: int, store: str) -> None:
    box = Outbox()
    tool = box.tool(in_doubt=in_doubt)
    await interrupt(store, tool)
    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([tool], checkpointer, "s")
        assert len(await registry.verify_pending()) == 1
        result = await registry.adispatch("send", {"to": "ann"}, "c2")
        assert result.is_error == (sent == 0)
        assert ("resolve_pending" in result.content) == (in_doubt == "ask")
        assert len(box.sent) == sent


@pytest.mark.mission("S4-055")
@async_test
async def test_pending_call_of_a_tool_that_only_reads_is_discarded_and_made_again(
    store: str,
) -> None:
    looked: list[int] = []

    @holdfast.tool(side_effects={"read"})
    def look(n: int) -> str:
        looked.append(n)
        return "seen"

    box = Outbox()
    async with Checkpointer(store) as crashed:
        for call_id, name, args in (("c1", "look", {"n": 1}), ("c2", "send", {"to": "ann"})):
            await crashed.record_tool_call_issued(
                "s", call_id, name, args, f"key of {name}", limit_seconds=0.001
            )
    async with Checkpointer(store) as checkpointer:
        assert len(await check_pending_tool_calls(checkpointer, "s")) == 2
        registry = ToolRegistry([look, box.tool()], checkpointer, "s")
        assert [call["call_id"] for call in await registry.verify_pending()] == ["c2"]
        statuses = {c["tool_name"]: c["status"] for c in await checkpointer.list_tool_calls("s")}
        assert statuses == {"look": "failed", "send": "unknown"}
        assert looked == []
        assert (await registry.adispatch("look", {"n": 1}, "c3")).content == "seen"
        assert looked == [1]
        await checkpointer.record_tool_call_issued("s", "c4", "look", {"n": 1}, "key of look")


@async_test
async def test_tools_that_are_safe_to_repeat_are_repeated(store: str) -> None:
    looked: list[int] = []
    put: list[int] = []

    @holdfast.tool(side_effects={"read"})
    def look(n: int) -> str:
        looked.append(n)
        return "seen"

    @holdfast.tool(effect="idempotent")
    def send(to: str) -> str:
        put.append(1)
        return "put"

    await interrupt(store, send)
    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([look, send], checkpointer, "s")
        for call_id in ("c1", "c2"):
            assert (await registry.adispatch("look", {"n": 1}, call_id)).content == "seen"
        assert looked == [1, 1]
        calls = await checkpointer.list_tool_calls("s")
        assert [call["tool_name"] for call in calls] == ["send"]
        assert (await registry.adispatch("send", {"to": "ann"}, "c1")).content == "put"
        assert put == [1]


@async_test
async def test_registry_without_a_checkpointer_just_calls() -> None:
    box = Outbox()

    def shout(text: str) -> str:
        return text.upper()

    registry = ToolRegistry([box.tool(), shout])
    for call_id in ("c1", "c2"):
        assert (await registry.adispatch("send", {"to": "ann"}, call_id)).content == "sent to ann"
    assert (await registry.adispatch("shout", {"text": "hi"}, "c")).content == "HI"
    box.error = OSError("down")
    failed = await registry.adispatch("send", {"to": "ann"}, "c3")
    assert (failed.content, failed.is_error) == ("send raised OSError: down", True)
    assert await registry.verify_pending() == []
    with pytest.raises(MisuseError, match="same name"):
        ToolRegistry([shout, shout])
    with pytest.raises(MisuseError, match="session"):
        ToolRegistry([shout], Checkpointer("memory://"))


@async_test
async def test_key_of_a_call_that_is_not_recorded_names_the_call_and_the_session_if_any(
    store: str,
) -> None:
    keys: list[Key] = []

    @holdfast.tool(effect="read")
    def look(*, key: Key) -> str:
        keys.append(key)
        return "seen"

    await ToolRegistry([look]).adispatch("look", {}, "c1")
    async with Checkpointer(store) as checkpointer:
        await ToolRegistry([look], checkpointer, "talk").adispatch("look", {}, "c2")
    assert [(key.run_id, key.call_id) for key in keys] == [("", "c1"), ("talk", "c2")]


@async_test
async def test_long_result_is_cut_for_the_model_and_whole_on_record(store: str) -> None:
    @holdfast.tool(max_result_chars=10)
    def read_all() -> str:
        return "x" * 1000

    async with Checkpointer(store) as checkpointer:
        registry = ToolRegistry([read_all], checkpointer, "s")
        result = await registry.adispatch("read_all", {}, "c1")
        assert result.content.startswith("x" * 10 + "\n[10 of 1,000 characters")
        (call,) = await checkpointer.list_tool_calls("s")
        assert call["result_text"] == "x" * 1000


@async_test
async def test_blocking_tool_does_not_stop_the_loop(store: str) -> None:
    released = threading.Event()

    @holdfast.tool
    def block() -> str:
        return "released" if released.wait(60) else "forgotten"

    async with Checkpointer(store, settings=Settings(lease_seconds=5)) as checkpointer:
        registry = ToolRegistry([block], checkpointer, "s")
        task = asyncio.create_task(registry.adispatch("block", {}, "c1"))
        await checkpointer.save_checkpoint("s", turns(1), None, 0.0)
        released.set()
        assert (await task).content == "released"


# Plain data.


class State(Enum):
    OPEN = "open"
    DONE = "done"


@dataclass
class Step:
    text: str
    postconditions: list[str] = field(default_factory=list[str])
    evidence: str | None = None
    state: State = State.OPEN


@dataclass
class Plan:
    goal: str
    steps: list[Step]
    by_name: dict[str, Step] = field(default_factory=dict[str, Step])


def a_transcript() -> list[Message]:
    moment = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=timezone(timedelta(hours=-7)))
    call = ToolCall("c1", "send", {"to": "ann", "n": [1, None, 2.5]})
    thought = Reasoning("hm", {"signature": "x", "nested": {"n": 1}})
    return [
        Message.system("be brief"),
        Message(role="user", blocks=[Text("hello")], id="m1", created_at=moment),
        Message(role="assistant", blocks=[thought, Text("ok"), call]),
        Message.tool(ToolResult("c1", "sent"), ToolResult("c2", "no", is_error=True)),
    ]


@pytest.mark.mission("S4-007", "S4-061", "S4-062", "S4-063", "S4-067")
@async_test
async def test_transcript_comes_back_equal_through_a_checkpoint(store: str) -> None:
    transcript = a_transcript()
    plain = serialize_transcript(transcript)
    assert json.loads(json.dumps(plain)) == plain
    assert plain[1]["created_at"] == "2024-02-29T23:59:59.123456-07:00"
    assert [block["kind"] for block in plain[2]["blocks"]] == ["reasoning", "text", "tool_call"]
    async with Checkpointer(store) as checkpointer:
        await checkpointer.save_checkpoint("s", plain, None, 0.0)
        latest = await checkpointer.load_latest("s")
    assert latest is not None
    assert deserialize_transcript(latest["transcript"]) == transcript
    assert deserialize_transcript([]) == []


@pytest.mark.mission("S4-066")
def test_unknown_kind_of_block_is_a_value_error() -> None:
    plain = serialize_transcript(a_transcript())
    plain[1]["blocks"].append({"kind": "video", "url": "x"})
    with pytest.raises(ValueError, match="unknown block kind: 'video' in message 1"):
        deserialize_transcript(plain)
    plain[1]["blocks"][-1] = {"text": "without a kind"}
    with pytest.raises(ValueError, match="unknown block kind: None"):
        deserialize_transcript(plain)
    with pytest.raises(UnsupportedValue, match="message 0"):
        deserialize_transcript([{"role": "user", "blocks": [{"kind": "text"}]}])


@pytest.mark.mission("S4-008", "S4-064", "S4-065")
@async_test
async def test_plan_comes_back_as_its_own_types(store: str) -> None:
    done = Step("look", ["found"], "it is there", State.DONE)
    plan = Plan("find it", [done, Step("tell")], {"first": done})
    plain = serialize_plan(plan)
    assert json.loads(json.dumps(plain)) == plain
    async with Checkpointer(store) as checkpointer:
        await checkpointer.save_checkpoint("s", [], plain, 0.0)
        latest = await checkpointer.load_latest("s")
    assert latest is not None
    again = deserialize_plan(latest["plan"], Plan)
    assert again == plan
    assert again is not None
    assert isinstance(again.steps[0], Step)
    assert again.by_name["first"].state is State.DONE
    assert deserialize_plan(serialize_plan(None), Plan) is None
    with pytest.raises(UnsupportedValue, match="the plan is not a Plan"):
        deserialize_plan({"goal": 1}, Plan)


def test_timestamps_have_a_zone() -> None:
    (plain,) = serialize_transcript([Message.user("hi")])
    assert datetime.fromisoformat(plain["created_at"]).tzinfo == UTC


@pytest.mark.parametrize("saves", [False, True], ids=["at once", "after a checkpoint"])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "unknown"])
@async_test
async def test_call_is_made_once_however_often_its_id_is_dispatched(
    store: str, saves: bool, fails: bool
) -> None:
    paid: list[str] = []

    @holdfast.tool(key="call", in_doubt="fail")
    async def pay(what: str, *, key: Key) -> str:
        paid.append(key)
        if fails:
            raise OSError("the connection was lost after the payment")
        return "paid"

    async with Checkpointer(store) as checkpointer:
        await checkpointer.start_session("s")
        registry = ToolRegistry([pay], checkpointer, "s")
        await registry.adispatch("pay", {"what": "x"}, "c1")
        if saves:
            await checkpointer.save_checkpoint("s", [{"n": 1}], None, 0.0)
        again = await registry.adispatch("pay", {"what": "x"}, "c1")
        assert ("interrupted" if fails else "idempotent replay") in again.content
        assert len(paid) == 1
        await registry.adispatch("pay", {"what": "x"}, "c2")
    assert len(paid) == 2
