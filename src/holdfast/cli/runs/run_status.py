"""The status of a run for people: since when, and why."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.clock import SystemClock
from holdfast.kernel import runs
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.sync import Holdfast
from holdfast.terminal.records import Record, entry_record
from holdfast.terminal.text import moment, printable

_PAGE: Final = 1000
_INTERNAL: Final = frozenset(
    {
        "tenant",
        "run_id",
        "status",
        "blocked_reason",
        "note",
        "since",
        "lease_seq",
        "waiting_on",
        "result_seq",
        "root_id",
        "input_digest",
        "schema",
        "reply_to",
        "proof",
        "contexts",
    }
)
"""What the heading says already, and what only Holdfast itself needs."""


class StatusReason(NamedTuple):
    """Why a run has its status, and since when; empty and None if no entry says it."""

    note: str = ""
    since: str | None = None


def reason_of(hf: Holdfast, run: RunRow, checkpoint_seq: int) -> StatusReason:
    """Return what the entry says that gave a run its present status."""
    kinds = {kind for kind, (_, status) in runs.MOVES.items() if status is run.status}
    if run.status in runs.ENDED:
        first = run.result_seq - 1
    elif run.status is RunStatus.RUNNING:
        first = run.lease_seq - 1
    else:
        first = checkpoint_seq  # a run that is not held saves nothing
    moves = [entry for entry in _entries_after(hf, run.run_id, first) if entry.kind in kinds]
    if not moves:
        return StatusReason()
    facts: Record = entry_record(moves[-1], is_intact=True, with_body=False)["facts"] or {}
    return StatusReason(facts.get("note", ""), moment(moves[-1].at))


def _entries_after(hf: Holdfast, run_id: str, seq: int) -> Iterator[Entry]:
    while page := hf.journal.read(run_id, after=seq, limit=_PAGE, checked=False):
        yield from page
        seq = page[-1].seq


def was_continued(hf: Holdfast, run_id: str, blocked_seq: int) -> bool:
    """Whether a run that was blocked is not blocked by that entry any more."""
    later = {entry.kind for entry in _entries_after(hf, run_id, blocked_seq)}
    return bool(later & {Kind.RUN_UNBLOCKED, Kind.RUN_CANCELLED})


def heading(record: Record) -> str:
    """Return the line that a run is shown with first."""
    status = record["status"]
    if record["blocked_reason"]:
        status = f"{status} ({record['blocked_reason']})"
    now = moment(SystemClock().now()) or ""
    if status == RunStatus.READY and (record["ready_at"] or "") > now:
        status = f"ready, put off until {record['ready_at']}"
    since = f" since {record['since']}" if record["since"] else ""
    why = f": {record['note']}" if record["note"] else ""
    return printable(f"run {record['run_id']}: {status}{since}{why}")


def shown_to_people(record: Record) -> Record:
    """Return the fields of a run that are worth a line, without zeros and internals."""
    return {
        name: value
        for name, value in record.items()
        if name not in _INTERNAL and (value or name in ("input", "result"))
    }
