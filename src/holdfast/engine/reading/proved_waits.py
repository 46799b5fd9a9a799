"""Compare rows of waits with the journal: who waits for what, until when, and how that ended.

What peers say beside the journal is a hint and cannot be compared: signs of life, claims, and a
deadline that a sign of life has moved. A sign of life from before the wait does not count.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.clock import MICROSECONDS
from holdfast.engine.context import Context
from holdfast.engine.reading.proved_checkpoints import is_intact
from holdfast.errors import IndexCorrupted, JournalCorrupted
from holdfast.kernel import indexes, peers, runs, waits
from holdfast.kernel.journal import Header, Kind
from holdfast.kernel.waits import Wait, WaitFacts, WaitStatus

_PAGE: Final = 1000
_FEW: Final = 8
_CLOCKS_DIFFER: Final = 60 * MICROSECONDS


async def check_waits(context: Context, found: Sequence[Wait]) -> None:
    """Raise IndexCorrupted unless the rows of waits say what the journal does.

    Raises JournalCorrupted if the journal itself was changed.
    """
    try:
        await _check_waits(context, found)
    except IndexCorrupted:
        for wait in found:
            await _check_entries(context, wait)
        raise


async def _check_entries(context: Context, wait: Wait) -> None:
    """Raise JournalCorrupted if an entry that a row leads to is not what was written."""
    seqs = sorted({wait.opened_seq, wait.result_seq} - {0})
    for linked in await context.store.journal.named(wait.run_id, seqs):
        if not is_intact(linked):
            raise JournalCorrupted(
                f"entry {linked.entry.seq} of run {wait.run_id}, which tells of wait "
                f"{wait.wait_id}, is damaged; nothing of it was used, "
                f"`holdfast runs recover {wait.run_id} --plan` says what can be done"
            )


async def _check_waits(context: Context, found: Sequence[Wait]) -> None:
    entries = await _entries(context, found)
    for wait in found:
        check_opened(wait, entries.get((wait.run_id, wait.opened_seq)))
        if wait.status is WaitStatus.OPEN:
            if wait.result_seq or wait.settled_by or wait.settled_at:
                raise wrong(wait, "says that it is open, and how it ended")
        else:
            _check_settled(wait, entries.get((wait.run_id, wait.result_seq)))
    for run_id in {wait.run_id for wait in found if wait.status is WaitStatus.OPEN}:
        is_open = {w.wait_id: w for w in found if w.run_id == run_id}
        is_open = {k: w for k, w in is_open.items() if w.status is WaitStatus.OPEN}
        await _check_open(context, run_id, is_open)


async def with_right_deadlines(context: Context, found: Sequence[Wait]) -> dict[str, Wait]:
    """Return the waits whose rows agree with the journal about their opening, by their ids."""
    entries = await _entries(context, found)
    right: dict[str, Wait] = {}
    for wait in found:
        try:
            opened = check_opened(wait, entries.get((wait.run_id, wait.opened_seq)))
        except IndexCorrupted:
            continue
        is_earlier = not opened.deadline or wait.deadline < opened.deadline
        if is_earlier and wait.address == peers.STORE and not await _was_taken(context, wait):
            continue
        right[wait.wait_id] = wait
    return right


async def _was_taken(context: Context, wait: Wait) -> bool:
    """Whether a worker has taken the run of a call: before, no sign of life can shorten a wait."""
    after = 0
    while page := await context.store.journal.headers_after(wait.wait_id, after=after, limit=_FEW):
        if any(entry.kind == Kind.RUN_LEASED for entry in page):
            return True
        after = page[-1].seq
    return False


def check_opened(wait: Wait, entry: Header | None) -> WaitFacts:
    """Return a wait as it was opened. Raises IndexCorrupted unless its row agrees."""
    facts = indexes.facts_of(entry) if entry is not None else None
    if entry is None or not isinstance(facts, waits.WaitsOpened):
        raise wrong(wait, f"leads to entry {wait.opened_seq}, which opens no wait")
    opened = next((each for each in facts.waits if each.wait_id == wait.wait_id), None)
    if opened is None:
        raise wrong(wait, f"leads to entry {wait.opened_seq}, which opens another wait")
    # A wait that joined a call lasts as long as the wait of the caller.
    may_move = wait.is_moved and bool(wait.deadline or not opened.deadline)
    is_alive = may_move and wait.progress_at >= entry.at - _CLOCKS_DIFFER
    is_moved = is_alive or bool(peers.call_at(opened.address))
    expected = msgspec.structs.replace(
        wait,
        group_id=facts.group_id,
        kind=opened.kind,
        name=opened.name,
        deadline=wait.deadline if is_moved else opened.deadline,
        opened_at=entry.at,
        address=opened.address,
        patience=opened.patience,
    )
    if expected != wait:
        raise wrong(wait, "does not say what the entry does that opened it")
    return opened


def wrong(wait: Wait, what: str) -> IndexCorrupted:
    """Return the error for a row that differs from the journal."""
    return IndexCorrupted(
        f"the index row of wait {wait.wait_id} of run {wait.run_id} {what}; nothing of it was "
        f"used, `holdfast store reindex {wait.run_id}` makes the rows anew"
    )


async def _entries(context: Context, found: Sequence[Wait]) -> dict[tuple[str, int], Header]:
    places = {(wait.run_id, wait.opened_seq) for wait in found}
    places |= {(wait.run_id, wait.result_seq) for wait in found if wait.result_seq}
    headers = await context.store.journal.headers(sorted(places)) if places else []
    return {(header.run_id, header.seq): header for header in headers}


def _check_settled(wait: Wait, entry: Header | None) -> None:
    status = None if entry is None else _status_after(wait, entry)
    is_same = entry is not None and (wait.settled_by, wait.settled_at) == (entry.actor, entry.at)
    if status is not wait.status or not is_same:
        raise wrong(wait, "does not say how it ended")


async def _check_open(context: Context, run_id: str, found: dict[str, Wait]) -> None:
    """Raise IndexCorrupted if one of these was settled."""
    after = min(wait.opened_seq for wait in found.values())
    while page := await context.store.journal.headers_after(run_id, after=after, limit=_PAGE):
        for entry in page:
            for wait in _named(entry, found):
                is_over = entry.seq > wait.opened_seq and _status_after(wait, entry) is not None
                # It may have ended after its row was read.
                if is_over and await context.store.waits.get(wait.wait_id) == wait:
                    raise wrong(wait, f"says that it is open, and entry {entry.seq} settled it")
        after = page[-1].seq


def _named(entry: Header, found: dict[str, Wait]) -> list[Wait]:
    """Return the waits that an entry may settle."""
    if entry.kind in waits.STATUS_OF:
        wait = found.get(indexes.facts_of(entry).wait_id)
        return [] if wait is None else [wait]
    return list(found.values()) if entry.kind in _CLOSING else []


_CLOSING: Final = frozenset(
    {
        Kind.GROUP_CLOSED,
        Kind.RUN_COMPLETED,
        Kind.RUN_FAILED,
        Kind.RUN_CANCELLED,
        Kind.RUN_REWOUND,
    }
)


def _status_after(wait: Wait, entry: Header) -> WaitStatus | None:
    """Return the status that an entry gives an open wait; None if it gives none."""
    match indexes.facts_of(entry):
        case waits.WaitSettled(wait_id) if wait_id == wait.wait_id:
            return waits.STATUS_OF[Kind(entry.kind)]
        case waits.Closed(group_id) if group_id == wait.group_id:
            return WaitStatus.CANCELLED
        case runs.RunFinished() | runs.Rewound(keeps_waits=False):
            return WaitStatus.CANCELLED
        case _:
            return None
