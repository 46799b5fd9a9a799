"""An answer and a timeout in the same instant: whoever comes first counts, and nobody else.

The judge reads the tables by itself.
"""

from collections import Counter

import pytest

import holdfast
from holdfast.peers import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.peers.tasks import task
from tests.processes import Child

AGENT = "Orchestrator"
CALLS = 10
A_LITTLE, MUCH = 500, 10_000


@pytest.mark.mission("S0-086", "S2-001", "S2-002", "S2-015", "S2-020", "S2-027", "S2-028", "S2-033")
@async_test
async def test_answer_and_timeout_race_and_one_of_them_counts(
    backend: Backend, is_chaos: bool
) -> None:
    races = MUCH if is_chaos else A_LITTLE
    names: list[str] = []
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for number in range(races // CALLS):
            made = task(f"task-{number:04}", calls=CALLS, timeout_seconds=0.001)
            names += made.active_peer_sub_tasks
            await service.checkpoint_task(made, AGENT)
    instances = [Child("tests.peers.instance", backend.url) for _ in range(3)]
    try:
        for child in instances:
            child.ask(["hello"])
        answering, *sweeping = instances
        # In the order in which they are due: all go for the same calls at the same time.
        batches = [names[start : start + 500] for start in range(0, races, 500)]
        answering.tell(["answer", batches[0]])
        for child in sweeping:
            child.tell(["time_out", AGENT, 2])
        answered: list[str] = answering.answer()
        for batch in batches[1:]:
            answered += answering.ask(["answer", batch])
        ended = [name for child in sweeping for name in child.answer()]
    finally:
        for child in instances:
            child.close()
    print(f"{len(answered)} answered, {len(ended)} timed out")
    assert Counter([*answered, *ended]) == Counter(names)
    judge(backend, set(answered), set(ended), races)


def judge(backend: Backend, answered: set[str], ended: set[str], races: int) -> None:
    with backend.raw() as raw:
        stored = dict(raw.rows("SELECT wait_id, status FROM waits"))
        assert {name for name, status in stored.items() if status == "resolved"} == answered
        assert {name for name, status in stored.items() if status == "expired"} == ended
        late = raw.rows("SELECT wait_id FROM waits WHERE duplicates > 0")
        assert {name for (name,) in late} == ended
        groups = raw.rows(
            "SELECT g.resolved, g.failed, g.status,"
            " sum(CASE w.status WHEN 'resolved' THEN 1 ELSE 0 END),"
            " sum(CASE w.status WHEN 'expired' THEN 1 ELSE 0 END)"
            " FROM wait_groups g JOIN waits w ON w.run_id = g.run_id AND w.group_id = g.group_id"
            " GROUP BY g.run_id, g.group_id, g.resolved, g.failed, g.status"
        )
        assert len(groups) == races // CALLS
        for resolved, failed, status, really_resolved, really_failed in groups:
            assert (resolved, failed, status) == (really_resolved, really_failed, "satisfied")
            assert resolved + failed == CALLS
        kinds = dict(
            raw.rows("SELECT kind, count(*) FROM journal WHERE kind LIKE 'WAIT_%' GROUP BY kind")
        )
        assert kinds.get("WAIT_RESOLVED", 0) == len(answered)
        assert kinds.get("WAIT_EXPIRED", 0) == len(ended)
        assert raw.rows("SELECT DISTINCT status FROM runs") == [("ready",)]
