"""Building a `Commit`: the one place above the stores that does."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine.context import Context
from holdfast.kernel.journal import ORIGIN, Draft, Origin, Position
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import BegunRun, Commit
from holdfast.stores.entry_sealer import seal_all


class ChildRun(NamedTuple):
    """A run that is to begin with a commit of another."""

    run_id: str
    drafts: Sequence[Draft]


class Built(NamedTuple):
    """A commit, and the row of its run after it is stored."""

    commit: Commit
    run: RunRow


def build_commit(
    context: Context,
    run_id: str,
    before: RunRow | None,
    after: Position,
    drafts: Sequence[Draft],
    *,
    by: str = "",
    at: int = 0,
    begins: Sequence[ChildRun] = (),
) -> Built:
    """Seal drafts that continue a journal after a position; `before` is the run as it was there.

    Without `by` this process's worker is the actor, without `at` it happens now. A run that the
    drafts do not change is not written.
    """
    origin = Origin(context.tenant, run_id, by or context.worker, at or context.now())
    # Before the first entry nothing is stored: the run is made of that entry, and is new.
    known = before if after.seq else None
    sealed = seal_all(known, after, drafts, origin)
    run = sealed.run
    assert run is not None, "a journal begins with the entry that creates its run"
    changed = None if run is known or run == known else run
    entries, changes = tuple(sealed.entries), tuple(sealed.changes)
    begun = tuple(_begin(each, origin) for each in begins)
    return Built(Commit(context.tenant, run_id, after, entries, changed, changes, begun), run)


def _begin(beginning: ChildRun, origin: Origin) -> BegunRun:
    own = Origin(origin.tenant, beginning.run_id, origin.actor, origin.at)
    sealed = seal_all(None, ORIGIN, beginning.drafts, own)
    assert sealed.run is not None, "a run that begins is created"
    return BegunRun(sealed.run, tuple(sealed.entries))
