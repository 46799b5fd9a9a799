"""The first commit of a run: its journal and its rows begin together."""

from collections.abc import Sequence

from holdfast import ids, names
from holdfast.engine.context import Context
from holdfast.engine.writing.commits import build_commit
from holdfast.errors import RunExists
from holdfast.kernel.journal import ORIGIN, Draft
from holdfast.kernel.runs import Run
from holdfast.stores.contract import Applied


def id_of(run_id: str | None) -> str:
    """The id of a run to be made: the caller's, if it can be one, else a new one."""
    return ids.new_run_id() if run_id is None else names.check(run_id, what="run id")


async def begin(context: Context, run_id: str, drafts: Sequence[Draft], *, by: str = "") -> Run:
    """Store a new run. Raises RunExists if the id is taken."""
    built = build_commit(context, run_id, None, ORIGIN, drafts, by=by)
    if not isinstance(await context.store.submit(built.commit), Applied):
        raise RunExists(f"there is a run {run_id!r} already; open it, or choose another id")
    return built.run
