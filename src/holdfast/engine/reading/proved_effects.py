"""Compare rows of effects with the journal: when a run goes back, and when a key is looked up.

A row that was removed, or that says an effect was not done, would let it be done again. Where an
entry is damaged or missing, the row is used instead.
"""

from typing import Final
from uuid import UUID

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.reading.proved_checkpoints import is_intact
from holdfast.errors import IndexCorrupted, IntegrityError, SchemaMismatch
from holdfast.kernel import effects, indexes
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Header, Kind
from holdfast.stores.reads import Linked

_PAGE: Final = 1000


async def effects_after(context: Context, run_id: str, *, seq: int) -> list[Effect]:
    """Return the effects that a run issued after an entry, in that order.

    Raises IndexCorrupted if the rows differ from intact entries.
    """
    rows, journaled = await _rows(context, run_id, seq), await _journal_rows(context, run_id, seq)
    while rows != (again := await _rows(context, run_id, seq)):  # the run is at work meanwhile
        rows, journaled = again, await _journal_rows(context, run_id, seq)
    for effect_id in rows.keys() | journaled.keys():
        if rows.get(effect_id) != journaled.get(effect_id):
            await _check_damaged(context, run_id, rows.get(effect_id), journaled.get(effect_id))
    found = {**journaled, **rows}
    return sorted(found.values(), key=lambda effect: effect.issued_seq)


async def check_row(context: Context, row: Effect) -> None:
    """Raise IndexCorrupted if a row differs from the intact entries that it names."""
    entries = await _intact_entries(context, row.run_id, [row])
    if entries is None:
        return
    journaled: dict[UUID, Effect] = {}
    for linked in entries:
        _apply(journaled, linked.entry)
    if journaled.get(row.effect_id) != row:
        raise _wrong(row, "does not say what the journal does")


async def check_key_is_free(context: Context, key: str) -> None:
    """Raise IndexCorrupted if the journal has an intent with a key that no row holds.

    The effect's row was then removed, or changed to say that it was not done.
    """
    for entry in await context.store.effects.intents(key):
        issued = indexes.effect_of(entry, indexes.facts_of(entry))
        row = await context.store.effects.get(issued.effect_id)
        if row is None:
            raise _wrong(issued, "is missing")
        await check_row(context, row)
        if row.status is effects.EffectStatus.NOT_DONE:
            await _check_not_done(context, row)


async def _check_not_done(context: Context, row: Effect) -> None:
    """Raise IntegrityError if the entry that says an effect was not done is damaged or missing."""
    if await _intact_entries(context, row.run_id, [row]) is None:
        raise IntegrityError(
            f"an entry of run {row.run_id} that tells of effect {row.effect_id} ({row.tool}) is "
            "damaged: whether it happened cannot be proven, and it was not done again"
        )


async def _rows(context: Context, run_id: str, seq: int) -> dict[UUID, Effect]:
    stored = await context.store.effects.of_run(run_id)
    return {effect.effect_id: effect for effect in stored if effect.issued_seq > seq}


async def _journal_rows(context: Context, run_id: str, seq: int) -> dict[UUID, Effect]:
    """Return the rows that the journal yields."""
    found: dict[UUID, Effect] = {}
    after = seq
    while page := await context.store.journal.headers_after(run_id, after=after, limit=_PAGE):
        for entry in page:
            _apply(found, entry)
        after = page[-1].seq
    return found


def _apply(found: dict[UUID, Effect], entry: Header) -> None:
    if entry.kind != Kind.EFFECT_ISSUED and entry.kind not in effects.STATUS_OF:
        return
    try:
        facts = indexes.facts_of(entry)
    except (IntegrityError, SchemaMismatch):
        return  # the row is used instead
    if isinstance(facts, effects.Issued):
        found[facts.effect_id] = indexes.effect_of(entry, facts)
    elif facts.effect_id in found:
        found[facts.effect_id] = msgspec.structs.replace(
            found[facts.effect_id],
            status=effects.STATUS_OF[Kind(entry.kind)],
            result_seq=entry.seq,
            settled_at=entry.at,
        )


async def _check_damaged(
    context: Context, run_id: str, row: Effect | None, journaled: Effect | None
) -> None:
    """Raise IndexCorrupted unless an entry behind a difference is damaged, or missing."""
    known = [effect for effect in (row, journaled) if effect is not None]
    if await _intact_entries(context, run_id, known) is None:
        return
    what = "is missing" if row is None else "does not say what the journal does"
    raise _wrong(known[0], what)


async def _intact_entries(
    context: Context, run_id: str, known: list[Effect]
) -> list[Linked] | None:
    """Return the entries that rows name; None if one is damaged, or missing in the journal."""
    seqs = {seq for effect in known for seq in (effect.issued_seq, effect.result_seq) if seq}
    entries = await context.store.journal.named(run_id, sorted(seqs))
    if len(entries) < len(seqs):
        head = await context.store.journal.head(run_id)
        if head is not None and len(entries) < len([seq for seq in seqs if seq <= head.seq]):
            return None
    return entries if all(map(is_intact, entries)) else None


def _wrong(effect: Effect, what: str) -> IndexCorrupted:
    run_id = effect.run_id
    return IndexCorrupted(
        f"the index row of effect {effect.effect_id} ({effect.tool}) of run {run_id} {what}; "
        f"nothing was done, `holdfast store reindex {run_id}` makes the rows anew"
    )
