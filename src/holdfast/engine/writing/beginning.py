"""The first commit of a run: its journal and its rows begin together."""

from collections.abc import Sequence

from holdfast import ids, names
from holdfast.engine.context import Context
from holdfast.errors import RunExists
from holdfast.kernel.journal import ORIGIN, Draft, Origin
from holdfast.kernel.runs import Run
from holdfast.stores.contract import Applied, Commit
from holdfast.stores.sealing import seal_all


def id_of(run_id: str | None) -> str:
    """The id of a run to be made: the caller's, if it can be one, else a new one."""
    return ids.new_run_id() if run_id is None else names.check(run_id, what="run id")


async def begin(context: Context, run_id: str, drafts: Sequence[Draft], *, by: str = "") -> Run:
    """Store a new run. Raises RunExists if the id is taken."""
    origin = Origin(context.tenant, run_id, by or context.worker, context.now())
    sealed = seal_all(None, ORIGIN, drafts, origin)
    assert sealed.run is not None, "creating a run makes its row"
    entries, changes = tuple(sealed.entries), tuple(sealed.changes)
    commit = Commit(context.tenant, run_id, ORIGIN, entries, sealed.run, changes)
    if not isinstance(await context.store.submit(commit), Applied):
        raise RunExists(f"there is a run {run_id!r} already; open it, or choose another id")
    return sealed.run
