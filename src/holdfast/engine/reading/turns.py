"""A turn: a run's entries since its last checkpoint."""

from collections.abc import Sequence
from typing import Any

from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of, read_after
from holdfast.errors import IntegrityError, NotFoundError
from holdfast.kernel import indexes, journal
from holdfast.kernel.journal import ORIGIN, Entry, Kind, Position
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.state import Parts

_NEWEST = 2**62
_NOTED = 20
_PAGE = 500
_NO_REASON = "no reason is on record"
_REASONS = {
    RunStatus.BLOCKED: Kind.RUN_BLOCKED,
    RunStatus.FAILED: Kind.RUN_FAILED,
    RunStatus.CANCELLED: Kind.RUN_CANCELLED,
}


async def entries_since(context: Context, run_id: str, parts: Parts) -> list[Entry] | None:
    """Return the entries after the checkpoint of a state, checked against the chain with it.

    None if a newer checkpoint is among them.
    """
    if parts.position is None:
        return await entries_since_checkpoint(context, run_id)
    if parts.position.seq:
        await _check_checkpoint(context, run_id, parts.position.seq)
    found = await read_after(context, run_id, parts.position)
    is_newest = all(entry.kind != Kind.CHECKPOINT_CREATED for entry in found)
    return found if is_newest else None


async def entries_since_checkpoint(context: Context, run_id: str) -> list[Entry]:
    """Return the entries after the newest checkpoint (else all), checked against the chain."""
    found = await context.store.checkpoints.page(run_id, before=_NEWEST, limit=1)
    if not found:
        return await read_after(context, run_id, ORIGIN)
    return await read_after(context, run_id, await _check_checkpoint(context, run_id, found[0].seq))


async def _check_checkpoint(context: Context, run_id: str, seq: int) -> Position:
    """Return the position of a checkpoint's entry; raises JournalCorrupted if it was changed."""
    found = await context.store.journal.named(run_id, [seq])
    if not found:
        raise journal.corrupted(journal.Problem(run_id, seq, journal.Flaw.MISSING, "is missing"))
    if not journal.is_intact(found[0].entry, found[0].previous or b""):
        raise journal.corrupted(journal.Problem(run_id, seq, journal.Flaw.CHANGED, "was changed"))
    return found[0].entry.position


async def begun_by(context: Context, run: RunRow) -> str:
    """Return the agent that a run was started with, before any handoff."""
    if run.contexts == 1 and not run.handoff:
        return run.agent
    found = await context.store.journal.named(run.run_id, [1])
    if not found or found[0].entry.kind != Kind.RUN_CREATED:
        raise IntegrityError(f"the first entry of run {run.run_id} is damaged or missing")
    return indexes.facts_of(found[0].entry).agent


async def input_of(context: Context, run_id: str, entries: Sequence[Entry] = ()) -> Any:
    """Return the input that a run was created with.

    `entries` are entries of the run that were checked against the chain; if they begin with its
    first one, it is not read again.
    """
    if entries and entries[0].seq == 1 and entries[0].kind == Kind.RUN_CREATED:
        return body_of(entries[0])
    found = await context.store.journal.named(run_id, [1])
    is_first = bool(found) and found[0].entry.kind == Kind.RUN_CREATED
    if not is_first or not journal.is_intact(found[0].entry, journal.GENESIS):
        raise IntegrityError(f"the first entry of run {run_id} is damaged or missing")
    return body_of(found[0].entry)


async def step_result(context: Context, run_id: str, seq: int, *, prefix: str = "") -> Any:
    """Return the result of a recorded step; raises NotFoundError if there is no such step."""
    found = await context.store.journal.named(run_id, [seq])
    entry = found[0].entry if found else None
    is_step = entry is not None and entry.kind == Kind.STEP_RECORDED
    if entry is None or not is_step or not indexes.facts_of(entry).name.startswith(prefix):
        raise NotFoundError(f"run {run_id} has nothing of this kind at entry {seq}")
    if not journal.is_intact(entry, found[0].previous or b""):
        raise IntegrityError(f"entry {seq} of run {run_id} is damaged; it was not used")
    return body_of(entry)


async def last_note(context: Context, run_id: str) -> str:
    """Return why a run failed, was cancelled or is blocked; else the newest note of late entries.

    A reason is found however many entries follow it.
    """
    run = await context.store.runs.get(run_id)
    reason = None if run is None else _REASONS.get(run.status)
    head = await context.store.journal.head(run_id)
    upto, page = 0 if head is None else head.seq, _NOTED
    while upto > 0:
        after = max(0, upto - page)
        for entry in reversed(
            await context.store.journal.read(run_id, after=after, limit=upto - after)
        ):
            note = getattr(indexes.facts_of(entry), "note", "")
            if entry.kind == reason or (note and reason is None):
                return note or _NO_REASON
        if reason is None:
            break
        upto, page = after, _PAGE
    return _NO_REASON
