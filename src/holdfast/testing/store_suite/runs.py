"""Runs: creating, listing, moving between states, forking."""

import asyncio
from typing import Any

import pytest

from holdfast.errors import (
    ConflictError,
    IllegalMove,
    InvalidIdentifier,
    MisuseError,
    RunCancelled,
    RunEnded,
    RunExists,
    RunNotFound,
)
from holdfast.kernel.runs import BlockedReason, RunStatus
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test


class RunsSuite:
    """What a store guarantees about runs."""

    @async_test
    async def test_created_run_is_ready_and_keeps_its_input(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.create("refund-7", agent="support", input={"order": 7})
            assert (run.status, run.agent, run.root_id) == (RunStatus.READY, "support", "refund-7")
            assert await hf.runs.get("refund-7") == run
            assert await hf.runs.input("refund-7") == {"order": 7}

    @async_test
    async def test_second_run_of_one_id_is_refused(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a", input=1)
            with pytest.raises(RunExists, match="'a'"):
                await hf.runs.create("a", input=2)
            assert await hf.runs.input("a") == 1

    @async_test
    async def test_of_many_creators_of_one_id_one_succeeds(self, backend: Backend) -> None:
        async with backend.open() as hf:
            outcomes = await asyncio.gather(
                *(hf.runs.create("a", input=n) for n in range(20)), return_exceptions=True
            )
            created = [o for o in outcomes if not isinstance(o, BaseException)]
            assert len(created) == 1
            assert all(isinstance(o, RunExists) for o in outcomes if isinstance(o, BaseException))

    @async_test
    async def test_runs_are_listed_newest_first_in_pages(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            for number in range(7):
                await hf.runs.create(f"run-{number}", agent=f"agent-{number % 2}")
                clock.advance(number % 3)
            first = await hf.runs.list(limit=4)
            rest = await hf.runs.list(limit=4, before=first[-1])
            listed = [run.run_id for run in first + rest]
            assert sorted(listed) == [f"run-{n}" for n in range(7)]
            assert [r.created_at for r in first + rest] == sorted(
                (r.created_at for r in first + rest), reverse=True
            )
            by_agent = await hf.runs.list(agent="agent-1")
            assert {run.run_id for run in by_agent} == {"run-1", "run-3", "run-5"}

    @async_test
    async def test_runs_are_listed_by_status(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("ready")
            held = await hf.runs.open("held")
            done = await hf.runs.open("done")
            await done.complete("answer")
            assert [r.run_id for r in await hf.runs.list(status="ready")] == ["ready"]
            assert [r.run_id for r in await hf.runs.list(status="running")] == [held.run_id]
            assert [r.run_id for r in await hf.runs.list(status="completed")] == ["done"]
            await hf.runs.create("theirs", agent="x")
            both = await hf.runs.list(status="ready", agent="x")
            assert [r.run_id for r in both] == ["theirs"]
            assert await hf.runs.list(status="running", agent="x") == []

    @async_test
    async def test_runs_are_listed_by_subject(self, backend: Backend) -> None:
        async with backend.open() as hf:
            for n in range(4):
                await hf.runs.create(f"r-{n}", agent="flow", subject=f"release-{n % 2}")
            await hf.runs.create("other", agent="other", subject="release-0")
            await hf.runs.create("plain", agent="flow")
            first = await hf.runs.list(agent="flow", subject="release-0", limit=1)
            rest = await hf.runs.list(agent="flow", subject="release-0", before=first[-1])
            assert [run.run_id for run in (*first, *rest)] == ["r-2", "r-0"]
            assert {run.subject for run in (*first, *rest)} == {"release-0"}
            found = await hf.runs.list(agent="flow", subject="release-1", status="completed")
            assert found == []
            with pytest.raises(MisuseError, match="give agent as well"):
                await hf.runs.list(subject="release-0")

    @async_test
    async def test_runs_are_listed_by_owner(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("nobodys", agent="flow")
            await hf.runs.create("bobs", agent="flow", owner="bob")
            for n in range(4):
                about = f"release-{n % 2}"
                await hf.runs.create(f"r-{n}", agent="flow", subject=about, owner="ann")
            await hf.runs.create("child", agent="other", parent_id="r-0")
            await hf.runs.create("given", parent_id="r-0", owner="bob")
            await hf.runs.cancel("r-2")

            async def found(**wanted: Any) -> list[str]:
                return [run.run_id for run in await hf.runs.list(**wanted)]

            first = await hf.runs.list(owner="ann", limit=2)
            rest = await found(owner="ann", before=first[-1])
            assert [*(run.run_id for run in first), *rest] == ["child", "r-3", "r-2", "r-1", "r-0"]
            assert {run.owner for run in first} == {"ann"}
            assert await found(owner="ann", status="cancelled") == ["r-2"]
            assert await found(owner="ann", agent="other") == ["child"]
            ready = {"agent": "flow", "subject": "release-0", "status": "ready"}
            assert await found(owner="ann", **ready) == ["r-0"]
            assert await found(owner="bob", parent_id="r-0") == ["given"]
            assert await found(owner="bob") == ["given", "bobs"]
            assert await found(owner="an") == []
            with pytest.raises(InvalidIdentifier, match="owner"):
                await hf.runs.list(owner="")

    @async_test
    async def test_runs_are_listed_by_parent(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            await hf.runs.create("parent")
            for n in range(5):
                await hf.runs.create(f"child-{n}", parent_id="parent", agent=f"agent-{n % 2}")
                clock.advance(1)
            await hf.runs.create("grandchild", parent_id="child-0")
            await hf.runs.cancel("child-4")
            first = await hf.runs.list(parent_id="parent", limit=3)
            rest = await hf.runs.list(parent_id="parent", limit=3, before=first[-1])
            found = [run.run_id for run in first + rest]
            assert found == [f"child-{n}" for n in reversed(range(5))]
            even = await hf.runs.list(parent_id="parent", agent="agent-0", status="ready")
            assert [run.run_id for run in even] == ["child-2", "child-0"]
            below = await hf.runs.list(parent_id="child-0")
            assert [run.run_id for run in below] == ["grandchild"]
            assert await hf.runs.list(parent_id="grandchild") == []

    @async_test
    async def test_completed_run_gives_its_result_and_takes_no_more(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            with pytest.raises(ConflictError, match="no result yet"):
                await hf.runs.result("a")
            await run.complete({"answer": 42})
            assert await hf.runs.result("a") == {"answer": 42}
            run.append("log", 1)
            with pytest.raises(RunEnded):
                await run.checkpoint()
            with pytest.raises(RunEnded):
                await hf.runs.cancel("a")

    @async_test
    async def test_failed_run_keeps_its_details(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.fail("model refused", details=["why"])
            assert (await hf.runs.get("a")).status is RunStatus.FAILED
            assert await hf.runs.result("a") == ["why"]

    @async_test
    async def test_cancel_reaches_the_holder_at_its_next_commit(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            run.append("log", 1)
            await hf.runs.cancel("a", by="alice", note="wrong order")
            with pytest.raises(RunCancelled):
                await run.checkpoint()
            assert await hf.checkpoints.history("a") == []
            last = (await hf.journal.read("a"))[-1]
            assert (last.kind, last.actor) == ("RUN_CANCELLED", "alice")

    @async_test
    async def test_blocked_run_is_not_given_out_until_unblocked(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await hf.runs.block("a", BlockedReason.BUDGET, by="ops", note="spent")
            assert (await hf.runs.get("a")).blocked_reason == "budget"
            assert await hf.leases.next() is None
            await hf.runs.unblock("a", by="ops")
            held = await hf.leases.next()
            assert held is not None
            assert held.run_id == "a"

    @async_test
    async def test_illegal_moves_are_refused_and_nothing_is_written(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            before = await hf.journal.read("a")
            with pytest.raises(IllegalMove, match="is ready"):
                await hf.runs.unblock("a")
            with pytest.raises(RunNotFound):
                await hf.runs.cancel("none")
            assert await hf.journal.read("a") == before

    @async_test
    async def test_fork_has_the_state_of_its_version_and_shares_the_lineage(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a", agent="x", input="in")
            for number in range(3):
                run.append("log", {"n": number})
                run.set("plan", {"at": number})
                await run.checkpoint()
            original = await hf.journal.read("a")
            fork = await hf.runs.fork("a", 2, new_run_id="b")
            assert (fork.forked_from, fork.forked_version, fork.root_id) == ("a", 2, "a")
            assert (await hf.checkpoints.load("b")).parts == {
                "log": [{"n": 0}, {"n": 1}],
                "plan": {"at": 1},
            }
            assert await hf.runs.input("b") == "in"
            assert await hf.journal.read("a") == original
            assert await hf.journal.verify("b") == []
            grandchild = await hf.runs.fork("b", 1)
            assert grandchild.root_id == "a"

    @async_test
    async def test_watch_ends_with_the_run(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            seen: list[str] = []
            async for row in hf.runs.watch("a"):
                seen.append(row.status)
                if row.status is RunStatus.RUNNING:
                    await run.complete()
            assert seen == ["running", "completed"]
