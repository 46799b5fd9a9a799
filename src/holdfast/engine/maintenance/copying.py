"""What a copied version tells of the work: the same as the last revision of the one it is of."""

from typing import Final, NamedTuple

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.reading import proving
from holdfast.kernel import journal
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Kind
from holdfast.kernel.records import Told
from holdfast.stores.reads import Place


class Copied(NamedTuple):
    """A record to be copied: its body if it was revised, and what the facts tell of it."""

    revision: msgspec.Raw | None = None
    phase: str = ""
    agent: str = ""
    told: Told | None = None


NOTHING: Final = Copied()


async def last_told(context: Context, checkpoint: Checkpoint) -> Copied:
    """What a version tells now, every entry used checked against the chain."""
    place = Place(checkpoint.run_id, checkpoint.seq, checkpoint.checkpoint_id)
    told = proving.Telling(await context.store.journal.telling([place]))
    own = told.of(checkpoint.checkpoint_id)
    row = proving.record_row(own, checkpoint)
    if not row.agent_type:
        return NOTHING
    revision: msgspec.Raw | None = None
    if (updated := own.get(Kind.CHECKPOINT_UPDATED)) is not None:
        proving.check_intact(updated)
        revision = msgspec.Raw(journal.body_of(updated.entry))
    phase = row.phase or checkpoint.phase
    return Copied(revision, phase, checkpoint.agent, Told(row.agent_type, row.summary))
