"""A run that is worked on before it is stored: its beginning goes in front of its first commit.

So a task that calls no peer and changes nothing outside costs one commit, at its end. Its message
is acknowledged then, and not before: if the process dies meanwhile, it is sent again. If two
processes work on it, the first one to commit has the run, and the other is fenced.
"""

from collections.abc import Callable

from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.writing.commits import build_commit
from holdfast.engine.writing.run_writer import RunWriter
from holdfast.kernel import runs
from holdfast.kernel.journal import ORIGIN, Draft, Kind
from holdfast.kernel.state import Parts


def hold(
    context: Context, run_id: str, created: Draft, *, on_stored: Callable[[], None]
) -> LeasedRun:
    """Return a held run that is not stored yet; `on_stored` is called when it is."""
    beginning = [created, Draft(Kind.RUN_LEASED, runs.RunLeased(context.worker))]
    leased = build_commit(context, run_id, None, ORIGIN, beginning).run
    parts = Parts()
    writer = RunWriter(context, leased, ORIGIN, recorded=parts.recorded, on_stored=on_stored)
    held = LeasedRun(context, writer, parts, is_new=True)
    held.stage.begin(beginning)
    return held
