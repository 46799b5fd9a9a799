"""The record of a copied version: that of the last revision of its original."""

from typing import Final, NamedTuple

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.reading import proved_checkpoints
from holdfast.kernel import journal
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Kind
from holdfast.kernel.records import RecordSummary
from holdfast.stores.reads import CheckpointPosition


class CopiedRecord(NamedTuple):
    """A record to be copied: its body if it was revised, and its fields in the facts."""

    revision: msgspec.Raw | None = None
    phase: str = ""
    agent: str = ""
    summary: RecordSummary | None = None


NOTHING: Final = CopiedRecord()


async def current_record(context: Context, checkpoint: Checkpoint) -> CopiedRecord:
    """Return the current record of a version, with every entry used checked against the chain."""
    place = CheckpointPosition(checkpoint.run_id, checkpoint.seq, checkpoint.checkpoint_id)
    entries = proved_checkpoints.CheckpointEntries(await context.store.journal.telling([place]))
    own = entries.of(checkpoint.checkpoint_id)
    row = proved_checkpoints.record_row(own, checkpoint)
    if not row.agent_type:
        return CopiedRecord(phase=checkpoint.phase, agent=checkpoint.agent)
    revision: msgspec.Raw | None = None
    if (updated := own.get(Kind.CHECKPOINT_UPDATED)) is not None:
        proved_checkpoints.check_intact(updated)
        revision = msgspec.Raw(journal.body_of(updated.entry))
    phase = row.phase or checkpoint.phase
    return CopiedRecord(
        revision, phase, checkpoint.agent, RecordSummary(row.agent_type, row.summary)
    )
