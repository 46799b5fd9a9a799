"""Signals: named values sent to a run from outside, kept until the run has taken them.

    (free id) ──receive──▶ untaken ──take──▶ taken          (each once)

An id is used once in its run, so a sender may send again. A signal that the run waits for resolves
that wait in the entry's own commit; one that is not awaited yet is kept all the same.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast import codec
from holdfast.errors import IntegrityError
from holdfast.kernel import runs, waits
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import Group, Wait, WaitStatus

WAIT_KIND: Final = "signal"
"""The kind of a wait that a signal of the wait's name resolves."""


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A signal as stored in its row. `taken_seq` 0 means that the run has not taken it yet."""

    tenant: str
    run_id: str
    signal_id: str
    name: str
    seq: int
    received_at: int
    received_by: str
    taken_seq: int = 0
    taken_at: int = 0

    @property
    def is_taken(self) -> bool:
        return self.taken_seq > 0


class SignalReceived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of SIGNAL_RECEIVED."""

    signal_id: str
    name: str


class SignalTaken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of SIGNAL_TAKEN."""

    signal_id: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of sending a signal: `accepted` exactly once per id, else what is known of it."""

    run_id: str
    signal_id: str
    accepted: bool
    seq: int
    received_by: str
    received_at: int


def receive(
    run: RunRow,
    signal_id: str,
    name: str,
    body: bytes,
    *,
    open_waits: Iterable[Wait] = (),
    groups: Mapping[str, Group],
) -> tuple[Draft, ...]:
    """Keep a signal whose id is free, and resolve the first wait for it with that id.

    Raises RunEnded for a run that takes no more. Waits that are not for it are passed over.
    """
    runs.check_alive(run)
    received = Draft(Kind.SIGNAL_RECEIVED, SignalReceived(signal_id, name), body)
    wait = _first_for(run, name, open_waits)
    if wait is None:
        return (received,)
    group = groups.get(wait.group_id)
    if group is None:
        raise IntegrityError(
            f"the row of wait {wait.wait_id} names a group that is not there; rebuild the rows of "
            f"run {run.run_id} with `holdfast store reindex`"
        )
    answer = codec.encode(signal_id, name="signal id")
    return (received, *waits.settle(run, wait, group, WaitStatus.RESOLVED, body=answer))


def _first_for(run: RunRow, name: str, among: Iterable[Wait]) -> Wait | None:
    waiting = [
        wait
        for wait in among
        if (wait.run_id, wait.kind, wait.name) == (run.run_id, WAIT_KIND, name)
        and wait.status is WaitStatus.OPEN
    ]
    return min(waiting, key=lambda wait: (wait.opened_seq, wait.wait_id), default=None)


def take(signal_id: str, body: bytes = b"") -> Draft:
    """Record that the run has taken a signal, with its answer; a store refuses the second time."""
    return Draft(Kind.SIGNAL_TAKEN, SignalTaken(signal_id), body)
