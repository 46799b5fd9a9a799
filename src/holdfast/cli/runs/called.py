"""The peers that a run has called, and what has become of each call."""

from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.kernel.peers import PEER
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import Wait
from holdfast.sync import Holdfast
from holdfast.terminal.records import Record, progress_of
from holdfast.terminal.text import moment

COLUMNS: Final = {
    "PEER'S RUN": "wait_id",
    "PEER": "peer",
    "CALL": "status",
    "RUN": "run_status",
    "DEADLINE": "deadline",
    "PROGRESS": "progress",
    "DUPLICATES": "duplicates",
}
_PAGE: Final = 1000


def records(hf: Holdfast, run_id: str, waits: Sequence[Wait]) -> list[Record]:
    """The calls of a run in the order of its waits; none if it called nobody."""
    calls = [wait for wait in waits if wait.kind == PEER]
    begun = {run.run_id: run.status.value for run in _begun(hf, run_id)} if calls else {}
    return [
        {
            "wait_id": wait.wait_id,
            "peer": wait.name,
            "status": wait.status.value,
            "run_status": begun.get(wait.wait_id),
            "opened_at": moment(wait.opened_at),
            "deadline": moment(wait.deadline),
            "settled_at": moment(wait.settled_at),
            "progress": progress_of(wait),
            "progress_at": moment(wait.progress_at),
            "duplicates": wait.duplicates,
        }
        for wait in calls
    ]


def _begun(hf: Holdfast, run_id: str) -> Iterator[RunRow]:
    """The runs of this store that a run is the parent of."""
    last: RunRow | None = None
    while page := hf.runs.list(parent_id=run_id, limit=_PAGE, before=last):
        yield from page
        last = page[-1]
