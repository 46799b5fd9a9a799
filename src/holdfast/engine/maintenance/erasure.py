"""Erase a whole run: every body of its journal is removed, the chain and the facts stay.

One commit puts tombstones on its versions and digests in the place of its bodies. What is left
verifies, offline too, and says who erased what and why.
"""

from collections.abc import Callable
from typing import Final

from holdfast import ids
from holdfast.engine.context import Context
from holdfast.kernel import checkpoints, runs
from holdfast.kernel.checkpoints import Base, Delta
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.marks import Erased, Pruned
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import LateDecision, Snapshot

_NO_LIMIT: Final = 2**62


def has_ended(run: RunRow) -> bool:
    return run.status in runs.ENDED


async def erase_run(
    context: Context,
    run_id: str,
    *,
    note: str,
    permits: Callable[[RunRow, int], bool] | None = None,
    by: str = "",
) -> bool:
    """Erase every body of a run; False if the run does not exist, or it is not permitted.

    `permits` is asked under the run's lock, with the newest version; without it only a run that has
    ended is erased. One that has not is cancelled in the same commit.
    """
    while True:
        newest = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
        at, version = (newest[0].seq, newest[0].version) if newest else (0, 0)

        def decide(snapshot: Snapshot, at: int = at, version: int = version) -> LateDecision:
            run = snapshot.run
            if run is None:
                return LateDecision(False)
            if snapshot.newest.seq != at:
                return LateDecision(None)
            is_permitted = has_ended(run) if permits is None else permits(run, version)
            if not is_permitted:
                return LateDecision(False)
            return LateDecision(True, _drafts(run, snapshot.position.seq, version, note))

        erased = await context.decide_late(run_id, decide, by=by)
        if erased is not None:
            return erased


async def is_erased(context: Context, run: RunRow) -> bool:
    """Return whether the bodies of a run were erased after it ended."""
    found = await context.store.journal.erasures(run.run_id)
    return has_ended(run) and any(entry.seq > run.result_seq for entry in found)


def _drafts(run: RunRow, seq: int, version: int, note: str) -> tuple[Draft, ...]:
    """Return the entries that erase a run whose journal ends at `seq` with a version."""
    drafts: list[Draft] = []
    if not has_ended(run):
        drafts.append(Draft(Kind.RUN_CANCELLED, runs.RunFinished(note)))
    if version:
        # The state is empty from here on: without a separate version, loading it would read
        # what is erased.
        base_seq = seq + len(drafts) + 2
        created = checkpoints.CheckpointCreated(ids.uuid7(), version + 1, version, base_seq)
        drafts += [
            Draft(Kind.CHECKPOINTS_PRUNED, Pruned([(1, version)], note)),
            Draft(
                Kind.STATE_BASE,
                checkpoints.BaseFacts(version),
                checkpoints.encode_body(Base({}, {})),
            ),
            Draft(Kind.CHECKPOINT_CREATED, created, checkpoints.encode_body(Delta({}, {}, []))),
        ]
    return (*drafts, Draft(Kind.BODIES_ERASED, Erased([(1, seq)], note)))
