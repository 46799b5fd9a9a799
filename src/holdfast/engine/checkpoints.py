"""Checkpoints: loading any version, history, search, and what differs between two versions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast import clock, names
from holdfast.engine.context import Context
from holdfast.engine.reading import proved_checkpoints
from holdfast.engine.reading.versions import check_not_final, load_newest, load_parts
from holdfast.engine.writing.unheld_runs import append_at_head
from holdfast.errors import (
    CheckpointNotFound,
    IllegalMove,
    IndexCorrupted,
    IntegrityError,
    RunNotFound,
)
from holdfast.kernel import checkpoints, indexes, state
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.state import Parts, StateDiff
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.stores.reads import CheckpointFilter, FoundRecord, RunAtHead
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


class CheckpointWithRecord(Checkpoint, frozen=True, kw_only=True, gc=False):
    """A checkpoint with its record's current phase and status, and whether it is final."""

    is_final: bool = False


class Checkpoints:
    """Reading what was saved."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def load(self, run_id: str, version: int | None = None) -> State:
        """Return the state at a version, by default the latest.

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
        """Return the newest state that verifies; `skipped` names the damaged ones above it.

        Damage is recorded as CHECKPOINT_CORRUPTED before the older state is returned.
        """
        skipped: list[Checkpoint] = []
        error: IntegrityError | None = None
        before = _NO_LIMIT
        while True:
            found = await self._context.store.checkpoints.page(run_id, before=before, limit=1)
            await proved_checkpoints.check_page(
                self._context, run_id, found, before=before, limit=1
            )
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
        """Return a checkpoint by its id."""
        try:
            wanted = checkpoint_id if isinstance(checkpoint_id, UUID) else UUID(checkpoint_id)
        except ValueError:
            raise CheckpointNotFound(f"{checkpoint_id!r} is not a checkpoint's id") from None
        found = await self._context.store.checkpoints.by_id(wanted)
        if found is None:
            await proved_checkpoints.check_absent(self._context, wanted)
            raise CheckpointNotFound(f"there is no checkpoint {wanted}")
        await proved_checkpoints.check_rows(self._context, [found])
        return found

    async def history(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[Checkpoint]:
        """Return a run's checkpoints, newest first; `before` a version continues a listing."""
        newest = _before(run_id, limit, before)
        found = await self._context.store.checkpoints.page(run_id, before=newest, limit=limit)
        await proved_checkpoints.check_rows(self._context, found)
        await proved_checkpoints.check_page(
            self._context, run_id, found, before=newest, limit=limit
        )
        return found

    async def with_records(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[CheckpointWithRecord]:
        """Like `history`, with the current state of their records: final or not, and the status."""
        newest = _before(run_id, limit, before)
        found = await self._context.store.records.page(run_id, before=newest, limit=limit)
        await proved_checkpoints.check_records(self._context, found)
        rows = [each.checkpoint for each in found]
        await proved_checkpoints.check_page(self._context, run_id, rows, before=newest, limit=limit)
        return list(map(_with_record, found))

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
        """Return checkpoints of all runs, newest first; `before` an id continues a listing."""
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
        await proved_checkpoints.check_rows(self._context, found)
        return found

    async def delete(self, run_id: str, version: int, *, by: str = "", note: str = "") -> None:
        """Put a tombstone on a version: it is not listed and not loaded any more, later ones are.

        What it stored stays in the journal, and the chain stays whole. The newest version stays.
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
            await proved_checkpoints.check_newest(
                self._context, run_id, newest[0] if newest else None
            )
            if not newest or newest[0].version <= version:
                raise IllegalMove(
                    f"version {version} is the newest of run {run_id}, which goes on from it"
                )
            return [Draft(Kind.CHECKPOINT_DELETED, facts)]

        await append_at_head(self._context, run_id, decide, by=actor)

    async def diff(self, run_id: str, before: int, after: int) -> StateDiff:
        """Return what changed between two versions of a run."""
        old = await self.load(run_id, before)
        new = await self.load(run_id, after)
        return state.diff(old.parts, new.parts)

    async def _find(self, run_id: str, version: int | None) -> Checkpoint | None:
        names.check(run_id, what="run id")
        if version is not None and names.check_count(version, what="version") > 0:
            checkpoint = await self._context.store.checkpoints.get(run_id, version)
            if checkpoint is not None:
                return checkpoint
            await proved_checkpoints.check_version_absent(self._context, run_id, version)
        if await self._context.store.journal.head(run_id) is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        if version:
            raise CheckpointNotFound(f"run {run_id} has no version {version}")
        return None


def _before(run_id: str, limit: int, before: int | None) -> int:
    """Check the arguments of a listing. Returns the version below which it begins."""
    names.check(run_id, what="run id")
    names.check_count(limit, what="limit")
    return _NO_LIMIT if before is None else names.check_count(before, what="before")


def _with_record(found: FoundRecord) -> CheckpointWithRecord:
    checkpoint, row = found.checkpoint, found.row
    fields = msgspec.structs.asdict(checkpoint)
    fields["phase"] = row.phase or checkpoint.phase
    fields["status"] = row.status or checkpoint.status
    return CheckpointWithRecord(**fields, is_final=row.is_final)


async def record_damage(
    context: Context, skipped: Sequence[Checkpoint], error: IntegrityError, fell_back_to: int
) -> None:
    """Record that a read found versions damaged, the newest first; each once."""
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

    def decide(snapshot: Snapshot) -> LateDecision:
        drafts = tuple(
            Draft(
                Kind.CHECKPOINT_CORRUPTED,
                checkpoints.Corrupted(c.checkpoint_id, c.version, str(error), fell_back_to),
            )
            for c in new
        )
        return LateDecision(None, drafts)

    await context.decide_late(skipped[0].run_id, decide)


def _state(checkpoint: Checkpoint, parts: Parts, skipped: tuple[UUID, ...] = ()) -> State:
    return State(
        checkpoint.run_id, checkpoint.version, checkpoint.checkpoint_id, parts.decode(), skipped
    )
