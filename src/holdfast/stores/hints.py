"""What peers said of a wait beside the journal: a rebuild of the indexes keeps it."""

import msgspec

from holdfast.kernel.peers import call_at
from holdfast.kernel.waits import Wait


def with_hints(wait: Wait, stored: Wait | None) -> Wait:
    """A wait as the journal tells it, with what its row has beside it."""
    if stored is None:
        return wait
    joined = call_at(wait.address)
    return msgspec.structs.replace(
        wait,
        # A sign of life moves it; one that joined a call lasts as long as whoever made it waits.
        deadline=stored.deadline if stored.progress_at or joined else wait.deadline,
        duplicates=stored.duplicates,
        progress_at=stored.progress_at,
        claimed_by=stored.claimed_by,
        claimed_until=stored.claimed_until,
        progress=stored.progress,
    )
