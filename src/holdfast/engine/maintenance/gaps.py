"""Missing entries: a reader that finds a broken chain stops, and the run is blocked for people.

A chain is whole if it has as many entries as its last seq, which costs one count with a read. A gap
that somebody has accepted is recorded, with the recovery that continued in spite of it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.engine import sweeper
from holdfast.engine.checkpoints import record_damage
from holdfast.engine.context import Context
from holdfast.errors import JournalCorrupted
from holdfast.kernel import indexes
from holdfast.kernel.journal import Kind
from holdfast.telemetry import log

_NO_LIMIT: Final = 2**62
_PAGE: Final = 1000

Range = tuple[int, int]


async def check_whole(context: Context, run_id: str) -> None:
    """Raise JournalCorrupted if entries of a run are missing.

    It then blocks the run, and records the first version that is damaged by the gap.
    """
    if (await context.store.journal.extent(run_id)).is_whole:
        return
    found = await gaps_of(context, run_id)
    if not found:
        return
    damage = JournalCorrupted(
        f"the journal of run {run_id} is broken: {_words(found)} missing. Nothing was done; the "
        f"run is blocked until a person decides (`holdfast runs recover {run_id} --plan`)"
    )
    await _escalate(context, run_id, found[0][0], damage)
    raise damage


async def gaps_of(context: Context, run_id: str) -> list[Range]:
    """Return the missing seqs of a journal, from and to, without accepted gaps."""
    missing = missing_among(await context.store.journal.seqs(run_id))
    if not missing:
        return []
    accepted = await accepted_gaps(context, run_id)
    return [
        (first, last)
        for first, last in missing
        if not any(begin <= first and last <= end for begin, end in accepted)
    ]


async def accepted_gaps(context: Context, run_id: str) -> list[Range]:
    """Return the gaps that somebody accepted in a recovery."""
    found: list[Range] = []
    after = 0
    while page := await context.store.journal.headers_after(run_id, after=after, limit=_PAGE):
        for entry in page:
            if entry.kind == Kind.RECOVERY_INITIATED:
                found += indexes.facts_of(entry).gaps
        after = page[-1].seq
    return found


def missing_among(seqs: Iterable[int]) -> list[Range]:
    """Return the ranges, from and to, that are missing in a sequence from 1 on."""
    found: list[Range] = []
    expected = 1
    for seq in seqs:
        if seq > expected:
            found.append((expected, seq - 1))
        expected = seq + 1
    return found


async def _escalate(context: Context, run_id: str, seq: int, damage: JournalCorrupted) -> None:
    log.error("%s", damage)
    rows = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=_NO_LIMIT)
    later = [row for row in rows if row.seq >= seq] or rows[:1]
    if later:
        await record_damage(context, later[-1:], damage, 0)
    await sweeper.block_damaged(context, run_id, damage)


def _words(found: Sequence[Range]) -> str:
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in found[:3]]
    more = ", …" if len(found) > 3 else ""
    is_one = len(found) == 1 and found[0][0] == found[0][1]
    return (
        f"{'entry' if is_one else 'entries'} {', '.join(shown)}{more} {'is' if is_one else 'are'}"
    )
