"""Erase the data of workflows that ended long ago; the record that they ran is kept.

Only whole trees are erased, and only if everything in them has ended: a workflow that waits for a
person, or for an operator, is kept however old it is.
"""

from typing import Final

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.engine.maintenance import erasure
from holdfast.errors import HoldfastError
from holdfast.kernel import runs
from holdfast.kernel.runs import RunRow
from holdfast.stores.reads import RunFilter
from holdfast.telemetry import log
from holdfast.workflows.execution.kit import AGENT

MAX_AGE_HOURS: Final = 24
_PAGE: Final = 100
_NOTE: Final = "the workflow ended long ago"


async def remove_expired(context: Context, max_age_hours: float = MAX_AGE_HOURS) -> int:
    """Erase the bodies of workflows that ended longer ago than this; return their number.

    The runs below one are erased before it is: after a crash in between, the next call erases the
    rest. What cannot be erased is logged, and retried the next time.
    """
    before = context.now() - clock.hours(max_age_hours)
    removed = 0
    after = (0, "")
    while page := await context.store.runs.expired(AGENT, before, after=after, limit=_PAGE):
        for run in page:
            try:
                removed += await _remove(context, run)
            except HoldfastError as error:
                log.error("workflow %s could not be erased: %s", run.run_id, error)
        after = (page[-1].created_at, page[-1].run_id)
    return removed


async def _remove(context: Context, root: RunRow) -> bool:
    """Erase a tree of runs, if all of it has ended."""
    tree = [root]
    for run in tree:
        tree += await _below(context, run)
    if any(run.status not in runs.ENDED for run in tree):
        return False
    for run in reversed(tree):
        if not await erasure.is_erased(context, run):
            await erasure.erase_run(context, run.run_id, note=_NOTE)
    return True


async def _below(context: Context, run: RunRow) -> list[RunRow]:
    found: list[RunRow] = []
    before: tuple[int, str] | None = None
    while True:
        wanted = RunFilter(parent=run.run_id, limit=_PAGE, before=before)
        page = await context.store.runs.page(wanted)
        found += page
        if len(page) < _PAGE:
            return found
        before = (page[-1].created_at, page[-1].run_id)
