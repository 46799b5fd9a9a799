"""Reading records: each from the entry that holds it, checked against the chain and its hash."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.engine.context import Context
from holdfast.engine.reading import proved_checkpoints
from holdfast.engine.reading.versions import checked_body, load_parts
from holdfast.errors import BodyErased, CheckpointCorrupted, IndexCorrupted, IntegrityError
from holdfast.kernel import checkpoints, indexes, records, state
from holdfast.kernel import record_schema as schema
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Kind
from holdfast.kernel.record_proofs import verified, with_hash
from holdfast.kernel.record_schema import Fields
from holdfast.kernel.records import Compliance, Metadata, Phase, Record, Recovery
from holdfast.kernel.state import Parts
from holdfast.records.stored import StoredRecord
from holdfast.stores.reads import FoundRecord, Linked

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FROM_PROGRESS = ("execution_state", "context_summary", "metrics")


def moment(at: int) -> str:
    """Format a moment as ISO 8601 with its zone."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat()


def place(run_id: str, seq: int) -> str:
    """An entry of a journal, as records name it."""
    return f"run:{run_id}#{seq}"


class RecordLoader:
    """Reads records out of a store."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def one(self, found: FoundRecord) -> StoredRecord:
        """Read a record. Raises CheckpointCorrupted or IndexCorrupted if it is not as stored."""
        ((record),) = await self.all([found])
        if isinstance(record, IntegrityError):
            raise record
        return record

    async def all(self, found: Sequence[FoundRecord]) -> list[StoredRecord | IntegrityError]:
        """Read records in their order; a damaged one is replaced by its error."""
        entries = await proved_checkpoints.telling(self._context, found)
        read = [await self._read(each, entries) for each in found]
        try:
            await proved_checkpoints.check_parents(self._context, found)
            await proved_checkpoints.check_bases(self._context, found, entries)
        except IndexCorrupted:
            pairs = zip(found, read, strict=True)
            return [await self._unless_wrong(each, entries, record) for each, record in pairs]
        return read

    async def revision_of(self, found: FoundRecord, revision: int) -> StoredRecord:
        """Read a record at an earlier revision."""
        checkpoint = found.checkpoint
        seq = checkpoint.seq
        if revision > 1:
            run_id, version = checkpoint.run_id, checkpoint.version
            lies = await self._context.store.records.revision(run_id, version, revision)
            if lies is None:
                raise proved_checkpoints.wrong(checkpoint, f"has no revision {revision}")
            seq = lies.seq
        linked = await self._context.store.journal.named(checkpoint.run_id, [seq])
        facts = indexes.facts_of(linked[0].entry) if linked else None
        if revision > 1:
            update = facts if isinstance(facts, records.Updated) else None
            named = (update.checkpoint_id, update.revision) if update else None
            if named != (checkpoint.checkpoint_id, revision):
                raise proved_checkpoints.wrong(
                    checkpoint, f"leads to entry {seq} for revision {revision}"
                )
        summary = facts.summary if isinstance(facts, records.Updated) else _summary_in(facts)
        row = msgspec.structs.replace(
            found.row,
            revision=revision,
            revised_seq=seq if revision > 1 else 0,
            final_seq=0,
            status="",
            summary=summary,
        )
        own = {each.entry.kind: each for each in linked}
        earlier = FoundRecord(checkpoint, row, found.parent_id, found.parent_seq)
        read = await self._made(earlier, own)
        if isinstance(read, IntegrityError):
            raise read
        return read

    async def _unless_wrong(
        self,
        found: FoundRecord,
        entries: proved_checkpoints.CheckpointEntries,
        record: StoredRecord | IntegrityError,
    ) -> StoredRecord | IntegrityError:
        """Return the record, or the error in the parent or the base that its row names."""
        try:
            await proved_checkpoints.check_parents(self._context, [found])
            await proved_checkpoints.check_bases(self._context, [found], entries)
        except IndexCorrupted as error:
            return error
        return record

    async def _read(
        self, found: FoundRecord, entries: proved_checkpoints.CheckpointEntries
    ) -> StoredRecord | IntegrityError:
        checkpoint_id = found.checkpoint.checkpoint_id
        while True:
            try:
                await proved_checkpoints.check_record(self._context, found, entries)
                break
            except IndexCorrupted as error:
                # A concurrent change has changed its row as well.
                again = await self._context.store.records.by_id(checkpoint_id)
                if again is None or again == found:
                    return error
                found = again
                entries = await proved_checkpoints.telling(self._context, [found])
            except IntegrityError as error:
                return _damaged(found, error)
        return await self._made(found, entries.of(checkpoint_id))

    async def _made(
        self, found: FoundRecord, own: Mapping[str, Linked]
    ) -> StoredRecord | IntegrityError:
        """The record that the entries of a checkpoint hold."""
        try:
            record = await self._record(found, own)
            _check_final(own, record)
        except (IntegrityError, msgspec.MsgspecError) as error:
            return _damaged(found, error)
        is_own = record.metadata.checkpoint_id == str(found.checkpoint.checkpoint_id)
        return stored_record(found, record if is_own else _copied(found, record))

    async def _record(self, found: FoundRecord, own: Mapping[str, Linked]) -> Record:
        is_revised = found.row.revised_seq > 0
        kind = Kind.CHECKPOINT_UPDATED if is_revised else Kind.CHECKPOINT_CREATED
        linked = own.get(kind)
        if linked is None:
            raise IntegrityError(
                f"entry {found.row.revised_seq or found.checkpoint.seq} is missing"
            )
        try:
            body = checked_body(linked)
        except BodyErased:
            if is_revised:
                raise
            body = b""  # the version was given its own base
        if is_revised:
            return verified(body)
        values = checkpoints.decode_delta(body).values if body else {}
        raw = values.get(records.PART)
        # A copy of a record that was stored beside an agent's progress is stored so as well.
        is_record = bool(found.row.agent_type) or records.PROGRESS not in values
        if raw is not None and state.as_ref(raw) is None and is_record:
            return verified(raw)
        return await self._from_parts(found, await load_parts(self._context, found.checkpoint))

    async def _from_parts(self, found: FoundRecord, parts: Parts) -> Record:
        """Return the record in a state, else one made of the progress in the state."""
        checkpoint = found.checkpoint
        held: Any = parts.decode_part(records.PART)
        progress: Any = parts.decode_part(records.PROGRESS)
        if isinstance(held, dict):
            about: Any = cast(Fields, held).get("metadata", {})
            is_own = about.get("checkpoint_id") == str(checkpoint.checkpoint_id)
            is_copied = checkpoint.label in checkpoints.COPIES
            # Else the record is still that of an earlier version, and describes that one.
            if is_own or (is_copied and (progress is None or found.row.agent_type)):
                return verified(codec.encode(cast(Fields, held)))
        run = await self._context.store.runs.get(checkpoint.run_id)
        stored_progress: Fields = dict(cast(Fields, progress)) if isinstance(progress, dict) else {}
        fields: Fields = {n: stored_progress[n] for n in _FROM_PROGRESS if n in stored_progress}
        agent = checkpoint.agent or (run.agent if run else "")
        return _made_of(checkpoint, fields, agent, found.parent_id)


def stored_record(found: FoundRecord, record: Record) -> StoredRecord:
    """Combine a record with the facts in its rows."""
    checkpoint, row = found.checkpoint, found.row
    return StoredRecord(
        **{name: getattr(record, name) for name in Record.__struct_fields__},
        run_version=checkpoint.version,
        revision=row.revision,
        status=row.status or checkpoint.status,
        is_final=row.is_final,
        label=checkpoint.label,
        summary=row.summary,
        # A parent with a tombstone has no row any more; the record remembers it.
        parent_id=found.parent_id or record.recovery.last_successful_state,
    )


def _copied(found: FoundRecord, record: Record) -> Record:
    """The record of a version whose state was copied from the one that the record is of."""
    checkpoint, original = found.checkpoint, record.metadata
    seq = found.row.revised_seq or checkpoint.seq
    metadata = msgspec.structs.replace(
        original,
        checkpoint_id=str(checkpoint.checkpoint_id),
        task_id=checkpoint.run_id,
        timestamp=moment(checkpoint.created_at),
    )
    recovery = msgspec.structs.replace(
        record.recovery, last_successful_state=found.parent_id or original.checkpoint_id
    )
    compliance = msgspec.structs.replace(
        record.compliance, event_log_ref=place(checkpoint.run_id, seq), signature=""
    )
    return with_hash(
        msgspec.structs.replace(record, metadata=metadata, recovery=recovery, compliance=compliance)
    )


def _made_of(checkpoint: Checkpoint, fields: Fields, agent: str, parent_id: str) -> Record:
    record = schema.record_of({"version": records.VERSION, **fields})
    execution = record.execution_state
    if checkpoint.phase in tuple(Phase):
        execution = msgspec.structs.replace(execution, phase=Phase(checkpoint.phase))
    made = msgspec.structs.replace(
        record,
        metadata=Metadata(
            checkpoint_id=str(checkpoint.checkpoint_id),
            task_id=checkpoint.run_id,
            agent_id=agent,
            timestamp=moment(checkpoint.created_at),
        ),
        execution_state=execution,
        recovery=Recovery(last_successful_state=parent_id),
        compliance=Compliance(event_log_ref=place(checkpoint.run_id, checkpoint.seq)),
    )
    return with_hash(made)


def _damaged(found: FoundRecord, error: Exception) -> CheckpointCorrupted:
    checkpoint = found.checkpoint
    return CheckpointCorrupted(
        f"checkpoint {checkpoint.checkpoint_id} (version {checkpoint.version} of run "
        f"{checkpoint.run_id}) cannot be read: {error}"
    )


def _summary_in(facts: Any) -> str:
    details = getattr(facts, "record", None)
    return details.summary if details is not None else ""


def _check_final(own: Mapping[str, Linked], record: Record) -> None:
    """Raise if a final record is not the one that was finalized."""
    linked = own.get(Kind.CHECKPOINT_FINALIZED)
    if linked is None:
        return
    facts = indexes.facts_of(linked.entry)
    # The holder of the run may finalize a record in its state: then the chain alone proves it.
    if facts.hash not in ("", record.compliance.hash):
        raise IntegrityError("it is final, and not the one that was finalized")
