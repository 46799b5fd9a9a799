"""A run that is worked on before it is stored: its beginning goes in front of its first commit.

So a task that calls no peer and changes nothing outside costs one commit, at its end. Whoever sent
it acknowledges it then, and not before: if the process dies meanwhile, it is sent again. If it is
worked on twice, the first one to commit has the run, and the other is fenced.
"""

from collections.abc import Callable

from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.writing.head import Head
from holdfast.kernel import runs
from holdfast.kernel.journal import ORIGIN, Draft, Kind, Origin
from holdfast.kernel.state import Parts
from holdfast.stores.sealing import seal_all


def hold(
    context: Context, run_id: str, created: Draft, *, on_stored: Callable[[], None]
) -> LeasedRun:
    """A run that nobody else knows of yet; `on_stored` is called when somebody does."""
    beginning = [created, Draft(Kind.RUN_LEASED, runs.Leased(context.worker))]
    origin = Origin(context.tenant, run_id, context.worker, context.now())
    sealed = seal_all(None, ORIGIN, beginning, origin)
    assert sealed.run is not None, "it was created"
    head = Head(context, sealed.run, ORIGIN, on_stored=on_stored)
    held = LeasedRun(context, head, Parts())
    held.stage.begin(beginning)
    return held
