"""An answer and a timeout in the same instant: whoever comes first counts, and nobody else.

The judge reads the tables by itself.
"""

import pytest

import holdfast
from holdfast.compat.mesh import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.peers.tasks import task
from tests.processes import Child

CALLS = 25
A_LITTLE, MUCH = 500, 10_000


@pytest.mark.mission("S0-086", "S2-002", "S2-027", "S2-028", "S2-033")
@async_test
async def test_answer_and_timeout_race_and_one_of_them_counts(
    backend: Backend, is_chaos: bool
) -> None:
    races = MUCH if is_chaos else A_LITTLE
    names: dict[str, list[str]] = {}
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for number in range(races // CALLS):
            # All are due when the race begins. By the agent's name each round has its own.
            made = task(f"task-{number}", calls=CALLS, timeout_seconds=0.001)
            names[f"agent-{number}"] = list(made.active_peer_sub_tasks)
            await service.checkpoint_task(made, f"agent-{number}")
    instances = [Child("tests.peers.instance", backend.url) for _ in range(3)]
    answered: list[str] = []
    ended: list[str] = []
    try:
        for child in instances:
            child.ask(["hello"])
        sweeping, *answering = instances
        for number, (agent, calls) in enumerate(names.items()):
            if number % 2:
                # A head start: on a busy machine the answers could win every other race.
                ended += sweeping.ask(["sweep", agent, 1])
            # Every answer is delivered twice.
            for child in answering:
                child.tell(["answer", calls])
            sweeping.tell(["time_out", agent, 1])
            answered += [name for child in answering for name in child.answer()]
            ended += sweeping.answer()
    finally:
        for child in instances:
            child.close()
    print(f"{len(answered)} answered, {len(ended)} timed out")
    assert answered
    assert ended
    assert sorted([*answered, *ended]) == sorted(name for calls in names.values() for name in calls)
    judge(backend, set(answered), set(ended), races)


def judge(backend: Backend, answered: set[str], ended: set[str], races: int) -> None:
    with backend.raw() as raw:
        stored = dict(raw.rows("SELECT wait_id, status FROM waits"))
        assert {name for name, status in stored.items() if status == "resolved"} == answered
        assert {name for name, status in stored.items() if status == "expired"} == ended
        late = dict(raw.rows("SELECT wait_id, duplicates FROM waits"))
        assert late == dict.fromkeys(answered, 1) | dict.fromkeys(ended, 2)
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
