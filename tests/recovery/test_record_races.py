"""Writers in processes of their own: in order, nothing lost or doubled, and killed anywhere."""

import re
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from holdfast.errors import RunNotFound
from holdfast.records import CheckpointService, Record
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.processes import Child

WRITERS = ("ann", "bob", "cid", "dan")
POINTS = (
    "batch.before_begin",
    "batch.after_begin",
    "batch.after_commit",
    "batch.before_acknowledge",
)
MODULE = "tests.recovery.writer"


@pytest.mark.mission("S3-047", "S3-162", "S3-197")
@async_test
async def test_writers_of_one_task_are_put_in_order(backend: Backend) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(MODULE, backend.url, name)) for name in WRITERS]
        for child in children:
            child.tell(["create", "task", 10])
        made = [checkpoint_id for child in children for checkpoint_id in child.answer()]
    with backend.raw() as raw:
        rows = raw.rows("SELECT version FROM checkpoints ORDER BY version")
    assert [version for (version,) in rows] == list(range(1, 41))
    async with holdfast.open(backend.url) as hf:
        history = await CheckpointService(hf).get_checkpoint_history("task")
        assert {each.checkpoint_id for each in history} == set(made)
        assert await hf.journal.verify("task") == []


@pytest.mark.mission("S3-104", "S3-162", "S3-197")
@async_test
async def test_of_those_who_continue_the_same_checkpoint_one_wins(backend: Backend) -> None:
    with ExitStack() as stack:
        children = {n: stack.enter_context(Child(MODULE, backend.url, n)) for n in WRITERS}
        for child in children.values():
            child.tell(["continue_latest", "task", 5])
        answers = {name: child.answer() for name, child in children.items()}
    made = {tuple(pair): name for name, answer in answers.items() for pair in answer[:-1]}
    parents = [parent for parent, _ in made]
    assert len(parents) == len(set(parents)) == 20
    winner_of = {child: name for (_, child), name in made.items()}
    refused = [(name, told) for name, answer in answers.items() for told in answer[-1]]
    for _, told in refused:
        found = re.search(r"(\w+) created (\S+) \(version \d+\) at 20\d\d-", told)
        assert found, told
        assert winner_of[found[2]] == found[1]


@pytest.mark.mission("S3-118")
@async_test
async def test_no_update_is_lost(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", Record())
        with ExitStack() as stack:
            children = [stack.enter_context(Child(MODULE, backend.url, n)) for n in WRITERS[:3]]
            for child in children:
                child.tell(["count_up", made.checkpoint_id, 5])
            assert sum(child.answer() for child in children) == 15
        found = await service.get_checkpoint(made.checkpoint_id)
        assert found is not None
        assert (found.metrics.tools_invoked, found.revision) == (15, 16)
        for revision in range(1, 17):
            each = await service.get_checkpoint(made.checkpoint_id, revision=revision)
            assert each is not None
            assert each.metrics.tools_invoked == revision - 1


@async_test
async def test_one_of_many_finalizes_and_all_updates_after_it_are_refused(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", Record())
        with ExitStack() as stack:
            children = [stack.enter_context(Child(MODULE, backend.url, n)) for n in WRITERS]
            for number, child in enumerate(children):
                child.tell(["update", made.checkpoint_id, number + 1])
                child.tell(["finalize", made.checkpoint_id])
            answers = [(child.answer(), child.answer()) for child in children]
        final = [name for _, name in answers if isinstance(name, str)]
        assert len(final) == 1
        told: list[Any] = [answer for pair in answers for answer in pair]
        losers: set[str] = {answer["error"] for answer in told if isinstance(answer, dict)}
        assert losers == {"CheckpointFinal"}
        found = await service.get_checkpoint(made.checkpoint_id)
        assert found is not None
        assert (found.status, found.is_final) == (final[0], True)
        updates = [revision for revision, _ in answers if isinstance(revision, int)]
        assert found.revision == max(updates)
        kinds = [entry.kind for entry in await hf.journal.read("task")]
        assert kinds[-1] == "CHECKPOINT_FINALIZED"
        assert await hf.journal.verify("task") == []


@pytest.mark.mission("S3-045", "S3-046", "S3-103", "S3-113", "S3-118")
@pytest.mark.parametrize("point", POINTS)
@async_test
async def test_writer_that_is_killed_leaves_all_or_nothing(backend: Backend, point: str) -> None:
    """Of each operation; what comes after is the same whether it is there or not."""
    is_stored = point in ("batch.after_commit", "batch.before_acknowledge")
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        _die(backend, point, ["create", "new", 1])
        if is_stored:
            assert len(await service.get_checkpoint_history("new")) == 1
        else:
            with pytest.raises(RunNotFound):
                await hf.journal.head("new")
        one = await service.create_checkpoint("task", "a", Record())
        two = await service.create_checkpoint("task", "a", Record())
        _die(backend, point, ["create", "task", 1])
        assert len(await service.get_checkpoint_history("task")) == 2 + is_stored
        _die(backend, point, ["update", one.checkpoint_id, 5])
        updated = await service.get_checkpoint(one.checkpoint_id)
        assert updated is not None
        assert (updated.revision, updated.metrics.tools_invoked) == (
            (2, 5) if is_stored else (1, 0)
        )
        _die(backend, point, ["link", one.checkpoint_id, two.checkpoint_id])
        _die(backend, point, ["finalize", one.checkpoint_id])
        final = await service.get_checkpoint(one.checkpoint_id)
        assert final is not None
        assert final.is_final == is_stored
        for task in ("new", "task") if is_stored else ("task",):
            assert await hf.journal.verify(task) == []
        made = await service.create_checkpoint("new", "b", Record())
        assert made.run_version == 1 + is_stored


def _die(backend: Backend, point: str, command: list[object]) -> None:
    with Child(MODULE, backend.url, "victim") as child:
        assert child.ask(["arm", point])
        child.tell(command)
        assert child.wait() == -9
