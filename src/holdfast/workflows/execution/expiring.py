"""Workflows that ended long ago: what they held is erased, that they ran stays on the record.

Only whole trees go, and only those in which everything has ended: a workflow that waits for a
person, or for an operator, is kept however old it is.
"""

from typing import Final

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.engine.maintenance import erasing
from holdfast.errors import HoldfastError
from holdfast.kernel import runs
from holdfast.kernel.runs import Run
from holdfast.stores.reads import RunFilter
from holdfast.telemetry import log
from holdfast.workflows.execution.kit import AGENT

MAX_AGE_HOURS: Final = 24
_PAGE: Final = 100
_NOTE: Final = "the workflow ended long ago"


async def remove_expired(context: Context, max_age_hours: float = MAX_AGE_HOURS) -> int:
    """Erase the bodies of workflows that ended longer ago than this; how many there were.

    The runs below one are erased before it is: whoever dies in between leaves it for the next
    time. What cannot be erased is logged, and tried again the next time.
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


async def _remove(context: Context, root: Run) -> bool:
    """Erase a tree of runs, if all of it has ended."""
    tree = [root]
    for run in tree:
        tree += await _below(context, run)
    if any(run.status not in runs.ENDED for run in tree):
        return False
    for run in reversed(tree):
        if not await erasing.is_erased(context, run):
            await erasing.erase_run(context, run.run_id, note=_NOTE)
    return True


async def _below(context: Context, run: Run) -> list[Run]:
    found: list[Run] = []
    before: tuple[int, str] | None = None
    while True:
        wanted = RunFilter(parent=run.run_id, limit=_PAGE, before=before)
        page = await context.store.runs.page(wanted)
        found += page
        if len(page) < _PAGE:
            return found
        before = (page[-1].created_at, page[-1].run_id)
