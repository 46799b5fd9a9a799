"""Decisions on a run that nobody need hold: made where its journal ends, and anew if it grows.

For what has to be read before it is decided; what can be judged on a run's rows alone is a `Late`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast import names
from holdfast.engine.context import Context
from holdfast.engine.writing.commits import build_commit
from holdfast.errors import ConflictError, RunNotFound
from holdfast.kernel.journal import Draft, Entry
from holdfast.stores.contract import Applied
from holdfast.stores.reads import RunAtHead

TRIES: Final = 50

Plan = Callable[[RunAtHead, int], Awaitable[Sequence[Draft]]]
"""What to append to a journal that ends there, at a moment; an empty list writes nothing."""


async def decide_at_head(
    context: Context, run_id: str, plan: Plan, *, by: str = "", advice: str = "try again"
) -> Sequence[Entry]:
    """Append what `plan` asks for in one commit; the entries."""
    names.check(run_id, what="run id")
    for _ in range(TRIES):
        head = await context.store.runs.at_head(run_id)
        if head is None:
            raise RunNotFound(
                f"there is no run {run_id!r}; `holdfast runs list` shows those that are"
            )
        now = context.now()
        drafts = await plan(head, now)
        if not drafts:
            return ()
        built = build_commit(context, run_id, head.run, head.position, drafts, by=by, at=now)
        if isinstance(await context.store.submit(built.commit), Applied):
            return built.commit.entries
    raise ConflictError(
        f"nothing was written to run {run_id}: it went on {TRIES} times while this was decided; "
        f"{advice}"
    )
