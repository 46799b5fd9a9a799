"""Writes checkpoint records: decides at the end of a task's journal what an operation appends."""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from holdfast import codec, ids, names
from holdfast.engine import sweeper
from holdfast.engine.context import Context
from holdfast.engine.maintenance import gaps
from holdfast.engine.reading import proved_checkpoints
from holdfast.engine.reading.versions import check_not_final
from holdfast.engine.writing import unheld_runs
from holdfast.errors import (
    CheckpointConflict,
    CheckpointNotFound,
    ConflictError,
    IllegalMove,
    IndexCorrupted,
    IntegrityError,
    LeaseHeld,
    RunEnded,
    RunExists,
    RunNotFound,
)
from holdfast.kernel import checkpoints, records, runs
from holdfast.kernel import record_schema as schema
from holdfast.kernel.checkpoints import CheckpointCreated, Delta
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.record_proofs import with_hash
from holdfast.kernel.record_schema import Fields
from holdfast.kernel.records import (
    Finalized,
    LinkedTo,
    Phase,
    Record,
    RecordRow,
    RecordSummary,
    Updated,
)
from holdfast.kernel.runs import RunRow
from holdfast.records.owners import Owners
from holdfast.records.record_loader import RecordLoader, moment, place, stored_record
from holdfast.records.stored import StoredRecord
from holdfast.stores.reads import FoundRecord, RunAtHead

_NO_LIMIT = 2**62


class NewRecord(NamedTuple):
    """A request to create a checkpoint."""

    task_id: str
    agent_id: str
    fields: Fields
    label: str
    summary: str
    expected_latest: str | None


class RecordWriter:
    """Appends the entries of each operation, in one commit."""

    def __init__(
        self, context: Context, reading: RecordLoader, owners: Owners, agent_types: tuple[str, ...]
    ) -> None:
        self._context = context
        self._reading = reading
        self._owners = owners
        self._agent_types = agent_types

    async def create(self, asked: NewRecord) -> StoredRecord:
        """Store a new version of the task's run; create the run if it does not exist."""
        made: list[StoredRecord] = []

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            await self._check_may_grow(head, asked.agent_id)
            newest = await self._newest(asked.task_id)
            self._check_latest(asked, newest)
            made[:] = [await self._made(asked, newest, head.position.seq + 1, now)]
            return [
                self._draft(asked, made[0], newest),
                *_completed(head.run, asked.agent_id, newest),
            ]

        await gaps.check_whole(self._context, asked.task_id)
        while True:
            try:
                await self.decide(asked.task_id, plan, by=asked.agent_id)
                return made[0]
            except RunNotFound:
                self._check_latest(asked, None)
            try:
                return await self._begin(asked)
            except RunExists:
                continue  # another writer created the run first: append to it

    async def _begin(self, asked: NewRecord) -> StoredRecord:
        """Create a run whose journal begins with the requested checkpoint."""
        first = await self._made(asked, None, 2, self._context.now())
        created = runs.RunCreated("", codec.canonical_digest(None))
        begun = Draft(Kind.RUN_CREATED, created, codec.encode(None))
        drafts = [begun, self._draft(asked, first, None)]
        await unheld_runs.create(self._context, asked.task_id, drafts, by=asked.agent_id)
        return first

    async def update(
        self,
        found: FoundRecord,
        partial: Fields,
        *,
        summary: str | None,
        expected_revision: int | None,
        by: str,
    ) -> StoredRecord:
        """Store a new revision of a record and return it; the current one if nothing changes."""
        made: list[StoredRecord] = []

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            await self._check_not_held(head.run)
            present, before = await self._read_present(found)
            await check_not_final(self._context, present.checkpoint)
            await self._owners.check_writer(head, by or present.checkpoint.agent)
            await self._check_revision(present, expected_revision)
            text = present.row.summary if summary is None else summary
            after = self._revised(before, partial, head.position.seq + 1)
            changed = _changed(before, after, text != present.row.summary)
            if not changed:
                made[:] = [before]
                return ()
            draft = self._updated(present, after, changed, text)
            facts = draft.facts
            assert isinstance(facts, Updated), "it is what was just made"
            row = msgspec.structs.replace(
                present.row,
                revision=facts.revision,
                revised_seq=head.position.seq + 1,
                summary=text,
            )
            version_found = FoundRecord(present.checkpoint, row, before.parent_id)
            made[:] = [stored_record(version_found, after)]
            return [draft]

        await self.decide(found.checkpoint.run_id, plan, by=by)
        return made[0]

    async def finalize(self, found: FoundRecord, status: str, *, by: str) -> None:
        """Make a checkpoint immutable."""

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            await self._check_not_held(head.run)
            present = await self._present(found)
            await check_not_final(self._context, present.checkpoint)
            await self._owners.check_writer(head, by or present.checkpoint.agent)
            record: Record = await self._reading.one(present)
            drafts: list[Draft] = []
            is_copy = present.checkpoint.label in checkpoints.COPIES
            if not present.row.agent_type or (is_copy and not present.row.revised_seq):
                # This record was only derived from a state or another record: store it now.
                record = self._revised(record, {}, head.position.seq + 1)
                drafts.append(self._updated(present, record, [], present.row.summary))
            return [*drafts, _final(present, record, status, len(drafts))]

        await self.decide(found.checkpoint.run_id, plan, by=by)

    async def finalizing(
        self,
        present: FoundRecord,
        head: RunAtHead,
        phase: Phase,
        prompt_of: Callable[[StoredRecord], str],
        *,
        by: str,
    ) -> tuple[list[Draft], Record]:
        """Return the drafts that make a checkpoint the last of its context, and its new record.

        The record gets a continuation prompt if it has none. A checkpoint that is final already
        does not change: there are no drafts, and its record is returned.
        """
        await self._check_may_grow(head, by or present.checkpoint.agent)
        before = await self._reading.one(present)
        if present.row.is_final:
            return [], before
        revision_fields: Fields = {"execution_state": {"phase": phase.value}}
        if not before.recovery.continuation_prompt:
            revision_fields["recovery"] = {"continuation_prompt": prompt_of(before)}
        after = self._revised(before, revision_fields, head.position.seq + 1)
        changed = _changed(before, after, has_summary=False)
        updated = self._updated(present, after, changed, present.row.summary)
        return [updated, _final(present, after, phase.value, 1)], after

    async def link(self, parent: FoundRecord, child: FoundRecord, *, by: str) -> None:
        """Record that `child` continues `parent`. Raises IllegalMove if that makes a cycle."""
        parent_id, checkpoint = parent.checkpoint.checkpoint_id, child.checkpoint

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            await self._check_not_held(head.run)
            present = await self._present(child)
            await proved_checkpoints.check_records(self._context, [present])
            if present.row.linked == str(parent_id):
                return ()
            await check_not_final(self._context, checkpoint)
            await self._owners.check_writer(head, by or checkpoint.agent)
            await self._check_no_cycle(parent, child)
            facts = LinkedTo(parent_id, checkpoint.checkpoint_id, checkpoint.version)
            return [Draft(Kind.CHECKPOINT_LINKED, facts)]

        await self.decide(checkpoint.run_id, plan, by=by)

    async def decide(self, task_id: str, plan: unheld_runs.DecideAtHead, *, by: str) -> None:
        """Append what `plan` returns. Expire an overdue handoff that prevents this, and retry."""
        try:
            await unheld_runs.append_at_head(self._context, task_id, plan, by=by)
        except ConflictError:
            if not await self._owners.expire_handoff(task_id):
                raise
            await unheld_runs.append_at_head(self._context, task_id, plan, by=by)

    # What is written.

    async def _made(
        self, asked: NewRecord, newest: FoundRecord | None, seq: int, now: int
    ) -> StoredRecord:
        """Build the record of a new checkpoint that entry `seq` will store."""
        parent_id = str(newest.checkpoint.checkpoint_id) if newest else ""
        fields = schema.merged({"version": records.VERSION, "metadata": {}}, asked.fields)
        metadata: Fields = fields["metadata"]
        metadata.setdefault("iteration", await self._iteration(asked.agent_id, newest))
        new_id = ids.uuid7()
        own: Fields = {
            "metadata": {
                "checkpoint_id": str(new_id),
                "task_id": asked.task_id,
                "agent_id": asked.agent_id,
                "timestamp": moment(now),
            },
            "compliance": {"event_log_ref": place(asked.task_id, seq)},
        }
        given: Fields = fields.get("recovery", {})
        if not given.get("last_successful_state"):
            own["recovery"] = {"last_successful_state": parent_id}
        record = schema.checked(schema.merged(fields, own), agent_types=self._agent_types)
        version = newest.checkpoint.version + 1 if newest else 1
        row = checkpoints.Checkpoint(
            tenant=self._context.tenant,
            run_id=asked.task_id,
            version=version,
            seq=seq,
            checkpoint_id=new_id,
            parent=version - 1,
            base_seq=newest.checkpoint.base_seq if newest else 0,
            created_at=now,
            label=asked.label,
        )
        record_row = RecordRow(
            tenant=row.tenant, run_id=row.run_id, version=version, summary=asked.summary
        )
        return stored_record(FoundRecord(row, record_row, parent_id), with_hash(record))

    def _draft(self, asked: NewRecord, made: StoredRecord, newest: FoundRecord | None) -> Draft:
        body = self._encoded(made)
        facts = CheckpointCreated(
            UUID(made.metadata.checkpoint_id),
            made.run_version,
            made.run_version - 1,
            newest.checkpoint.base_seq if newest else 0,
            phase=made.execution_state.phase.value,
            agent=asked.agent_id,
            label=asked.label,
            record=RecordSummary(made.metadata.agent_type, asked.summary),
        )
        delta = Delta({}, {records.PART: msgspec.Raw(body)}, [])
        return Draft(Kind.CHECKPOINT_CREATED, facts, checkpoints.encode_body(delta))

    def _revised(self, before: Record, partial: Fields, seq: int) -> Record:
        task_id = before.metadata.task_id
        own = {"compliance": {"event_log_ref": place(task_id, seq), "signature": ""}}
        fields = schema.merged(schema.merged(schema.fields_of(before), partial), own)
        extra = schema.record_of(fields).extra
        known = schema.checked(
            schema.fields_of(msgspec.structs.replace(schema.record_of(fields), extra={})),
            agent_types=(*self._agent_types, before.metadata.agent_type),
        )
        return with_hash(msgspec.structs.replace(known, extra=extra))

    def _updated(
        self, present: FoundRecord, after: Record, changed: list[str], summary: str
    ) -> Draft:
        facts = Updated(
            present.checkpoint.checkpoint_id,
            present.checkpoint.version,
            present.row.revision + 1,
            changed,
            after.execution_state.phase.value,
            after.metadata.agent_type,
            summary,
        )
        return Draft(Kind.CHECKPOINT_UPDATED, facts, self._encoded(after))

    def _encoded(self, record: Record) -> bytes:
        body = codec.encode(schema.fields_of(record), name="record")
        most = self._context.settings.max_body_bytes
        return names.check_size(body, most=most, what="the record")

    async def _iteration(self, agent_id: str, newest: FoundRecord | None) -> int:
        """Return the newest record's context number, plus 1 if another agent writes now."""
        if newest is None:
            return 1
        try:
            before = await self._reading.one(newest)
        except IndexCorrupted:
            raise
        except IntegrityError:
            return 1  # damage does not stop the task; readers of the damaged record get the error
        return before.metadata.iteration + (before.metadata.agent_id != agent_id)

    # Checks.

    async def _newest(self, run_id: str) -> FoundRecord | None:
        found = await self._context.store.records.page(run_id, before=_NO_LIMIT, limit=1)
        newest = found[0] if found else None
        await proved_checkpoints.check_newest(
            self._context, run_id, newest.checkpoint if newest else None
        )
        if newest is None and await self._context.store.journal.tombstones(run_id):
            # Versions with tombstones have no rows, but their numbers are used.
            raise IllegalMove(f"every version of run {run_id} has a tombstone; use another task id")
        return newest

    async def _present(self, found: FoundRecord) -> FoundRecord:
        wanted = found.checkpoint.checkpoint_id
        present = await self._context.store.records.by_id(wanted)
        if present is None:
            raise CheckpointNotFound(f"there is no checkpoint {wanted} any more")
        return present

    async def _read_present(self, found: FoundRecord) -> tuple[FoundRecord, StoredRecord]:
        """Read the rows of a checkpoint and its record, until both have the same revision."""
        while True:
            present = await self._present(found)
            record = await self._reading.one(present)
            if record.revision == present.row.revision:
                return present, record

    async def _check_not_held(self, run: RunRow) -> None:
        if await sweeper.is_held(self._context, run):
            raise LeaseHeld(
                f"worker {run.worker} works on run {run.run_id}, and only it writes there: nothing "
                "was written; wait until it is done"
            )

    async def _check_may_grow(self, head: RunAtHead, who: str) -> None:
        run = head.run
        await self._check_not_held(run)
        if run.status in runs.ENDED:
            raise RunEnded(f"task {run.run_id} is {run.status.value}: it takes no more checkpoints")
        if run.agent:
            raise IllegalMove(
                f"run {run.run_id} is one of agent {run.agent!r}, whose code makes its checkpoints "
                "(run.checkpoint()): one from outside would end a turn in its middle"
            )
        await self._owners.check_writer(head, who)

    def _check_latest(self, asked: NewRecord, newest: FoundRecord | None) -> None:
        expected = asked.expected_latest
        latest = str(newest.checkpoint.checkpoint_id) if newest else ""
        if expected is None or expected == latest:
            return
        if newest is None:
            raise CheckpointConflict(
                f"task {asked.task_id} has no checkpoint, and {expected} was expected to be its "
                "latest: nothing was stored"
            )
        checkpoint = newest.checkpoint
        raise CheckpointConflict(
            f"checkpoint {expected or '(none)'} is not the latest of task {asked.task_id}: "
            f"{checkpoint.agent or 'somebody'} created {latest} (version {checkpoint.version}) at "
            f"{moment(checkpoint.created_at)}; nothing was stored"
        )

    async def _check_revision(self, present: FoundRecord, expected: int | None) -> None:
        row, checkpoint = present.row, present.checkpoint
        if expected is None or expected == row.revision:
            return
        seq = row.revised_seq or checkpoint.seq
        written = await self._context.store.journal.named(checkpoint.run_id, [seq])
        entry = written[0].entry if written else None
        raise CheckpointConflict(
            f"checkpoint {checkpoint.checkpoint_id} does not have revision {expected} any more: "
            f"{entry.actor if entry else 'somebody'} wrote revision {row.revision} at "
            f"{moment(entry.at if entry else checkpoint.created_at)}; nothing was stored"
        )

    async def _check_no_cycle(self, parent: FoundRecord, child: FoundRecord) -> None:
        """Raise IllegalMove if the parent already continues the child, directly or not."""
        wanted = child.checkpoint
        at: FoundRecord | None = parent
        seen: set[tuple[str, int]] = set()
        while at is not None:
            here = at.checkpoint
            rows = await self._context.store.records.page(
                here.run_id, before=here.version + 1, limit=here.version
            )
            await proved_checkpoints.check_records(self._context, rows)
            linked = {each.row.version: each.row.linked for each in rows if each.row.linked}
            nearest = max(linked, default=0)
            if here.run_id == wanted.run_id and nearest <= wanted.version <= here.version:
                raise IllegalMove(
                    f"checkpoint {parent.checkpoint.checkpoint_id} itself continues "
                    f"{wanted.checkpoint_id}: a chain has no circles"
                )
            if not nearest or (here.run_id, nearest) in seen:
                return
            seen.add((here.run_id, nearest))
            at = await self._context.store.records.by_id(UUID(linked[nearest]))


def _completed(run: RunRow, agent_id: str, newest: FoundRecord | None) -> list[Draft]:
    """Return the entry that completes a recovery; none if the task is not being recovered."""
    if not run.is_recovering:
        return []
    at = (newest.checkpoint.checkpoint_id, newest.checkpoint.version) if newest else (None, 0)
    return [Draft(Kind.RECOVERY_COMPLETED, runs.RecoveryCompleted(*at, run.agent, agent_id))]


def _final(present: FoundRecord, record: Record, status: str, later: int) -> Draft:
    """Return the entry that makes a checkpoint final, `later` revisions after the present one."""
    facts = Finalized(
        present.checkpoint.checkpoint_id,
        present.checkpoint.version,
        present.row.revision + later,
        status,
        record.compliance.hash,
    )
    return Draft(Kind.CHECKPOINT_FINALIZED, facts)


def _changed(before: Record, after: Record, has_summary: bool) -> list[str]:
    """Return the paths of fields that differ, except those that every revision changes."""
    found = schema.changed(schema.fields_of(before), schema.fields_of(after))
    always = ("compliance.event_log_ref", "compliance.hash", "compliance.signature", "version")
    return [path for path in found if path not in always] + (["summary"] if has_summary else [])
