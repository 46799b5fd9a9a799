"""Checkpoints: what was saved is loaded, at every version, at the price of what is new."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from holdfast.engine.waits import WaitSpec
from holdfast.errors import (
    CheckpointNotFound,
    IllegalMove,
    MisuseError,
    RunNotFound,
    UnsupportedValue,
    ValueTooLarge,
)
from holdfast.settings import Settings
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test


@dataclass
class _Step:
    name: str
    done: bool


class _Plan(msgspec.Struct):
    steps: list[_Step]


class CheckpointsSuite:
    """What a store guarantees about checkpoints."""

    @async_test
    async def test_every_version_loads_as_it_was_saved(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            expected: list[dict[str, object]] = []
            log: list[object] = []
            for number in range(12):
                item = {"n": number, "text": "word " * number}
                log.append(item)
                run.append("log", item)
                run.set("plan", {"at": number})
                await run.checkpoint()
                expected.append({"log": list(log), "plan": {"at": number}})
            for version, state in enumerate(expected, 1):
                assert (await hf.checkpoints.load("a", version)).parts == state
            latest = await hf.checkpoints.load("a")
            assert (latest.version, latest.parts) == (12, expected[-1])
            assert run.state() == expected[-1]

    @async_test
    async def test_supported_values_come_back_equal(self, backend: Backend) -> None:
        values: dict[str, object] = {
            "none": None,
            "bool": True,
            "int": -(2**63),
            "big": 2**64 - 1,
            "float": 0.1,
            "str": "naïve \x00 ☃ 𝄞",
            "bytes": b"\x00\xff",
            "aware": datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=5, minutes=30))),
            "naive": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None),
            "uuid": UUID(int=7),
            "decimal": Decimal("10.10"),
            "tuple": (1, (2, [3])),
            "dict": {"": {"nested": []}},
        }
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.save(values)
            loaded = await hf.checkpoints.load("a")
            assert loaded.parts == values
            assert loaded["tuple"][1].__class__ is tuple
            assert loaded["aware"].utcoffset() == timedelta(hours=5, minutes=30)

    @async_test
    async def test_objects_that_are_data_come_back_as_what_they_hold(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            run.set("plan", _Plan([_Step("look", True)]))
            await run.checkpoint()
            loaded = await hf.checkpoints.load("a")
            assert loaded["plan"] == {"steps": [{"name": "look", "done": True}]}

    @async_test
    async def test_unsupported_values_are_refused_by_path_before_a_write(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            before = await hf.journal.read("a")
            with pytest.raises(UnsupportedValue) as refused:
                run.set("plan", {"owner": {1, 2}})
            assert str(refused.value).startswith('state["plan"]["owner"]: set is not supported')
            with pytest.raises(UnsupportedValue, match=r'state\["log"\]\[0\]\["x"\]\[2\]'):
                run.append("log", {"x": [1, 2, object()]})
            assert await hf.journal.read("a") == before
            assert run.state() == {}

    @async_test
    async def test_mutating_an_object_after_giving_it_changes_nothing(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            message = {"text": "before"}
            run.append("log", message)
            message["text"] = "after"
            await run.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == [{"text": "before"}]

    @async_test
    async def test_whole_state_is_stored_as_what_differs(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            log = [{"n": n, "text": f"item {n} " * 30} for n in range(50)]
            await run.save({"log": log, "plan": 1})
            whole = len((await hf.journal.read("a"))[-1].body or b"")
            log.append({"n": 50})
            await run.save({"log": log, "plan": 1})
            small = len((await hf.journal.read("a"))[-1].body or b"")
            assert small < whole / 10
            log[3]["text"] = "changed in place"
            await run.save({"log": log, "plan": 1})
            assert (await hf.checkpoints.load("a"))["log"] == log
            await run.save({"log": log[10:], "note": "window"})
            assert (await hf.checkpoints.load("a")).parts == {"log": log[10:], "note": "window"}
            assert len((await hf.journal.read("a"))[-1].body or b"") < whole / 10

    @async_test
    async def test_logs_can_be_cut_replaced_and_dropped(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            run.append("log", *range(10))
            await run.checkpoint()
            run.splice("log", 5, 5)
            run.splice("log", 0, 1, ["first"])
            run.append("log", "last")
            await run.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["first", 1, 2, 3, 4, "last"]
            run.drop("log")
            run.set("log", "a value now")
            await run.checkpoint()
            assert (await hf.checkpoints.load("a")).parts == {"log": "a value now"}
            assert (await hf.checkpoints.load("a", 1))["log"] == list(range(10))
            with pytest.raises(MisuseError, match="is a value"):
                run.append("log", 1)
            with pytest.raises(MisuseError, match="no part"):
                run.drop("nothing")

    @async_test
    async def test_loading_reads_at_most_a_few_times_what_is_alive(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            for number in range(200):
                run.append("log", {"n": number})
                await run.checkpoint()
                run.set("scratch", f"{number} " + "x" * 3000)
                await run.checkpoint()
            entries = await hf.journal.read("a", limit=5000)
            bases = [entry.seq for entry in entries if entry.kind == "STATE_BASE"]
            assert 1 <= len(bases) < 20
            assert (await hf.checkpoints.history("a", limit=1))[0].base_seq == bases[-1]
            loaded = await hf.checkpoints.load("a")
            assert loaded["log"] == [{"n": n} for n in range(200)]
            assert loaded["scratch"].startswith("199 ")
            for version in (2, 58, 150, 300, 399):
                state = await hf.checkpoints.load("a", version)
                assert len(state["log"]) == (version + 1) // 2
                assert state["scratch"].startswith(f"{version // 2 - 1} ")
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_large_values_beside_small_items_are_not_read_again(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            for number in range(50):
                run.append("log", number)
                run.set("scratch", f"{number} " + "x" * 3000)
                run.set("other", number)
                await run.checkpoint()
            entries = await hf.journal.read("a", limit=5000)
            assert [e.kind for e in entries].count("STATE_VALUES") == 50
            again = await hf.another_worker().runs.open("a", takeover=True)
            assert again.state()["scratch"].startswith("49 ")
            again.set("other", "later")
            await again.checkpoint()
            assert (await hf.checkpoints.load("a"))["other"] == "later"
            assert (await hf.checkpoints.load("a", 7)).parts == {
                "log": list(range(7)),
                "scratch": "6 " + "x" * 3000,
                "other": 6,
            }

    @async_test
    async def test_a_resumed_writer_goes_on_where_the_last_one_stopped(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            first = await hf.runs.open("a")
            for number in range(100):
                first.append("log", "y" * 400)
                first.set("v", f"{number}" + "x" * 2000)
                await first.checkpoint()
            second = await hf.another_worker().runs.open("a", takeover=True)
            assert second.version == 100
            second.append("log", "more")
            second.splice("log", 0, 90)
            await second.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["y" * 400] * 10 + ["more"]
            third = await hf.another_worker().runs.open("a", takeover=True)
            for number in range(100):
                third.set("v", f"{number}" + "z" * 2000)
                await third.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["y" * 400] * 10 + ["more"]

    @async_test
    async def test_recorded_results_are_named_not_repeated(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            reply = {"text": "long reply " * 200}
            recorded = await run.record("model", reply, args={"turn": 1})
            run.append("log", recorded, "after")
            await run.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == [reply, "after"]
            body = (await hf.journal.read("a"))[-1].body
            assert body is not None
            assert len(body) < 100
            again = await hf.another_worker().runs.open("a", takeover=True)
            assert again.state()["log"] == [reply, "after"]
            await again.save({"log": [reply, "after", "more"]})
            assert (await hf.checkpoints.load("a"))["log"] == [reply, "after", "more"]

    @async_test
    async def test_history_is_newest_first_and_paged(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            ids = [(await run.checkpoint(label=f"v{n}")).checkpoint_id for n in range(1, 8)]
            first = await hf.checkpoints.history("a", limit=3)
            assert [c.version for c in first] == [7, 6, 5]
            rest = await hf.checkpoints.history("a", limit=10, before=5)
            assert [c.version for c in rest] == [4, 3, 2, 1]
            assert [c.checkpoint_id for c in reversed(first + rest)] == [*ids[:4], *ids[4:]]
            assert ids == sorted(ids)
            assert {checkpoint_id.version for checkpoint_id in ids} == {7}
            assert (await hf.checkpoints.get(ids[2])).label == "v3"
            assert (await hf.checkpoints.get(str(ids[2]))).version == 3
            unnamed = await hf.runs.create()
            assert UUID(unnamed.run_id).version == 7

    @async_test
    async def test_search_finds_by_allowed_fields_only(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            for name in ("a", "b"):
                run = await hf.runs.open(name)
                for phase in ("planning", "testing"):
                    clock.advance(1)
                    await run.checkpoint(phase=phase, agent=f"agent-{name}", status="ok")
            found = await hf.checkpoints.search(agent="agent-b")
            assert {(c.run_id, c.phase) for c in found} == {("b", "planning"), ("b", "testing")}
            both = await hf.checkpoints.search(phase="testing", status="ok")
            assert {c.run_id for c in both} == {"a", "b"}
            assert await hf.checkpoints.search(run_id="a", phase="' OR 1=1 --") == []
            since = datetime.fromtimestamp(clock.now() / 1e6, UTC)
            assert len(await hf.checkpoints.search(since=since)) == 1
            assert len(await hf.checkpoints.search(until=since)) == 3
            page = await hf.checkpoints.search(limit=3)
            rest = await hf.checkpoints.search(limit=3, before=page[-1].checkpoint_id)
            assert len(page) == 3
            assert len(rest) == 1

    @async_test
    async def test_diff_tells_what_changed_part_by_part(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.save({"log": [1, 2], "plan": "a", "gone": True})
            await run.save({"log": [1, 2, 3], "plan": "b", "new": 1})
            diff = await hf.checkpoints.diff("a", 1, 2)
            assert diff.added == {"new": 1}
            assert diff.removed == {"gone": True}
            assert diff.changed == {"plan": ("a", "b")}
            assert (diff.logs["log"].kept, diff.logs["log"].added) == (2, [3])
            assert (await hf.checkpoints.diff("a", 1, 1)).is_empty

    @async_test
    async def test_what_is_not_there_is_said_clearly(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            assert (await hf.checkpoints.load("a")).parts == {}
            with pytest.raises(CheckpointNotFound, match="no version 9"):
                await hf.checkpoints.load("a", 9)
            with pytest.raises(RunNotFound):
                await hf.checkpoints.load("none")
            with pytest.raises(CheckpointNotFound):
                await hf.checkpoints.get("not-an-id")
            with pytest.raises(CheckpointNotFound):
                await hf.checkpoints.get(UUID(int=1))

    @async_test
    async def test_value_above_the_limit_is_refused_and_nothing_is_lost(
        self, backend: Backend
    ) -> None:
        async with backend.open(settings=Settings(max_body_bytes=10_000)) as hf:
            run = await hf.runs.open("a")
            run.append("log", "kept")
            with pytest.raises(ValueTooLarge, match="max_body_bytes"):
                run.append("log", "x" * 20_000)
            await run.checkpoint()
            for _ in range(5):
                run.append("log", "y" * 4_000)
            with pytest.raises(ValueTooLarge, match="this checkpoint"):
                await run.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["kept"]
            run.discard()
            run.append("log", "goes on")
            await run.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["kept", "goes on"]

    @async_test
    async def test_edits_that_were_not_saved_stop_a_run_from_being_left(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits([WaitSpec(wait_id="w1")])
            run.append("log", 1)
            with pytest.raises(MisuseError, match="checkpoint"):
                await run.complete()
            with pytest.raises(MisuseError, match="checkpoint"):
                await run.release()
            with pytest.raises(MisuseError, match="checkpoint"):
                await run.suspend(group)
            with pytest.raises(MisuseError, match="checkpoint"):
                await run.open_waits([WaitSpec(wait_id="w2")], suspend=True)
            run.discard()
            await run.complete()

    @async_test
    async def test_value_that_is_a_list_stays_a_value(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            run.set("tags", ["x"])
            run.append("log", 1)
            await run.checkpoint()
            await run.save({"tags": ["x", "y"], "log": [1, 2]})
            run.set("tags", ["z"])
            await run.checkpoint()
            await hf.runs.fork("a", 3, new_run_id="b")
            fork = await hf.runs.open("b")
            fork.set("tags", [])
            fork.append("log", 3)
            await fork.checkpoint()
            assert (await hf.checkpoints.load("b")).parts == {"log": [1, 2, 3], "tags": []}

    @async_test
    async def test_deleted_version_has_a_tombstone_and_later_ones_still_load(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            for n in range(1, 5):
                run.append("log", n)
                run.set("last", n)
                await run.checkpoint()
            await hf.checkpoints.delete("a", 2, by="ann", note="asked for")
            assert [c.version for c in await hf.checkpoints.history("a")] == [4, 3, 1]
            with pytest.raises(CheckpointNotFound):
                await hf.checkpoints.load("a", 2)
            with pytest.raises(CheckpointNotFound):
                await hf.checkpoints.delete("a", 2)
            with pytest.raises(IllegalMove, match="newest"):
                await hf.checkpoints.delete("a", 4)
            assert (await hf.checkpoints.load("a", 3))["log"] == [1, 2, 3]
            run.append("log", 5)
            assert (await run.checkpoint()).version == 5
            before = await hf.checkpoints.history("a")
            await hf.reindex("a")
            assert await hf.checkpoints.history("a") == before
            assert await hf.journal.verify("a") == []
            again = await hf.another_worker().runs.open("a", takeover=True)
            assert again.state() == {"log": [1, 2, 3, 4, 5], "last": 4}
