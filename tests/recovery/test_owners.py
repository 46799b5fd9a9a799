"""A task outside has one owner: what others write is refused, as the journal tells afterwards."""

from collections.abc import Awaitable
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from holdfast.errors import ConflictError, Fenced
from holdfast.records import CheckpointService, StoredRecord, owners
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance
from tests.backends import Backend
from tests.processes import Child

MODULE = "tests.recovery.writer"


def journal_of(backend: Backend, task: str = "t") -> list[tuple[str, str]]:
    """Kind and actor of every entry, as a stranger reads them."""
    with backend.raw() as raw:
        rows = raw.rows("SELECT kind, actor FROM journal WHERE run_id = ? ORDER BY seq", task)
    return [(kind, actor) for kind, actor in rows]


class Task:
    """A task of some service, and what its journal says of those who are refused."""

    def __init__(self, hf: holdfast.Holdfast, backend: Backend) -> None:
        self.service, self._backend = CheckpointService(hf), backend

    async def write(self, agent: str) -> StoredRecord:
        return await self.service.create_checkpoint("t", agent, {})

    async def latest(self) -> StoredRecord:
        found = await self.service.get_latest_checkpoint("t")
        assert found is not None
        return found

    async def hand_over(self, agent: str, to: str) -> None:
        latest = await self.latest()
        await self.service.initiate_handoff(latest.checkpoint_id, by=agent)
        await self.service.acknowledge_handoff(latest.checkpoint_id, to)

    async def refuses(self, write: Awaitable[object], match: str = "task t") -> None:
        before = journal_of(self._backend)
        with pytest.raises(Fenced, match=match):
            await write
        assert journal_of(self._backend) == before


@pytest.mark.mission("S3-065")
@async_test
async def test_nobody_writes_between_a_handoff_and_its_acknowledgement(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        older, made = await task.write("ann"), await task.write("ann")
        await task.service.initiate_handoff(made.checkpoint_id, by="ann")
        for agent in ("ann", "bob"):
            await task.refuses(task.write(agent), "acknowledge_handoff")
        own, service = older.checkpoint_id, task.service
        changed = {"metrics": {"tools_invoked": 1}}
        await task.refuses(service.update_checkpoint(own, changed, by="ann"))
        await task.refuses(service.update_checkpoint(own, changed))
        await task.refuses(service.finalize_checkpoint(own, "complete"))
        other = await service.create_checkpoint("other", "ann", {})
        await task.refuses(service.link_checkpoints(other.checkpoint_id, own, by="ann"))
        await task.refuses(service.initiate_handoff(made.checkpoint_id, by="ann"))
        await service.acknowledge_handoff(made.checkpoint_id, "bob")
        child = await task.write("bob")
        assert child.parent_id == made.checkpoint_id
        assert await hf.journal.verify("t") == []


@pytest.mark.mission("S3-065")
@async_test
async def test_giver_is_refused_after_the_acknowledgement_in_every_process(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        older = await task.write("ann")
        await task.write("ann")
        await task.hand_over("ann", "bob")
        made = await task.write("bob")
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        service, changed = task.service, {"metrics": {"tools_invoked": 1}}
        for agent in ("ann", "cid"):
            await task.refuses(task.write(agent), "bob")
        for checkpoint_id in (older.checkpoint_id, made.checkpoint_id):
            await task.refuses(service.update_checkpoint(checkpoint_id, changed, by="ann"), "bob")
            await task.refuses(service.finalize_checkpoint(checkpoint_id, "complete", by="ann"))
        other = await service.create_checkpoint("other", "ann", {})
        await task.refuses(
            service.link_checkpoints(other.checkpoint_id, made.checkpoint_id, by="ann")
        )
        await task.refuses(service.initiate_handoff(made.checkpoint_id, by="ann"))
        assert (await service.update_checkpoint(made.checkpoint_id, changed)).revision == 2
        await service.link_checkpoints(other.checkpoint_id, made.checkpoint_id, by="bob")
        await service.finalize_checkpoint(made.checkpoint_id, "complete", by="bob")
        await task.write("bob")


@async_test
async def test_whoever_does_not_say_who_it_is_writes_as_the_agent_of_the_checkpoint(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        older = await task.write("ann")
        await task.write("ann")
        await task.hand_over("ann", "bob")
        made = await task.write("bob")
        changed = {"metrics": {"tools_invoked": 1}}
        await task.refuses(task.service.update_checkpoint(older.checkpoint_id, changed))
        await task.service.update_checkpoint(made.checkpoint_id, changed)
        await task.service.initiate_handoff(made.checkpoint_id)
        assert journal_of(backend)[-2][0] == "AGENT_HANDOFF"


@async_test
async def test_task_can_be_handed_on_and_handed_back(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        await task.write("ann")
        await task.hand_over("ann", "bob")
        await task.write("bob")
        await task.hand_over("bob", "cid")
        await task.refuses(task.write("ann"), "cid")
        await task.refuses(task.write("bob"), "cid")
        await task.write("cid")
        await task.hand_over("cid", "ann")
        await task.refuses(task.write("cid"), "ann")
        assert (await task.write("ann")).metadata.iteration == 4
    writers = [actor for kind, actor in journal_of(backend) if kind == "CHECKPOINT_CREATED"]
    assert writers == ["ann", "bob", "cid", "ann"]


@async_test
async def test_task_that_nobody_acknowledged_is_its_givers_again_without_a_worker(
    backend: Backend,
) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        task = Task(hf, backend)
        await task.write("ann")
        await task.hand_over("ann", "bob")
        made = await task.write("bob")
        await task.service.initiate_handoff(made.checkpoint_id, acknowledge_seconds=5, by="bob")
        await task.refuses(task.write("bob"))
        clock.advance(6)
        await task.write("bob")
        await task.refuses(task.write("ann"), "bob")
        with pytest.raises(ConflictError, match="reverted"):
            await task.service.acknowledge_handoff(made.checkpoint_id, "cid")
    assert [kind for kind, _ in journal_of(backend)].count("HANDOFF_REVERTED") == 1


@async_test
async def test_handoff_cannot_be_acknowledged_after_its_time_without_a_worker(
    backend: Backend,
) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        task = Task(hf, backend)
        made = await task.write("ann")
        await task.service.initiate_handoff(made.checkpoint_id, to="bob", acknowledge_seconds=5)
        clock.advance(6)
        with pytest.raises(ConflictError, match="reverted: its giver goes on"):
            await task.service.acknowledge_handoff(made.checkpoint_id, "bob")
        await task.write("ann")
        await task.write("cid")
    kinds = [kind for kind, _ in journal_of(backend)]
    assert "HANDOFF_ACKNOWLEDGED" not in kinds
    assert kinds.index("HANDOFF_REVERTED") < len(kinds) - 2


@async_test
async def test_recovered_task_is_of_whoever_goes_on_but_not_of_its_giver(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        first = await task.write("ann")
        await task.hand_over("ann", "bob")
        await task.write("bob")
        await task.service.execute_recovery(first.checkpoint_id, by="ops")
        await task.refuses(task.write("ann"))
        await task.write("cid")
        await task.refuses(task.write("bob"), "cid")
        await task.write("cid")
        assert await hf.journal.verify("t") == []


@async_test
async def test_recovered_task_can_be_handed_back_to_its_giver(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        made = await task.write("ann")
        await task.hand_over("ann", "bob")
        await task.service.execute_recovery(made.checkpoint_id, by="ops")
        await task.hand_over("ops", "ann")
        await task.refuses(task.write("bob"), "ann")
        await task.write("ann")


@async_test
async def test_recovered_task_without_a_handoff_stays_open_to_everybody(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        made = await task.write("ann")
        await task.service.execute_recovery(made.checkpoint_id, by="ops")
        for agent in ("bob", "ann", "cid"):
            await task.write(agent)


@async_test
async def test_giver_is_refused_while_an_agent_on_holdfast_has_its_task(backend: Backend) -> None:
    @holdfast.agent
    async def work(run: holdfast.Run) -> str:
        await run.checkpoint()
        await run.signal("go")
        return "done"

    async with holdfast.Holdfast(backend.url, agents=[work]) as hf:
        task = Task(hf, backend)
        older, made = await task.write("ann"), await task.write("ann")
        given = await task.service.initiate_handoff(made.checkpoint_id, to="work", by="ann")
        await hf.handoffs.assign("t", given.handoff_id, "work")
        changed = {"metrics": {"tools_invoked": 1}}
        service = task.service
        await task.refuses(service.update_checkpoint(older.checkpoint_id, changed, by="ann"))
        await advance(hf, "t")
        assert "HANDOFF_ACKNOWLEDGED" in [kind for kind, _ in journal_of(backend)]
        await task.refuses(service.update_checkpoint(older.checkpoint_id, changed, by="ann"))
        with pytest.raises(ConflictError):
            await task.write("ann")
        await service.finalize_checkpoint(older.checkpoint_id, "complete", by="a-person")


@async_test
async def test_writers_that_race_with_a_handoff_come_before_it_or_not_at_all(
    backend: Backend,
) -> None:
    patient = holdfast.Settings(busy_timeout_seconds=120)  # a file's lock is not given out in turn
    async with holdfast.open(backend.url, settings=patient) as hf:
        task = Task(hf, backend)
        await task.write("ann")
        with ExitStack() as stack:
            givers = [stack.enter_context(Child(MODULE, backend.url, "ann")) for _ in range(3)]
            for giver in givers:
                giver.tell(["create_until_refused", "t"])
            while True:
                try:
                    latest = await task.latest()
                    await task.service.initiate_handoff(latest.checkpoint_id, by="ann")
                    break
                except ConflictError:
                    continue
            refused: list[Any] = [giver.answer() for giver in givers]
            await task.service.acknowledge_handoff(latest.checkpoint_id, "bob")
            for giver in givers:
                giver.tell(["create", "t", 1])
            refused += [giver.answer()["error"] for giver in givers]
        assert refused == ["Fenced"] * 6
        assert (await task.write("bob")).parent_id == latest.checkpoint_id
    told = journal_of(backend)
    given = [kind for kind, _ in told].index("AGENT_HANDOFF")
    assert [a for k, a in told[given:] if k == "CHECKPOINT_CREATED"] == ["bob"]


@async_test
async def test_fork_of_a_task_that_was_handed_over_is_open(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        task = Task(hf, backend)
        await task.write("ann")
        await task.hand_over("ann", "bob")
        await task.write("bob")
        await hf.runs.fork("t", 1, new_run_id="fork")
        for agent in ("ann", "cid"):
            await task.service.create_checkpoint("fork", agent, {})


@async_test
async def test_owners_of_few_tasks_are_remembered_and_of_others_read_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_REMEMBERED", 2)
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        remembered = service._writing._owners._known  # pyright: ignore[reportPrivateUsage] - memory has no other face
        for task in ("one", "two", "three"):
            made = await service.create_checkpoint(task, "ann", {})
            await service.initiate_handoff(made.checkpoint_id, by="ann")
            await service.acknowledge_handoff(made.checkpoint_id, "bob")
            await service.create_checkpoint(task, "bob", {})
        assert list(remembered) == ["two", "three"]
        with pytest.raises(Fenced, match="it is of bob now"):
            await service.create_checkpoint("one", "ann", {})
        assert list(remembered) == ["three", "one"]
