"""Writing runs that nobody need hold: creating them, and appending where their journals end.

For what has to be read before it is decided; what can be judged on a run's rows alone is a `Late`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast import codec, ids, names
from holdfast.engine.context import Context
from holdfast.engine.writing.commits import build_commit
from holdfast.errors import ConflictError, RunExists, RunNotFound
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Kind
from holdfast.kernel.runs import RunCreated, RunRow
from holdfast.kernel.travel import PastItem
from holdfast.stores.contract import Applied
from holdfast.stores.reads import RunAtHead

EXISTS: Final = "there is a run {!r} already; open it, or choose another id"
TRIES: Final = 50
_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.02

DecideAtHead = Callable[[RunAtHead, int], Awaitable[Sequence[Draft]]]
"""What to append to a journal that ends there, at a moment; an empty list writes nothing."""


def choose_id(run_id: str | None) -> str:
    """Return the id of a new run: the caller's after a check, else a new one."""
    return ids.new_run_id() if run_id is None else names.check(run_id, what="run id")


def first_entry(
    *,
    agent: str,
    input: object,
    parent_id: str = "",
    parent_seq: int = 0,
    subject: str = "",
    owner: str = "",
    former: PastItem | None = None,
) -> Draft:
    """Return the entry that a journal begins with; the run continues the work of `former`."""
    facts = RunCreated(
        agent=agent and names.check(agent, what="agent"),
        input_digest=codec.canonical_digest(input, name="input"),
        root_id="" if former is None else former.key,
        parent_id=parent_id,
        forked_from="" if former is None else former.item_id,
        resend=() if former is None else former.resend,
        parent_seq=parent_seq,
        subject=subject and names.check(subject, what="subject"),
        owner=owner and names.check(owner, what="owner"),
    )
    return Draft(Kind.RUN_CREATED, facts, codec.encode(input, name="input"))


async def create(context: Context, run_id: str, drafts: Sequence[Draft], *, by: str = "") -> RunRow:
    """Store a new run: its journal and its rows begin together. Raises RunExists."""
    built = build_commit(context, run_id, None, ORIGIN, drafts, by=by)
    if not isinstance(await context.store.submit(built.commit), Applied):
        raise RunExists(EXISTS.format(run_id))
    return built.run


async def append_at_head(
    context: Context, run_id: str, decide: DecideAtHead, *, by: str = "", advice: str = "try again"
) -> Sequence[Entry]:
    """Append what `decide` asks for in one commit, and decide again if the run grows.

    Returns the entries.
    """
    names.check(run_id, what="run id")
    for lost in range(TRIES):
        if lost:
            # SQLite's lock is not fair: without a pause the same writer can lose every time.
            await asyncio.sleep(random.uniform(0, min(_LONGEST_PAUSE, lost * _PAUSE)))
        head = await context.store.runs.at_head(run_id)
        if head is None:
            raise RunNotFound(
                f"there is no run {run_id!r}; `holdfast runs list` shows those that are"
            )
        now = context.now()
        drafts = await decide(head, now)
        if not drafts:
            return ()
        built = build_commit(context, run_id, head.run, head.position, drafts, by=by, at=now)
        if isinstance(await context.store.submit(built.commit), Applied):
            return built.commit.entries
    raise ConflictError(
        f"nothing was written to run {run_id}: it went on {TRIES} times while this was decided; "
        f"{advice}"
    )
