"""The reply to the caller of a peer: how the peer's run ended."""

from typing import Any, Final, Literal, cast

import msgspec

from holdfast import codec
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.reading.journal import body_of
from holdfast.engine.reading.versions import load_newest
from holdfast.errors import IntegrityError
from holdfast.kernel import indexes, journal
from holdfast.kernel.journal import Entry, Kind

ARTIFACTS: Final = "holdfast.artifacts"
FLAGS: Final = "holdfast.flags"

Ending = Literal["completed", "failed", "cancelled"]
_ENDINGS: Final[dict[str, Ending]] = {
    Kind.RUN_COMPLETED: "completed",
    Kind.RUN_FAILED: "failed",
    Kind.RUN_CANCELLED: "cancelled",
}


class PeerReply(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's answer: a value or an error, with the artifacts and flags it produced."""

    status: Ending
    value: Any = None
    error: str = ""
    artifacts: list[Any] = []
    flags: dict[str, Any] = {}


async def reply_of(context: Context, run_id: str, seq: int) -> PeerReply:
    """Return the reply of a run by the entry that ended it."""
    entry = await intact_entry(context, run_id, seq)
    ending = _ENDINGS.get(entry.kind)
    if ending is None:
        raise IntegrityError(f"entry {seq} of run {run_id} is not the end of it")
    state = (await load_newest(context, run_id)).parts
    return PeerReply(
        status=ending,
        value=body_of(entry) if ending == "completed" else None,
        error="" if ending == "completed" else indexes.facts_of(entry).note,
        artifacts=cast("list[Any]", state.decode_part(ARTIFACTS, [])),
        flags=cast("dict[str, Any]", state.decode_part(FLAGS, {})),
    )


def reply_of_held(held: LeasedRun) -> PeerReply:
    """Return the reply of a run that its holder has just completed."""
    parts = held.saver.parts
    return PeerReply(
        status="completed",
        value=codec.decode(held.result),
        artifacts=cast("list[Any]", parts.decode_part(ARTIFACTS, [])),
        flags=cast("dict[str, Any]", parts.decode_part(FLAGS, {})),
    )


async def intact_entry(context: Context, run_id: str, seq: int) -> Entry:
    """Return one entry, checked against the chain."""
    found = await context.store.journal.named(run_id, [seq])
    previous = (found[0].previous if seq > 1 else journal.GENESIS) if found else None
    if previous is None or not journal.is_intact(found[0].entry, previous):
        raise IntegrityError(f"entry {seq} of run {run_id} is damaged or missing")
    return found[0].entry
