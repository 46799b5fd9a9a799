"""The operations of seed 003 on checkpoints that describe the work, over runs and their versions.

A task is a run whose id is the task's; a checkpoint is a version of it. Nothing is overwritten: an
update is a new revision, and a final checkpoint never changes.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from holdfast import clock, names
from holdfast.engine.checkpoints import record_damage
from holdfast.engine.context import Context
from holdfast.engine.maintenance import gaps
from holdfast.engine.reading import proved_checkpoints
from holdfast.errors import (
    CheckpointNotFound,
    IndexCorrupted,
    IntegrityError,
    MisuseError,
    RecordInvalid,
)
from holdfast.kernel import record_schema as schema
from holdfast.kernel import records
from holdfast.kernel.checkpoints import COPIES, Checkpoint
from holdfast.kernel.records import AGENT_TYPES, MAX_SUMMARY, Record
from holdfast.records.owners import Owners
from holdfast.records.record_loader import RecordLoader
from holdfast.records.record_writer import NewRecord, RecordWriter
from holdfast.records.stored import (
    CheckpointQuery,
    HandoffResult,
    RecoveryResult,
    SearchResult,
    StoredRecord,
)
from holdfast.records.succession import Succession
from holdfast.stores.reads import FoundRecord, RecordFilter

_NO_LIMIT = 2**62
_MOST = 1000


class OpenHoldfast(Protocol):
    """What the service needs of an open Holdfast."""

    _context: Context


class CheckpointService:
    """Checkpoints of tasks, for whoever works on them without being an agent of Holdfast.

    Any process with the same store sees them. `agent_types` are the types that checkpoints may
    name. What agents of Holdfast save is read in the same way.
    """

    def __init__(self, hf: OpenHoldfast, *, agent_types: Sequence[str] = AGENT_TYPES) -> None:
        self._context = _context_of(hf)
        self._reading = RecordLoader(self._context)
        owners = Owners(self._context)
        self._writing = RecordWriter(self._context, self._reading, owners, tuple(agent_types))
        self._succession = Succession(self._context, self._reading, self._writing, owners)

    # Writing.

    async def create_checkpoint(
        self,
        task_id: str,
        agent_id: str,
        state: Record | Mapping[str, Any],
        *,
        agent_type: str = "",
        label: str = "",
        summary: str = "",
        expected_latest: UUID | str | None = None,
    ) -> StoredRecord:
        """Store the state of the work; it is on disk when this returns.

        `state` has the sections of the schema; omitted ones are empty. `summary` can be
        searched, and is not encrypted. With `expected_latest` (the id of the checkpoint that you
        continue, "" for none) a writer that was not first gets CheckpointConflict; without it,
        checkpoints of one task follow each other in the order in which they were stored.
        """
        fields = schema.given(state)
        if _text(agent_type, what="agent_type"):
            fields = schema.merged(fields, {"metadata": {"agent_type": agent_type}})
        return await self._writing.create(
            NewRecord(
                names.check(task_id, what="task id"),
                names.check(agent_id, what="agent id"),
                fields,
                _label(label),
                _summary(summary),
                None if expected_latest is None else str(expected_latest),
            )
        )

    async def update_checkpoint(
        self,
        checkpoint_id: UUID | str,
        partial: Record | Mapping[str, Any],
        *,
        summary: str | None = None,
        expected_revision: int | None = None,
        by: str = "",
    ) -> StoredRecord:
        """Change some fields: a new revision, the earlier ones stay readable.

        Objects are merged, lists are replaced. Raises CheckpointFinal if it is final, and with
        `expected_revision` CheckpointConflict if somebody else was first.
        """
        return await self._writing.update(
            await self._found(checkpoint_id),
            schema.given(partial),
            summary=None if summary is None else _summary(summary),
            expected_revision=expected_revision,
            by=_name(by, what="by"),
        )

    async def finalize_checkpoint(
        self, checkpoint_id: UUID | str, status: str, *, by: str = ""
    ) -> None:
        """Make a checkpoint immutable. Raises CheckpointFinal if it is so already."""
        names.check(status, what="status")
        found = await self._found(checkpoint_id)
        await self._writing.finalize(found, status, by=_name(by, what="by"))

    async def link_checkpoints(
        self, parent_id: UUID | str, child_id: UUID | str, *, by: str = ""
    ) -> None:
        """Let a checkpoint continue another one, of any task; repeating it changes nothing."""
        parent, child = await self._found(parent_id), await self._found(child_id)
        await self._writing.link(parent, child, by=_name(by, what="by"))

    # Reading.

    async def get_checkpoint(
        self, checkpoint_id: UUID | str, *, revision: int | None = None
    ) -> StoredRecord | None:
        """Return a checkpoint, or one of its earlier revisions; None if it does not exist.

        Raises CheckpointCorrupted rather than return anything that was not stored.
        """
        wanted = _id_of(checkpoint_id)
        found = None if wanted is None else await self._context.store.records.by_id(wanted)
        if found is None:
            if wanted is not None:
                await proved_checkpoints.check_absent(self._context, wanted)
            return None
        await gaps.check_whole(self._context, found.checkpoint.run_id)
        record = await self._reading.one(found)
        if revision is None or revision == record.revision:
            return record
        if not 1 <= names.check_count(revision, what="revision") < record.revision:
            return None
        return await self._reading.revision_of(found, revision)

    async def get_latest_checkpoint(self, task_id: str) -> StoredRecord | None:
        """Return the newest checkpoint that verifies; `skipped` names damaged ones that are newer.

        Damage is recorded as CHECKPOINT_CORRUPTED first. Raises CheckpointCorrupted if there are
        checkpoints and none verifies. Returns None if the task has no checkpoints.
        """
        await gaps.check_whole(self._context, names.check(task_id, what="task id"))
        skipped: list[Checkpoint] = []
        error: IntegrityError | None = None
        before = _NO_LIMIT
        while True:
            page = await self._context.store.records.page(task_id, before=before, limit=1)
            rows = [each.checkpoint for each in page]
            await proved_checkpoints.check_page(
                self._context, task_id, rows, before=before, limit=1
            )
            if not page:
                break
            checkpoint = page[0].checkpoint
            try:
                record = await self._reading.one(page[0])
            except IndexCorrupted:
                raise  # the checkpoint itself is whole
            except IntegrityError as damage:
                skipped.append(checkpoint)
                error, before = error or damage, checkpoint.version
                continue
            if error is not None:
                await record_damage(self._context, skipped, error, checkpoint.version)
            ids = tuple(str(each.checkpoint_id) for each in skipped)
            return msgspec.structs.replace(record, skipped=ids)
        if error is not None:
            await record_damage(self._context, skipped, error, 0)
            raise error
        return None

    async def get_checkpoint_history(
        self, task_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[StoredRecord]:
        """A task's checkpoints, newest first, each with its parent; `before` continues a listing.

        `before` is the `run_version` of the last one. Raises CheckpointCorrupted if one is damaged;
        a search names damaged ones and continues.
        """
        newest = _NO_LIMIT if before is None else names.check_count(before, what="before")
        limit = _limit_of(limit)
        await gaps.check_whole(self._context, names.check(task_id, what="task id"))
        found = await self._context.store.records.page(task_id, before=newest, limit=limit)
        rows = [each.checkpoint for each in found]
        await proved_checkpoints.check_page(
            self._context, task_id, rows, before=newest, limit=limit
        )
        return [_whole(record) for record in await self._reading.all(found)]

    async def get_checkpoints_by_agent(
        self,
        agent_id: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        limit: int = 100,
        cursor: str = "",
    ) -> SearchResult:
        """The checkpoints of an agent over all tasks in a range of time, newest first."""
        return await self.search_checkpoints(
            CheckpointQuery(agent_id=agent_id, since=since, until=until, limit=limit, cursor=cursor)
        )

    async def search_checkpoints(self, query: CheckpointQuery | Mapping[str, Any]) -> SearchResult:
        """Checkpoints over all tasks, newest first, a page at a time.

        What is created meanwhile comes before the first page: nothing is given twice or left out.
        """
        wanted = _query_of(query)
        words = records.words_of(wanted.text)
        if wanted.text and not words:
            return SearchResult(())
        limit = _limit_of(wanted.limit)
        found = await self._context.store.records.search(_filter_of(wanted, words, limit + 1))
        page = found[:limit]
        read = await self._reading.all(page)
        whole = tuple(record for record in read if isinstance(record, StoredRecord))
        damaged = tuple(
            str(each.checkpoint.checkpoint_id)
            for each, record in zip(page, read, strict=True)
            if not isinstance(record, StoredRecord)
        )
        cursor = str(page[-1].checkpoint.checkpoint_id) if len(found) > limit and page else ""
        return SearchResult(whole, cursor, damaged)

    # Handing over, and recovering.

    async def initiate_handoff(
        self,
        checkpoint_id: UUID | str,
        *,
        to: str = "",
        acknowledge_seconds: float = 30.0,
        note: str = "",
        by: str = "",
    ) -> HandoffResult:
        """End the present context of a task: finalize its latest checkpoint for the next agent.

        An agent that acknowledges in time continues; `to` may be one that workers serve. A run of
        an agent on Holdfast is asked to hand over at the end of its turn instead.
        """
        return await self._succession.initiate(
            await self._found(checkpoint_id),
            to=_name(to, what="the agent to hand over to"),
            seconds=acknowledge_seconds,
            note=names.check_text(_text(note, what="note"), what="note"),
            by=_name(by, what="by"),
        )

    async def acknowledge_handoff(self, checkpoint_id: UUID | str, new_agent_id: str) -> None:
        """Record that an agent continues from here; repeating it changes nothing.

        Raises ConflictError if another agent was first, or the timeout has passed.
        """
        names.check(new_agent_id, what="agent id")
        await self._succession.acknowledge(await self._found(checkpoint_id), new_agent_id)

    async def find_recovery_point(self, task_id: str) -> StoredRecord | None:
        """Return the newest checkpoint that a task can resume from; `skipped`: damaged newer ones.

        Damage is recorded. Returns None if no checkpoint verifies.
        """
        return await self._succession.recovery_point(names.check(task_id, what="task id"))

    async def execute_recovery(
        self, checkpoint_id: UUID | str, *, by: str = "", note: str = ""
    ) -> RecoveryResult:
        """Resume a task from a checkpoint; later checkpoints stay unchanged in the journal.

        Raises ConflictError if the chain of its journal is broken: then `holdfast runs recover`
        asks a person.
        """
        return await self._succession.recover(
            await self._found(checkpoint_id),
            by=_name(by, what="by"),
            note=names.check_text(_text(note, what="note"), what="note"),
        )

    async def _found(self, checkpoint_id: UUID | str) -> FoundRecord:
        wanted = _id_of(checkpoint_id)
        found = None if wanted is None else await self._context.store.records.by_id(wanted)
        if found is None:
            if wanted is not None:
                await proved_checkpoints.check_absent(self._context, wanted)
            raise CheckpointNotFound(f"there is no checkpoint {str(checkpoint_id)[:80]!r}")
        await gaps.check_whole(self._context, found.checkpoint.run_id)
        await proved_checkpoints.check_records(self._context, [found])
        return found


def _whole(record: StoredRecord | IntegrityError) -> StoredRecord:
    if isinstance(record, IntegrityError):
        raise record
    return record


def _id_of(checkpoint_id: UUID | str) -> UUID | None:
    try:
        return checkpoint_id if isinstance(checkpoint_id, UUID) else UUID(checkpoint_id)
    except (ValueError, AttributeError, TypeError):
        return None


def _context_of(hf: object) -> Context:
    context = getattr(hf, "_context", None)
    if not isinstance(context, Context):
        raise MisuseError(
            f"CheckpointService is made of a holdfast.Holdfast, not of {type(hf).__module__}."
            f"{type(hf).__name__}; for holdfast.sync.Holdfast there is "
            "holdfast.sync.records.CheckpointService, which blocks"
        )
    return context


def _text(value: object, *, what: str) -> str:
    """Return a text that may be empty; None is not a text."""
    if not isinstance(value, str):
        raise RecordInvalid(
            f"{what} must be a string, not {type(value).__name__}; leave it out if there is none"
        )
    return value


def _name(value: object, *, what: str) -> str:
    """A name that may be empty."""
    return _text(value, what=what) and names.check(value, what=what)


def _label(given: object) -> str:
    label = _name(given, what="label")
    if label in COPIES:
        raise MisuseError(f"{label!r} is what Holdfast calls copies; take another label")
    return label


def _summary(given: object) -> str:
    text = _text(given, what="summary")
    if len(names.check_text(text, what="summary")) > MAX_SUMMARY:
        raise RecordInvalid(
            f"the summary has {len(text)} characters; at most {MAX_SUMMARY} can be searched: "
            "shorten it, the rest of the record may be longer"
        )
    return text


def _limit_of(limit: int) -> int:
    if not 1 <= names.check_count(limit, what="limit") <= _MOST:
        raise MisuseError(f"limit is from 1 to {_MOST}, not {limit}; go on with the cursor")
    return limit


def _query_of(query: CheckpointQuery | Mapping[str, Any]) -> CheckpointQuery:
    if isinstance(query, CheckpointQuery):
        return query
    try:
        return msgspec.convert(dict(query), CheckpointQuery)
    except msgspec.ValidationError as error:
        raise MisuseError(f"this cannot be searched for: {error}") from error


def _filter_of(wanted: CheckpointQuery, words: str, limit: int) -> RecordFilter:
    for what in ("task_id", "agent_id", "agent_type", "phase", "status", "label"):
        names.check_optional(getattr(wanted, what), what=what)
    before = _id_of(wanted.cursor) if wanted.cursor else None
    if wanted.cursor and before is None:
        raise MisuseError("this cursor is not one that a search has given")
    return RecordFilter(
        run_id=wanted.task_id,
        agent=wanted.agent_id,
        agent_type=wanted.agent_type,
        phase=wanted.phase,
        status=wanted.status,
        label=wanted.label,
        since=None if wanted.since is None else clock.from_datetime(wanted.since),
        until=None if wanted.until is None else clock.from_datetime(wanted.until),
        limit=limit,
        before=before,
        words=words,
    )
