"""What peers said of a wait beside the journal: a rebuild of the indexes keeps it."""

import msgspec

from holdfast.kernel.waits import Wait


def with_hints(wait: Wait, stored: Wait | None) -> Wait:
    """A wait as the journal tells it, with what its row has beside it."""
    if stored is None:
        return wait
    return msgspec.structs.replace(
        wait,
        # Nothing but a sign of life moves it.
        deadline=stored.deadline if stored.progress_at else wait.deadline,
        duplicates=stored.duplicates,
        progress_at=stored.progress_at,
        claimed_by=stored.claimed_by,
        claimed_until=stored.claimed_until,
        progress=stored.progress,
    )
