"""Versions: load the state of a run at any of them, with every entry checked against the chain.

A load verifies every entry it uses against its link, and that no version is missing between them:
it returns the state that was saved, or raises CheckpointCorrupted naming the entry.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.reading import proved_checkpoints
from holdfast.engine.reading.log_views import LogFold, LogView, NamedEntries, view_of
from holdfast.errors import (
    CheckpointCorrupted,
    CheckpointFinal,
    CheckpointNotFound,
    IndexCorrupted,
    IntegrityError,
)
from holdfast.kernel import checkpoints, indexes, journal
from holdfast.kernel.checkpoints import Checkpoint, Delta
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.state import Parts
from holdfast.stores.reads import Linked

_NO_LIMIT = 2**62


class Newest(NamedTuple):
    """The newest state of a run, and the checkpoint that saved it, if there is one."""

    parts: Parts
    checkpoint: Checkpoint | None


async def load_parts(context: Context, checkpoint: Checkpoint) -> Parts:
    """Return the parts of the state at a checkpoint, every entry used checked against the chain."""
    what = f"version {checkpoint.version} of run {checkpoint.run_id}"
    with _explained(what):
        loading = _Loading(context, checkpoint.run_id)
        try:
            await loading.load(checkpoint.base_seq, checkpoint.seq)
        except (IntegrityError, msgspec.MsgspecError, LookupError, AssertionError):
            await proved_checkpoints.check_rows(context, [checkpoint])
            raise
        await proved_checkpoints.check_rows(context, [checkpoint])
        if loading.parts.version != checkpoint.version:
            raise IntegrityError(f"version {checkpoint.version} is missing")
        return loading.parts


async def load_newest(context: Context, run_id: str) -> Newest:
    """Return the newest state by the journal; the index only says where to begin reading."""
    known = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
    what = f"version {known[0].version} of run {run_id}" if known else f"the state of run {run_id}"
    with _explained(what):
        loading = _Loading(context, run_id)
        newest = await loading.load(known[0].base_seq if known else 0, _NO_LIMIT)
        if known and loading.parts.version < known[0].version:
            raise IntegrityError(f"version {known[0].version} is missing")
        if known and known[0] != newest:
            await proved_checkpoints.check_rows(context, known)
        return Newest(loading.parts, newest or (known[0] if known else None))


async def load_newest_folded(context: Context, run_id: str, upto: int) -> tuple[Newest, LogFold]:
    """Return the newest state at a seq, and the latest versions before it with full items."""
    known = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
    with _explained(f"the state of run {run_id}"):
        fold = LogFold()
        loading = _Loading(context, run_id, fold)
        newest = await loading.load(known[0].base_seq if known else 0, upto)
        if known and known[0] != newest:
            await proved_checkpoints.check_rows(context, known)
        refs = fold.refs()
        missing = sorted({ref.seq for ref in refs} - loading.parts.bodies.keys())
        bodies = {e.seq: journal.body_of(e) for e in await load_entries(context, run_id, missing)}
        fold.resolve(NamedEntries({**bodies, **loading.parts.bodies}).raw_of)
        return Newest(loading.parts, newest), fold


async def load_views(
    context: Context, run_id: str, versions: Collection[int]
) -> dict[int, LogView]:
    """Return the states at versions with every item in full."""
    first, last = min(versions), max(versions)
    page = await context.store.checkpoints.page(run_id, before=last + 1, limit=last - first + 1)
    found = [row for row in reversed(page) if row.version in versions]
    await proved_checkpoints.check_rows(context, found)
    if len(found) < len(versions):
        raise CheckpointNotFound(f"run {run_id} does not have all of these versions any more")
    # A version that was given a separate base begins and ends with it.
    apart = [[row] for row in found if row.base_seq > row.seq]
    together = [row for row in found if row.base_seq < row.seq]
    views: dict[int, LogView] = {}
    for some in [*apart, together] if together else apart:
        with _explained(f"the state of run {run_id}"):
            views |= await _views_of(context, run_id, some)
    return views


async def _views_of(
    context: Context, run_id: str, rows: Sequence[Checkpoint]
) -> dict[int, LogView]:
    fold = LogFold(only=frozenset(row.version for row in rows))
    loading = _Loading(context, run_id, fold)
    await loading.load(rows[0].base_seq, rows[-1].seq)
    missing = sorted({ref.seq for ref in fold.refs()})
    bodies = {e.seq: journal.body_of(e) for e in await load_entries(context, run_id, missing)}
    fold.resolve(NamedEntries(bodies).raw_of)
    return dict(fold.views)


async def load_entries(context: Context, run_id: str, seqs: Sequence[int]) -> list[Entry]:
    """Return entries by their seqs, each checked against the chain."""
    if not seqs:
        return []
    found = await context.store.journal.named(run_id, sorted(seqs))
    if missing := set(seqs) - {linked.entry.seq for linked in found}:
        raise IntegrityError(f"entry {min(missing)} of run {run_id} is missing")
    for linked in found:
        checked_body(linked)
    return [linked.entry for linked in found]


@contextmanager
def _explained(what: str) -> Generator[None]:
    try:
        yield
    except IndexCorrupted:
        raise
    except (IntegrityError, msgspec.MsgspecError, LookupError, AssertionError) as error:
        raise CheckpointCorrupted(
            f"{what} cannot be loaded: {error}; `holdfast audit verify` names every damaged entry"
        ) from error


class _Loading:
    """One load: the base, the deltas after it, and the entries they name."""

    def __init__(self, context: Context, run_id: str, fold: LogFold | None = None) -> None:
        self._journal = context.store.journal
        self._run_id = run_id
        self._fold = fold
        self.parts = Parts()

    async def load(self, base_seq: int, upto: int) -> Checkpoint | None:
        """Fold every checkpoint from a base (0: the beginning) to a seq. Returns the last one."""
        parts, newest = self.parts, None
        if base_seq:
            await self._begin_at_base(base_seq)
        for linked in await self._journal.checkpoints(self._run_id, after=base_seq, upto=upto):
            body = checked_body(linked)
            facts = indexes.facts_of(linked.entry)
            if facts.version != parts.version + 1:
                raise IntegrityError(f"version {parts.version + 1} is missing")
            delta = checkpoints.decode_delta(body)
            at = linked.entry.position
            parts.apply(delta, at=at, version=facts.version, size=len(body))
            newest = (linked.entry, facts)
            if self._fold is not None:
                self._fold.apply(facts.version, delta)
        for linked in await self._named(parts.named_entries(), None):
            parts.bodies[linked.entry.seq] = checked_body(linked)
        return checkpoints.row_of(*newest) if newest else None

    async def _begin_at_base(self, seq: int) -> None:
        (linked,) = await self._named({seq}, Kind.STATE_BASE)
        body = checked_body(linked)
        base = checkpoints.decode_base(body)
        sources: dict[int, Delta] = {}
        wanted = {segment.seq for segments in base.logs.values() for segment in segments}
        for source in await self._named(wanted, Kind.CHECKPOINT_CREATED):
            source_body = checked_body(source)
            sources[source.entry.seq] = checkpoints.decode_delta(source_body)
            self.parts.name_source(source.entry.seq, len(source_body))
        self.parts.apply_base(base, sources, seq=seq, size=len(body))
        self.parts.version = indexes.facts_of(linked.entry).version
        if self._fold is not None:
            self._fold.begin(self.parts.version, view_of(self.parts))

    async def _named(self, seqs: set[int], kind: Kind | None) -> list[Linked]:
        if not seqs:
            return []
        found = await self._journal.named(self._run_id, sorted(seqs))
        right = {linked.entry.seq for linked in found if kind in (None, linked.entry.kind)}
        if missing := seqs - right:
            raise IntegrityError(f"entry {min(missing)} is missing")
        return found


def checked_body(linked: Linked) -> bytes:
    """Return the body of an entry. Raises IntegrityError if it does not fit the chain."""
    entry = linked.entry
    previous = journal.GENESIS if entry.seq == 1 else linked.previous
    if previous is None or not journal.is_intact(entry, previous):
        raise IntegrityError(f"entry {entry.seq} or the one before it was changed")
    return journal.body_of(entry)


async def check_not_final(context: Context, checkpoint: Checkpoint) -> None:
    """Raise CheckpointFinal for a version that must not be changed or removed.

    The journal decides, not the rows.
    """
    await proved_checkpoints.check_rows(context, [checkpoint])
    linked = await proved_checkpoints.is_final(context, checkpoint)
    if linked is not None:
        status = indexes.facts_of(linked.entry).status
        raise CheckpointFinal(
            f"checkpoint {checkpoint.checkpoint_id} (version {checkpoint.version} of run "
            f"{checkpoint.run_id}) is final: it was finalized as {status!r} by entry "
            f"{linked.entry.seq}, and nothing of it changes any more"
        )
