"""What a rebuild of the indexes keeps of the rows that were there.

Hints of peers on waits, which are in no journal, and a run's row that its proof confirms: where
entries are missing, a replay may know less.
"""

import msgspec

from holdfast.errors import IntegrityError
from holdfast.kernel import proofs
from holdfast.kernel.index_rows import Indexes
from holdfast.kernel.peers import call_at
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import Wait
from holdfast.stores.rows import Row, Shape


def with_hints(wait: Wait, stored: Wait | None) -> Wait:
    """Return a wait of the journal, with what its row has beside it."""
    if stored is None:
        return wait
    is_moved = stored.is_moved and bool(stored.deadline or not wait.deadline)
    return msgspec.structs.replace(
        wait,
        # A sign of life moves it; one that joined a call lasts as long as the caller waits.
        deadline=stored.deadline if is_moved or call_at(wait.address) else wait.deadline,
        duplicates=stored.duplicates,
        progress_at=stored.progress_at,
        claimed_by=stored.claimed_by,
        claimed_until=stored.claimed_until,
        progress=stored.progress,
    )


def keep_proven_run(replayed: Indexes, shape: Shape[RunRow], row: Row) -> None:
    """Keep the stored row of a run if the journal confirms it; `row` ends with its proof."""
    *columns, proof = row
    try:
        stored = shape.value(tuple(columns))
    except IntegrityError:
        return
    if proof is not None and proofs.is_proven(stored, proof):
        replayed.run = stored
