"""Compare index rows of checkpoints with the journal: a read returns what the chain says.

A row leads to the entry that made it; what came later is found in the journal by the checkpoint's
id, so a row cannot hide it. A row that is missing is noticed by what is newer, or beside it. Cost
follows the rows that are read, and what came after the newest of them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.engine.context import Context
from holdfast.errors import IndexCorrupted, IntegrityError, SchemaMismatch
from holdfast.kernel import checkpoints, indexes, journal, marks, records
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Header, Kind
from holdfast.kernel.records import PutRecord, RecordRow
from holdfast.stores.reads import CheckpointPosition, FoundRecord, Linked

_NO_LIMIT: Final = 2**62


class CheckpointEntries:
    """The journal's entries about checkpoints, by the checkpoints' ids."""

    def __init__(self, found: Iterable[Linked]) -> None:
        self._by_id: dict[UUID, dict[str, Linked]] = {}
        for linked in found:
            entry = linked.entry
            if entry.kind not in _TELLING:
                continue
            try:
                subject = _subject(entry)
            except (IntegrityError, SchemaMismatch):
                continue  # a reader of it finds it missing, and reports why
            self._by_id.setdefault(subject, {})[entry.kind] = linked

    def of(self, checkpoint_id: UUID) -> dict[str, Linked]:
        return self._by_id.get(checkpoint_id, {})


_TELLING: Final = frozenset(
    {
        Kind.CHECKPOINT_CREATED,
        Kind.CHECKPOINT_UPDATED,
        Kind.CHECKPOINT_FINALIZED,
        Kind.CHECKPOINT_LINKED,
        Kind.CHECKPOINT_DELETED,
    }
)


async def telling(
    context: Context, found: Iterable[FoundRecord], *, with_bodies: bool = True
) -> CheckpointEntries:
    places = [
        CheckpointPosition(c.run_id, c.seq, c.checkpoint_id)
        for c in (each.checkpoint for each in found)
    ]
    return CheckpointEntries(await context.store.journal.telling(places, with_bodies=with_bodies))


async def check_record(
    context: Context, found: FoundRecord, by_id: CheckpointEntries, *, with_bodies: bool = True
) -> None:
    """Raise IndexCorrupted unless the rows of a checkpoint say what the journal does.

    Raises IntegrityError if its entry is missing, or, with bodies, if an entry was changed.
    """
    row, own = found.checkpoint, by_id.of(found.checkpoint.checkpoint_id)
    created = own.get(Kind.CHECKPOINT_CREATED)
    if created is None:
        raise await _astray(context, row)
    if with_bodies:
        for linked in own.values():
            check_intact(linked)
    if Kind.CHECKPOINT_DELETED in own:
        raise wrong(row, "is of a version that has a tombstone")
    _check_row(row, created.entry)
    expected = record_row(own, row)
    if expected != found.row:
        raise wrong(row, f"has another {_difference(expected, found.row)} than the journal")


def record_row(own: dict[str, Linked], row: Checkpoint) -> RecordRow:
    """Return the row of a checkpoint's record by the journal."""
    built = RecordRow(tenant=row.tenant, run_id=row.run_id, version=row.version)
    for kind in _IN_ORDER:
        if kind not in own:
            continue
        entry = own[kind].entry
        facts = indexes.facts_of(entry)
        if isinstance(facts, checkpoints.CheckpointCreated):
            if facts.record is not None:
                built = records.applied(built, records.put_of(entry, facts.version, facts.record))
            continue
        for change in records.changes_of(entry, facts):
            if isinstance(change, PutRecord):
                built = records.applied(built, change)
    return built


_IN_ORDER: Final = (
    Kind.CHECKPOINT_CREATED,
    Kind.CHECKPOINT_UPDATED,
    Kind.CHECKPOINT_LINKED,
    Kind.CHECKPOINT_FINALIZED,
)


def check_intact(linked: Linked) -> None:
    """Raise IntegrityError unless an entry fits the chain."""
    if not is_intact(linked):
        raise IntegrityError(f"entry {linked.entry.seq} or the one before it was changed")


def is_intact(linked: Linked) -> bool:
    """Return whether an entry fits the chain."""
    previous = journal.GENESIS if linked.entry.seq == 1 else linked.previous
    return previous is not None and journal.is_intact(linked.entry, previous)


async def is_final(context: Context, checkpoint: Checkpoint) -> Linked | None:
    """Return the entry that makes a checkpoint final, if the journal has one."""
    place = CheckpointPosition(checkpoint.run_id, checkpoint.seq, checkpoint.checkpoint_id)
    by_id = CheckpointEntries(await context.store.journal.telling([place], with_bodies=False))
    return by_id.of(checkpoint.checkpoint_id).get(Kind.CHECKPOINT_FINALIZED)


async def final_among(context: Context, rows: Sequence[Checkpoint]) -> set[int]:
    """Return those versions that are final by the journal."""
    places = [CheckpointPosition(row.run_id, row.seq, row.checkpoint_id) for row in rows]
    by_id = CheckpointEntries(await context.store.journal.telling(places, with_bodies=False))
    return {row.version for row in rows if Kind.CHECKPOINT_FINALIZED in by_id.of(row.checkpoint_id)}


async def check_rows(context: Context, rows: Sequence[Checkpoint]) -> None:
    """Raise IndexCorrupted unless rows of checkpoints say what the journal does."""
    if not rows:
        return
    headers = await context.store.journal.headers([(row.run_id, row.seq) for row in rows])
    entries = {(header.run_id, header.seq): header for header in headers}
    for row in rows:
        entry = entries.get((row.run_id, row.seq))
        if entry is None or entry.kind != Kind.CHECKPOINT_CREATED:
            raise await _astray(context, row)
        try:
            _check_row(row, entry)
        except (IntegrityError, SchemaMismatch):
            await _check_entry(context, row)
            raise
    await _check_bases(context, [(row, entries[row.run_id, row.seq]) for row in rows])


async def _check_bases(context: Context, rows: Iterable[tuple[Checkpoint, Header]]) -> None:
    """Raise IndexCorrupted where loading would begin at another base than the journal says."""
    for row, entry in rows:
        if row.base_seq == indexes.facts_of(entry).base_seq:
            continue
        moved = Tombstones(await context.store.journal.tombstones(row.run_id)).bases
        if row.base_seq != moved.get(row.version):
            raise wrong(row, "has another base_seq than the journal")


class Tombstones:
    """Which versions of a run the journal says were removed, and the new bases of others."""

    def __init__(self, found: Iterable[Header]) -> None:
        self._gone: list[tuple[int, int]] = []
        self.bases: dict[int, int] = {}
        for entry in found:
            match indexes.facts_of(entry):
                case checkpoints.Deleted(_, version):
                    self._gone.append((version, version))
                case marks.Pruned(versions, _, rebased):
                    self._gone += versions
                    self.bases |= dict(rebased)
                case _:
                    pass

    def has(self, version: int) -> bool:
        return any(first <= version <= last for first, last in self._gone)


async def check_page(
    context: Context,
    run_id: str,
    rows: Sequence[Checkpoint],
    *,
    before: int,
    limit: int,
    down_to: int = 1,
) -> None:
    """Raise IndexCorrupted if a version is missing between or beside the rows of a listing.

    It is newest first, begins below version `before`, and would continue to `down_to`.
    """
    top = before - 1
    if before == _NO_LIMIT:
        top = await _newest_version(context, run_id, rows[0] if rows else None)
    missing: list[int] = []
    expected = top
    for row in rows:
        missing += range(row.version + 1, expected + 1)
        expected = row.version - 1
    if len(rows) < limit:
        missing += range(down_to, expected + 1)
    if not missing:
        return
    tombstones = Tombstones(await context.store.journal.tombstones(run_id))
    for version in missing:
        if tombstones.has(version):
            continue
        # It may have been stored after the rows were read: then its row is there now.
        if await context.store.checkpoints.get(run_id, version) is None:
            raise _missing(run_id, version)


async def check_parents(context: Context, found: Sequence[FoundRecord]) -> None:
    """Raise IndexCorrupted unless the parents that rows name are those in the journal."""
    known = {(each.checkpoint.run_id, each.checkpoint.version): each for each in found}
    asked: list[FoundRecord] = []
    for each in found:
        if each.row.linked or not each.checkpoint.parent:
            continue
        own = known.get((each.checkpoint.run_id, each.checkpoint.parent))
        if own is None or str(own.checkpoint.checkpoint_id) != each.parent_id:
            asked.append(each)
    places = [(each.checkpoint.run_id, each.parent_seq) for each in asked if each.parent_seq]
    headers = await context.store.journal.headers(places) if places else []
    entries = {(header.run_id, header.seq): header for header in headers}
    for each in asked:
        row = each.checkpoint
        if not each.parent_seq:
            tombstones = Tombstones(await context.store.journal.tombstones(row.run_id))
            if not tombstones.has(row.parent):
                raise _missing(row.run_id, row.parent)
            continue
        entry = entries.get((row.run_id, each.parent_seq))
        facts = indexes.facts_of(entry) if entry else None
        parent_facts = facts if isinstance(facts, checkpoints.CheckpointCreated) else None
        named = (parent_facts.version, str(parent_facts.checkpoint_id)) if parent_facts else None
        if named != (row.parent, each.parent_id):
            raise wrong(row, "has a parent that the journal does not tell of")


async def _newest_version(context: Context, run_id: str, newest: Checkpoint | None) -> int:
    """Return the newest version by the journal, reading what came after the newest row."""
    after, version = (newest.seq, newest.version) if newest else (0, 0)
    for linked in await context.store.journal.checkpoints(run_id, after=after, upto=_NO_LIMIT):
        version = max(version, indexes.facts_of(linked.entry).version)
    return version


async def check_newest(context: Context, run_id: str, newest: Checkpoint | None) -> None:
    """Raise IndexCorrupted unless a row is that of the newest checkpoint in the journal."""
    rows = [newest] if newest else []
    await check_page(context, run_id, rows, before=_NO_LIMIT, limit=1)


async def check_records(context: Context, found: Sequence[FoundRecord]) -> None:
    """Raise IndexCorrupted unless the rows of checkpoints and records say what the journal does."""
    by_id = await telling(context, found, with_bodies=False)
    for each in found:
        try:
            await check_record(context, each, by_id, with_bodies=False)
        except IndexCorrupted:
            again = await context.store.records.by_id(each.checkpoint.checkpoint_id)
            if again is None or again == each:
                raise
    await check_bases(context, found, by_id)


async def check_bases(
    context: Context, found: Sequence[FoundRecord], by_id: CheckpointEntries
) -> None:
    """Raise IndexCorrupted where loading would begin at another base than the journal says."""
    rows = [each.checkpoint for each in found]
    entries = [by_id.of(row.checkpoint_id).get(Kind.CHECKPOINT_CREATED) for row in rows]
    pairs = zip(rows, entries, strict=True)
    await _check_bases(context, [(row, linked.entry) for row, linked in pairs if linked])


async def check_version_absent(context: Context, run_id: str, version: int) -> None:
    """Raise IndexCorrupted if a version that has no row is in the journal, without a tombstone."""
    newest = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
    top = await _newest_version(context, run_id, newest[0] if newest else None)
    if version > top:
        return
    await check_page(context, run_id, [], before=version + 1, limit=1, down_to=version)


async def check_absent(context: Context, checkpoint_id: UUID) -> None:
    """Raise IndexCorrupted if the journal has a checkpoint without a row, and no tombstone."""
    linked = await context.store.journal.told_checkpoint(checkpoint_id)
    if linked is None:
        return
    version = indexes.facts_of(linked.entry).version
    run_id = linked.entry.run_id
    if not Tombstones(await context.store.journal.tombstones(run_id)).has(version):
        raise _missing(run_id, version)


async def _astray(context: Context, row: Checkpoint) -> IntegrityError:
    """Return the error for a row that does not lead to its checkpoint."""
    try:
        await _check_entry(context, row)
    except IntegrityError as error:
        return error
    return wrong(row, f"leads to entry {row.seq}, which is not its checkpoint")


async def _check_entry(context: Context, row: Checkpoint) -> None:
    """Raise IntegrityError if the entry that a row leads to is missing, or was changed."""
    found = await context.store.journal.named(row.run_id, [row.seq])
    if found:
        check_intact(found[0])
        return
    head = await context.store.journal.head(row.run_id)
    if head is not None and 0 < row.seq < head.seq:
        raise IntegrityError(f"entry {row.seq} is missing")


def _check_row(row: Checkpoint, entry: Header) -> None:
    expected = checkpoints.row_of(entry, indexes.facts_of(entry))
    # Its base may have been moved; see `check_rows`.
    expected = msgspec.structs.replace(expected, base_seq=row.base_seq)
    if expected != row:
        raise wrong(row, f"has another {_difference(expected, row)} than the journal")


def _subject(entry: Header) -> UUID:
    facts: Any = indexes.facts_of(entry)
    return facts.child_id if isinstance(facts, records.LinkedTo) else facts.checkpoint_id


def _difference(expected: msgspec.Struct, found: msgspec.Struct) -> str:
    return ", ".join(
        name
        for name in expected.__struct_fields__
        if getattr(expected, name) != getattr(found, name)
    )


def wrong(row: Checkpoint, what: str) -> IndexCorrupted:
    """Return the error for a row that differs from the journal."""
    return IndexCorrupted(
        f"the index row of version {row.version} of run {row.run_id} {what}; nothing of it was "
        f"used, `holdfast store reindex {row.run_id}` makes the rows anew"
    )


def _missing(run_id: str, version: int) -> IndexCorrupted:
    return IndexCorrupted(
        f"the index row of version {version} of run {run_id} is missing, and the journal tells of "
        f"no tombstone; `holdfast store reindex {run_id}` makes the rows anew"
    )
