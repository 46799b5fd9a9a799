"""The result of `holdfast demo peers`, counted in the journals and the rows of its stores."""

from collections.abc import Mapping

from holdfast.demos.peers_instance import answer_of
from holdfast.errors import RunNotFound
from holdfast.kernel import indexes, runs
from holdfast.kernel.journal import Kind
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.sync import Holdfast
from holdfast.terminal.records import Record


def deliver_again(hf: Holdfast, run_ids: Mapping[str, int]) -> int:
    """Answer every answered call once more, with something else; return how many."""
    answered = [
        wait
        for run_id in run_ids
        for wait in hf.waits.of_run(run_id)
        if wait.status is WaitStatus.RESOLVED
    ]
    for wait in answered:
        hf.waits.resolve(wait.wait_id, "another answer", by="demo")
    return len(answered)


def count(hf: Holdfast, theirs: Holdfast, run_ids: Mapping[str, int], *, peers: int) -> Record:
    """Return the counts, and every broken promise."""
    waits = {run_id: hf.waits.of_run(run_id) for run_id in run_ids}
    problems: list[str] = []
    answers = results = 0
    workers: set[str] = set()
    for run_id, task in run_ids.items():
        entries = hf.journal.read(run_id)
        kinds = [entry.kind for entry in entries]
        answers += kinds.count(Kind.RUN_COMPLETED)
        results += kinds.count(Kind.WAIT_RESOLVED)
        workers |= {indexes.facts_of(e).worker for e in entries if e.kind == Kind.RUN_LEASED}
        problems += [
            f"task {task}: {what}" for what in _judge(hf, run_id, task, kinds, waits[run_id], peers)
        ]
    calls = [wait for of_run in waits.values() for wait in of_run]
    problems += [f"call {wait.wait_id}: {what}" for wait in calls for what in _ended(theirs, wait)]
    return {
        "tasks": len(run_ids),
        "final_answers": answers,
        "peer_results": results,
        "duplicates": sum(w.duplicates for w in calls if w.status is WaitStatus.RESOLVED),
        "late": sum(w.duplicates for w in calls if w.status is not WaitStatus.RESOLVED),
        "workers": len(workers),
        "run_ids": list(run_ids),
        "problems": problems,
    }


def _judge(
    hf: Holdfast, run_id: str, task: int, kinds: list[str], waits: list[Wait], peers: int
) -> list[str]:
    """Return the broken promises of one task."""
    run = hf.runs.get(run_id)
    if run.status is not runs.RunStatus.COMPLETED:
        return [f"it is {run.status}, and has no answer"]
    wrong: list[str] = []
    wanted = [answer_of(task, number) for number in range(1, peers + 1)]
    if (answer := hf.runs.result(run_id)) != wanted:
        wrong.append(f"its answer is {answer!r}")
    if (finals := kinds.count(Kind.RUN_COMPLETED)) != 1:
        wrong.append(f"it has {finals} final answers")
    if (results := kinds.count(Kind.WAIT_RESOLVED)) != peers or len(waits) != peers:
        wrong.append(f"{results} results of {len(waits)} calls are on record, not {peers}")
    if problems := hf.journal.verify(run_id):
        wrong.append(f"its journal's chain is broken: {problems}")
    return wrong


def _ended(theirs: Holdfast, call: Wait) -> list[str]:
    """Return the broken promises of a peer's own run."""
    try:
        status = theirs.runs.get(call.wait_id).status
    except RunNotFound:
        return ["its peer has no run"]
    return [] if status is runs.RunStatus.COMPLETED else [f"its peer's run is {status}"]
