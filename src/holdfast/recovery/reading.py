"""Reading records: each from the entry that holds it, checked against the chain and its hash."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.engine.checkpoints import checked_body, load_parts
from holdfast.engine.context import Context
from holdfast.errors import BodyErased, CheckpointCorrupted, IntegrityError
from holdfast.kernel import checkpoints, indexes, records, state
from holdfast.kernel import record_schema as schema
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.record_proofs import verified, with_hash
from holdfast.kernel.record_schema import Fields
from holdfast.kernel.records import Compliance, Metadata, Phase, Record, Recovery
from holdfast.kernel.state import Parts
from holdfast.recovery.stored import StoredRecord
from holdfast.stores.reads import FoundRecord, Linked

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LABELS_OF_COPIES = ("forked", "rewound", "edited")
_FROM_PROGRESS = ("execution_state", "context_summary", "metrics")


def moment(at: int) -> str:
    """A moment as ISO 8601 with its zone."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat()


def place(run_id: str, seq: int) -> str:
    """An entry of a journal, as records name it."""
    return f"run:{run_id}#{seq}"


class Reading:
    """Reads records out of a store."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def one(self, found: FoundRecord) -> StoredRecord:
        """A record; raises CheckpointCorrupted if it is not what was stored."""
        ((record),) = await self.all([found])
        if isinstance(record, IntegrityError):
            raise record
        return record

    async def all(self, found: Sequence[FoundRecord]) -> list[StoredRecord | IntegrityError]:
        """Records in their order; of a damaged one, the error that says so."""
        by_run: dict[str, set[int]] = {}
        for each in found:
            by_run.setdefault(each.checkpoint.run_id, set()).update(_seqs(each))
        entries: dict[tuple[str, int], Linked] = {}
        for run_id, seqs in by_run.items():
            for linked in await self._context.store.journal.named(run_id, sorted(seqs)):
                entries[run_id, linked.entry.seq] = linked
        return [await self._read(each, entries) for each in found]

    async def _read(
        self, found: FoundRecord, entries: Mapping[tuple[str, int], Linked]
    ) -> StoredRecord | IntegrityError:
        checkpoint = found.checkpoint
        own = {seq: entries.get((checkpoint.run_id, seq)) for seq in _seqs(found)}
        try:
            record = await self._record(found, own)
            _check_final(found, own, record)
        except (IntegrityError, msgspec.MsgspecError) as error:
            return CheckpointCorrupted(
                f"checkpoint {checkpoint.checkpoint_id} (version {checkpoint.version} of run "
                f"{checkpoint.run_id}) cannot be read: {error}"
            )
        is_own = record.metadata.checkpoint_id == str(checkpoint.checkpoint_id)
        return stored_record(found, record if is_own else _copied(found, record))

    async def _record(self, found: FoundRecord, own: Mapping[int, Linked | None]) -> Record:
        checkpoint, row = found.checkpoint, found.row
        seq = row.revised_seq or checkpoint.seq
        linked = own[seq]
        if linked is None:
            raise IntegrityError(f"entry {seq} is missing")
        try:
            body = checked_body(linked)
        except BodyErased:
            if row.revised_seq:
                raise
            body = b""  # the version was given a base of its own
        _check_facts(linked.entry, found)
        if row.revised_seq:
            return verified(body)
        values = checkpoints.decode_delta(body).values if body else {}
        raw = values.get(records.PART)
        if raw is not None and state.as_ref(raw) is None and records.PROGRESS not in values:
            return verified(raw)
        return await self._from_parts(found, await load_parts(self._context, checkpoint))

    async def _from_parts(self, found: FoundRecord, parts: Parts) -> Record:
        """The record in a state, else what the state tells of the work."""
        checkpoint = found.checkpoint
        held: Any = parts.decode_part(records.PART)
        progress: Any = parts.decode_part(records.PROGRESS)
        if isinstance(held, dict):
            about: Any = cast(Fields, held).get("metadata", {})
            is_own = about.get("checkpoint_id") == str(checkpoint.checkpoint_id)
            is_copied = checkpoint.label in _LABELS_OF_COPIES and not checkpoint.agent
            # Else one of an earlier version is still there, and tells of that.
            if is_own or (is_copied and progress is None):
                return verified(codec.encode(cast(Fields, held)))
        run = await self._context.store.runs.get(checkpoint.run_id)
        told: Fields = dict(cast(Fields, progress)) if isinstance(progress, dict) else {}
        fields: Fields = {n: told[n] for n in _FROM_PROGRESS if n in told}
        agent = checkpoint.agent or (run.agent if run else "")
        return _made_of(checkpoint, fields, agent, found.parent_id)


def stored_record(found: FoundRecord, record: Record) -> StoredRecord:
    """A record, and what its rows tell of it."""
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


def _seqs(found: FoundRecord) -> set[int]:
    row = found.row
    return {row.revised_seq or found.checkpoint.seq, *([row.final_seq] if row.is_final else [])}


def _check_facts(entry: Entry, found: FoundRecord) -> None:
    """Raise if an index row leads to an entry that tells of something else."""
    kind = Kind.CHECKPOINT_UPDATED if found.row.revised_seq else Kind.CHECKPOINT_CREATED
    if entry.kind == kind:
        facts = indexes.facts_of(entry)
        revision = getattr(facts, "revision", 1)
        wanted = found.checkpoint.checkpoint_id, found.row.revision
        if (facts.checkpoint_id, revision) == wanted:
            return
    raise IntegrityError(
        f"its index row leads to entry {entry.seq}, which tells of something else; "
        "`holdfast store reindex` makes the rows anew"
    )


def _check_final(found: FoundRecord, own: Mapping[int, Linked | None], record: Record) -> None:
    """Raise if a final record is not the one that was finalized."""
    if not found.row.is_final:
        return
    linked = own[found.row.final_seq]
    if linked is None:
        raise IntegrityError(f"entry {found.row.final_seq}, which made it final, is missing")
    checked_body(linked)
    facts = indexes.facts_of(linked.entry)
    is_told = isinstance(facts, records.Finalized)
    # Whoever holds the run may finalize what its state tells: then the chain alone proves it.
    if not is_told or facts.hash not in ("", record.compliance.hash):
        raise IntegrityError("it is final, and not the one that was finalized")
