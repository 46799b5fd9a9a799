"""Waits: what a run needs from outside, and groups of them.

    open ──▶ resolved | expired | cancelled          (each wait once)
    group: open ──▶ satisfied | failed | cancelled   (each group once; the entry fixes its results)

A group of mode `all` is satisfied when each of its waits is settled, `any` and `n` when that many
are resolved; a number that can no longer be reached fails the group at once.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.kernel import runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import RunRow, RunStatus


class WaitStatus(StrEnum):
    """The state of a wait."""

    OPEN = "open"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class GroupStatus(StrEnum):
    """The state of waits that were opened together."""

    OPEN = "open"
    SATISFIED = "satisfied"
    FAILED = "failed"  # too few can still be resolved
    CANCELLED = "cancelled"


KIND_OF: Final = {
    WaitStatus.RESOLVED: Kind.WAIT_RESOLVED,
    WaitStatus.EXPIRED: Kind.WAIT_EXPIRED,
    WaitStatus.CANCELLED: Kind.WAIT_CANCELLED,
}
STATUS_OF: Final = {kind: status for status, kind in KIND_OF.items()}


FIXED_KINDS: Final = frozenset({"approval", "question", "timer", "signal", "handoff"})
"""Kinds that end at the deadline they were opened with: no peer gives a sign of life for them."""


class Wait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wait as stored in its row. `deadline` 0 means none."""

    tenant: str
    wait_id: str
    run_id: str
    group_id: str
    kind: str
    name: str
    deadline: int
    status: WaitStatus
    opened_seq: int
    opened_at: int
    result_seq: int = 0
    settled_by: str = ""
    settled_at: int = 0
    duplicates: int = 0
    progress_at: int = 0
    address: str = ""  # of the peer it is about
    patience: int = 0  # how long a sign of life lasts
    claimed_by: str = ""
    claimed_until: int = 0
    progress: str = ""  # what the peer said last, as JSON

    @property
    def is_moved(self) -> bool:
        """Whether a sign of life set the deadline: to at least as long as one lasts."""
        if self.kind in FIXED_KINDS or not self.progress_at:
            return False
        return not self.deadline or self.deadline >= self.progress_at + self.patience


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Waits opened together. `need` 0 means all of them, however they end."""

    tenant: str
    run_id: str
    group_id: str
    need: int
    total: int
    resolved: int = 0
    failed: int = 0
    status: GroupStatus = GroupStatus.OPEN
    closed_seq: int = 0


class WaitFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One wait of WAITS_OPENED."""

    wait_id: str
    kind: str
    name: str
    deadline: int
    address: str = ""
    patience: int = 0


class WaitsOpened(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of WAITS_OPENED."""

    group_id: str
    need: int
    waits: tuple[WaitFacts, ...]


class WaitSettled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of WAIT_RESOLVED, WAIT_EXPIRED and WAIT_CANCELLED; `address` of a peer to notify."""

    wait_id: str
    group_id: str
    address: str = ""


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of GROUP_CLOSED; `wakes` says that the run was waiting for it."""

    group_id: str
    status: GroupStatus
    wakes: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of an attempt to settle a wait: `accepted` exactly once per wait."""

    wait_id: str
    accepted: bool
    status: WaitStatus
    settled_by: str
    settled_at: int
    result_seq: int = 0
    completed: int = 0  # waits of its group that are settled, this one included
    total: int = 0  # waits of its group


def needed(mode: str | int, total: int) -> int:
    """How many resolved waits satisfy a group of this mode; 0 means that all must be settled."""
    if total < 1:
        raise MisuseError("a group needs at least one wait")
    if mode == "all":
        return 0
    number = 1 if mode == "any" else mode
    if type(number) is not int or not 1 <= number <= total:
        raise MisuseError(f"mode must be 'all', 'any' or a number from 1 to {total}, not {mode!r}")
    return number


def judge(group: Group) -> GroupStatus:
    """Return the status of a group by its counts."""
    if group.need == 0:
        settled = group.resolved + group.failed == group.total
        return GroupStatus.SATISFIED if settled else GroupStatus.OPEN
    if group.resolved >= group.need:
        return GroupStatus.SATISFIED
    if group.total - group.failed < group.need:
        return GroupStatus.FAILED
    return GroupStatus.OPEN


def is_due(wait: Wait, now: int) -> bool:
    """Return whether its time is over, and it is not claimed."""
    is_over = wait.status is WaitStatus.OPEN and 0 < wait.deadline <= now
    return is_over and not is_claimed(wait, now)


def is_claimed(wait: Wait, now: int) -> bool:
    """Return whether it is claimed to be answered soon."""
    return wait.claimed_until > now


def counted(group: Group, *, resolved: int = 0, failed: int = 0) -> Group:
    return msgspec.structs.replace(
        group, resolved=group.resolved + resolved, failed=group.failed + failed
    )


def settle(
    run: RunRow, wait: Wait, group: Group, status: WaitStatus, *, body: bytes = b""
) -> tuple[Draft, ...]:
    """Settle an open wait, and close its group (waking the run) when that decides it."""
    is_resolved = status is WaitStatus.RESOLVED
    # Notify a peer whose question was answered; one that has answered needs no message.
    address = wait.address if is_resolved == (wait.kind != "peer") else ""
    drafts = [Draft(KIND_OF[status], WaitSettled(wait.wait_id, wait.group_id, address), body)]
    after = judge(counted(group, resolved=int(is_resolved), failed=int(not is_resolved)))
    if group.status is GroupStatus.OPEN and after is not GroupStatus.OPEN:
        wakes = run.status is RunStatus.WAITING and run.waiting_on == group.group_id
        drafts.append(Draft(Kind.GROUP_CLOSED, Closed(group.group_id, after, wakes)))
    return tuple(drafts)


def suspend(run: RunRow, group: Group) -> Draft | None:
    """Suspend the run until its waits end; None if the group is closed already."""
    runs.check_move(run, Kind.RUN_WAITING)
    if group.status is not GroupStatus.OPEN:
        return None
    return Draft(Kind.RUN_WAITING, runs.Suspended(group.group_id))


class Result(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one wait of a closed group ended, with what was answered."""

    wait_id: str
    kind: str
    name: str
    status: WaitStatus
    value: Any
    settled_by: str
