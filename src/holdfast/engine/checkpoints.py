"""Checkpoints: loading any version, history, search, and what differs between two versions.

A load verifies every entry it uses against its link, and that no version is missing between them:
it returns the state that was saved, or raises CheckpointCorrupted naming the entry.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast import clock, names
from holdfast.engine import proving
from holdfast.engine.at_head import decide_at_head
from holdfast.engine.context import Context
from holdfast.engine.folding import Fold, Named, View, view_of
from holdfast.errors import (
    CheckpointCorrupted,
    CheckpointFinal,
    CheckpointNotFound,
    IllegalMove,
    IndexCorrupted,
    IntegrityError,
    RunNotFound,
)
from holdfast.kernel import checkpoints, indexes, journal, state
from holdfast.kernel.checkpoints import Checkpoint, Delta
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.state import Parts, StateDiff
from holdfast.stores.contract import Decision, Snapshot
from holdfast.stores.reads import CheckpointFilter, FoundRecord, Linked, RunAtHead
from holdfast.telemetry import CHECKPOINT_CORRUPTED

_NO_LIMIT = 2**62


class State(msgspec.Struct, frozen=True):
    """A run's state at one version: `state["transcript"]` is a part of it."""

    run_id: str
    version: int
    checkpoint_id: UUID | None
    parts: dict[str, Any]
    skipped: tuple[UUID, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.parts.get(name, default)


class ToldCheckpoint(Checkpoint, frozen=True, kw_only=True, gc=False):
    """A checkpoint with its record's phase and status as they are now, and whether it is final."""

    is_final: bool = False


class Checkpoints:
    """Reading what was saved."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def load(self, run_id: str, version: int | None = None) -> State:
        """The state at a version, the latest unless one is named.

        A run without checkpoints has an empty state of version 0. Raises CheckpointCorrupted rather
        than return anything that was not saved.
        """
        if version is None:
            newest = await load_newest(self._context, names.check(run_id, what="run id"))
            if newest.checkpoint is not None:
                return _state(newest.checkpoint, newest.parts)
        checkpoint = await self._find(run_id, version)
        if checkpoint is None:
            return State(run_id, 0, None, {})
        parts = await load_parts(self._context, checkpoint)
        return _state(checkpoint, parts)

    async def load_newest_intact(self, run_id: str) -> State:
        """The newest state that verifies; `skipped` names the damaged ones above it.

        Damage is put on the record as CHECKPOINT_CORRUPTED before the older state is returned.
        """
        skipped: list[Checkpoint] = []
        error: IntegrityError | None = None
        before = _NO_LIMIT
        while True:
            found = await self._context.store.checkpoints.page(run_id, before=before, limit=1)
            await proving.check_page(self._context, run_id, found, before=before, limit=1)
            if not found:
                break
            checkpoint = found[0]
            try:
                parts = await load_parts(self._context, checkpoint)
            except IndexCorrupted:
                raise  # the version is whole
            except IntegrityError as damage:
                skipped.append(checkpoint)
                error = error or damage
                before = checkpoint.version
                continue
            if error is not None:
                await record_damage(self._context, skipped, error, checkpoint.version)
            return _state(checkpoint, parts, tuple(c.checkpoint_id for c in skipped))
        if error is not None:
            await record_damage(self._context, skipped, error, 0)
            raise error
        return await self.load(run_id)

    async def get(self, checkpoint_id: UUID | str) -> Checkpoint:
        """A checkpoint by its id."""
        try:
            wanted = checkpoint_id if isinstance(checkpoint_id, UUID) else UUID(checkpoint_id)
        except ValueError:
            raise CheckpointNotFound(f"{checkpoint_id!r} is not a checkpoint's id") from None
        found = await self._context.store.checkpoints.by_id(wanted)
        if found is None:
            await proving.check_absent(self._context, wanted)
            raise CheckpointNotFound(f"there is no checkpoint {wanted}")
        await proving.check_rows(self._context, [found])
        return found

    async def history(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[Checkpoint]:
        """A run's checkpoints, newest first; `before` a version continues a listing."""
        newest = _before(run_id, limit, before)
        found = await self._context.store.checkpoints.page(run_id, before=newest, limit=limit)
        await proving.check_rows(self._context, found)
        await proving.check_page(self._context, run_id, found, before=newest, limit=limit)
        return found

    async def told(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[ToldCheckpoint]:
        """The same with what their records have come to since: final, and with which status."""
        newest = _before(run_id, limit, before)
        found = await self._context.store.records.page(run_id, before=newest, limit=limit)
        await proving.check_records(self._context, found)
        rows = [each.checkpoint for each in found]
        await proving.check_page(self._context, run_id, rows, before=newest, limit=limit)
        return list(map(_told, found))

    async def search(
        self,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        phase: str | None = None,
        status: str | None = None,
        label: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        before: UUID | None = None,
    ) -> list[Checkpoint]:
        """Checkpoints over all runs, newest first; `before` an id continues a listing."""
        for what, wanted in {"run id": run_id, "agent": agent, "phase": phase}.items():
            names.check_optional(wanted, what=what)
        for what, wanted in {"status": status, "label": label}.items():
            names.check_optional(wanted, what=what)
        names.check_count(limit, what="limit")
        found = await self._context.store.checkpoints.search(
            CheckpointFilter(
                run_id=run_id,
                agent=agent,
                phase=phase,
                status=status,
                label=label,
                since=None if since is None else clock.from_datetime(since),
                until=None if until is None else clock.from_datetime(until),
                limit=limit,
                before=before,
            )
        )
        await proving.check_rows(self._context, found)
        return found

    async def delete(self, run_id: str, version: int, *, by: str = "", note: str = "") -> None:
        """Put a tombstone on a version: it is not listed and not loaded any more, later ones are.

        What it stored stays in the journal, and the chain whole. The newest version stays.
        """
        checkpoint = await self._find(run_id, version)
        if checkpoint is None:
            raise CheckpointNotFound("there is no version 0 to delete")
        actor = by and names.check(by, what="by")
        facts = checkpoints.Deleted(
            checkpoint.checkpoint_id, version, names.check_text(note, what="note")
        )

        async def decide(head: RunAtHead, now: int) -> Sequence[Draft]:
            await check_not_final(self._context, checkpoint)
            newest = await self._context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
            await proving.check_newest(self._context, run_id, newest[0] if newest else None)
            if not newest or newest[0].version <= version:
                raise IllegalMove(
                    f"version {version} is the newest of run {run_id}, which goes on from it"
                )
            return [Draft(Kind.CHECKPOINT_DELETED, facts)]

        await decide_at_head(self._context, run_id, decide, by=actor)

    async def diff(self, run_id: str, before: int, after: int) -> StateDiff:
        """What changed between two versions of a run."""
        old = await self.load(run_id, before)
        new = await self.load(run_id, after)
        return state.diff(old.parts, new.parts)

    async def _find(self, run_id: str, version: int | None) -> Checkpoint | None:
        names.check(run_id, what="run id")
        if version is not None and names.check_count(version, what="version") > 0:
            checkpoint = await self._context.store.checkpoints.get(run_id, version)
            if checkpoint is not None:
                return checkpoint
            await proving.check_version_absent(self._context, run_id, version)
        if await self._context.store.journal.head(run_id) is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        if version:
            raise CheckpointNotFound(f"run {run_id} has no version {version}")
        return None


def _before(run_id: str, limit: int, before: int | None) -> int:
    """Below which version a listing begins, if what was asked for can be."""
    names.check(run_id, what="run id")
    names.check_count(limit, what="limit")
    return _NO_LIMIT if before is None else names.check_count(before, what="before")


def _told(found: FoundRecord) -> ToldCheckpoint:
    checkpoint, row = found.checkpoint, found.row
    fields = msgspec.structs.asdict(checkpoint)
    fields["phase"] = row.phase or checkpoint.phase
    fields["status"] = row.status or checkpoint.status
    return ToldCheckpoint(**fields, is_final=row.is_final)


async def check_not_final(context: Context, checkpoint: Checkpoint) -> None:
    """Raise CheckpointFinal for a version that is not to be changed or taken away.

    The journal says so, whatever the rows do.
    """
    await proving.check_rows(context, [checkpoint])
    linked = await proving.is_final(context, checkpoint)
    if linked is not None:
        status = indexes.facts_of(linked.entry).status
        raise CheckpointFinal(
            f"checkpoint {checkpoint.checkpoint_id} (version {checkpoint.version} of run "
            f"{checkpoint.run_id}) is final: it was finalized as {status!r} by entry "
            f"{linked.entry.seq}, and nothing of it changes any more"
        )


async def record_damage(
    context: Context, skipped: Sequence[Checkpoint], error: IntegrityError, fell_back_to: int
) -> None:
    """Put on the record that a read found versions damaged, the newest first; each once."""
    context.telemetry.count(CHECKPOINT_CORRUPTED, len(skipped))
    later = await context.store.journal.read(
        skipped[0].run_id, after=skipped[-1].seq, limit=_NO_LIMIT
    )
    known = {
        indexes.facts_of(entry).checkpoint_id
        for entry in later
        if entry.kind == Kind.CHECKPOINT_CORRUPTED
    }
    new = [checkpoint for checkpoint in skipped if checkpoint.checkpoint_id not in known]
    if not new:
        return

    def decide(snapshot: Snapshot) -> Decision:
        drafts = tuple(
            Draft(
                Kind.CHECKPOINT_CORRUPTED,
                checkpoints.Corrupted(c.checkpoint_id, c.version, str(error), fell_back_to),
            )
            for c in new
        )
        return Decision(None, drafts)

    await context.decide_late(skipped[0].run_id, decide)


def _state(checkpoint: Checkpoint, parts: Parts, skipped: tuple[UUID, ...] = ()) -> State:
    return State(
        checkpoint.run_id, checkpoint.version, checkpoint.checkpoint_id, parts.decode(), skipped
    )


class Newest(NamedTuple):
    """The newest state of a run, and the checkpoint that saved it, if there is one."""

    parts: Parts
    checkpoint: Checkpoint | None


async def load_parts(context: Context, checkpoint: Checkpoint) -> Parts:
    """The parts of the state at a checkpoint, every entry used checked against the chain."""
    what = f"version {checkpoint.version} of run {checkpoint.run_id}"
    with _explained(what):
        loading = _Loading(context, checkpoint.run_id)
        try:
            await loading.load(checkpoint.base_seq, checkpoint.seq)
        except (IntegrityError, msgspec.MsgspecError, LookupError, AssertionError):
            await proving.check_rows(context, [checkpoint])
            raise
        await proving.check_rows(context, [checkpoint])
        if loading.parts.version != checkpoint.version:
            raise IntegrityError(f"version {checkpoint.version} is missing")
        return loading.parts


async def load_newest(context: Context, run_id: str) -> Newest:
    """The newest state as the journal tells it; the index only says where to begin reading."""
    known = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
    what = f"version {known[0].version} of run {run_id}" if known else f"the state of run {run_id}"
    with _explained(what):
        loading = _Loading(context, run_id)
        newest = await loading.load(known[0].base_seq if known else 0, _NO_LIMIT)
        if known and loading.parts.version < known[0].version:
            raise IntegrityError(f"version {known[0].version} is missing")
        if known and known[0] != newest:
            await proving.check_rows(context, known)
        return Newest(loading.parts, newest or (known[0] if known else None))


async def load_newest_folded(context: Context, run_id: str, upto: int) -> tuple[Newest, Fold]:
    """The newest state at a seq, and the latest versions before it with every item in full."""
    known = await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=1)
    with _explained(f"the state of run {run_id}"):
        fold = Fold()
        loading = _Loading(context, run_id, fold)
        newest = await loading.load(known[0].base_seq if known else 0, upto)
        if known and known[0] != newest:
            await proving.check_rows(context, known)
        refs = fold.refs()
        missing = sorted({ref.seq for ref in refs} - loading.parts.bodies.keys())
        bodies = {e.seq: journal.body_of(e) for e in await load_entries(context, run_id, missing)}
        fold.resolve(Named({**bodies, **loading.parts.bodies}).raw_of)
        return Newest(loading.parts, newest), fold


async def load_views(context: Context, run_id: str, versions: Collection[int]) -> dict[int, View]:
    """The states at versions with every item in full."""
    first, last = min(versions), max(versions)
    page = await context.store.checkpoints.page(run_id, before=last + 1, limit=last - first + 1)
    found = [row for row in reversed(page) if row.version in versions]
    await proving.check_rows(context, found)
    if len(found) < len(versions):
        raise CheckpointNotFound(f"run {run_id} does not have all of these versions any more")
    # A version that was given a base of its own begins and ends with it.
    apart = [[row] for row in found if row.base_seq > row.seq]
    together = [row for row in found if row.base_seq < row.seq]
    views: dict[int, View] = {}
    for some in [*apart, together] if together else apart:
        with _explained(f"the state of run {run_id}"):
            views |= await _views_of(context, run_id, some)
    return views


async def _views_of(context: Context, run_id: str, rows: Sequence[Checkpoint]) -> dict[int, View]:
    fold = Fold(only=frozenset(row.version for row in rows))
    loading = _Loading(context, run_id, fold)
    await loading.load(rows[0].base_seq, rows[-1].seq)
    missing = sorted({ref.seq for ref in fold.refs()})
    bodies = {e.seq: journal.body_of(e) for e in await load_entries(context, run_id, missing)}
    fold.resolve(Named(bodies).raw_of)
    return dict(fold.views)


async def load_entries(context: Context, run_id: str, seqs: Sequence[int]) -> list[Entry]:
    """Entries by their seqs, each checked against the chain."""
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

    def __init__(self, context: Context, run_id: str, fold: Fold | None = None) -> None:
        self._journal = context.store.journal
        self._run_id = run_id
        self._fold = fold
        self.parts = Parts()

    async def load(self, base_seq: int, upto: int) -> Checkpoint | None:
        """Fold every checkpoint from a base (0: the beginning) to a seq; the last of them."""
        parts, newest = self.parts, None
        if base_seq:
            await self._begin_at_base(base_seq)
        for linked in await self._journal.checkpoints(self._run_id, after=base_seq, upto=upto):
            body = checked_body(linked)
            facts = indexes.facts_of(linked.entry)
            if facts.version != parts.version + 1:
                raise IntegrityError(f"version {parts.version + 1} is missing")
            delta = checkpoints.decode_delta(body)
            parts.apply(delta, seq=linked.entry.seq, version=facts.version, size=len(body))
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
    """The body of an entry that fits the chain; raises IntegrityError for one that does not."""
    entry = linked.entry
    previous = journal.GENESIS if entry.seq == 1 else linked.previous
    if previous is None or not journal.is_intact(entry, previous):
        raise IntegrityError(f"entry {entry.seq} or the one before it was changed")
    return journal.body_of(entry)
