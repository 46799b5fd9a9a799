"""Runs: their states, the legal moves between them, and what an entry does to a run.

`MOVES` is the table of moves; besides these only a closed group moves a run, from waiting to ready.
"""

from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import (
    IllegalMove,
    IntegrityError,
    MisuseError,
    RunCancelled,
    RunEnded,
    SchemaMismatch,
)
from holdfast.kernel import journal
from holdfast.kernel.journal import Header, Kind


class RunStatus(StrEnum):
    """Where a run is."""

    READY = "ready"  # wants a worker
    RUNNING = "running"  # leased
    WAITING = "waiting"  # a group of open waits will end it
    BLOCKED = "blocked"  # an operator must act
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BlockedReason(StrEnum):
    """Why an operator must act."""

    UNKNOWN_EFFECT = "unknown_effect"
    BUDGET = "budget"
    BREAKER = "breaker"
    CORRUPTION = "corruption"
    NO_AGENT = "no_agent"


ENDED: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
ALIVE: Final = frozenset(RunStatus) - ENDED

MOVES: Final[dict[Kind, tuple[frozenset[RunStatus], RunStatus]]] = {
    Kind.RUN_LEASED: (frozenset({RunStatus.READY, RunStatus.RUNNING}), RunStatus.RUNNING),
    Kind.RUN_RELEASED: (frozenset({RunStatus.RUNNING}), RunStatus.READY),
    Kind.RUN_WAITING: (frozenset({RunStatus.RUNNING}), RunStatus.WAITING),
    Kind.LEASE_EXPIRED: (frozenset({RunStatus.RUNNING}), RunStatus.READY),
    Kind.RUN_BLOCKED: (ALIVE, RunStatus.BLOCKED),
    Kind.RUN_UNBLOCKED: (frozenset({RunStatus.BLOCKED}), RunStatus.READY),
    Kind.RUN_COMPLETED: (frozenset({RunStatus.RUNNING}), RunStatus.COMPLETED),
    Kind.RUN_FAILED: (frozenset({RunStatus.RUNNING}), RunStatus.FAILED),
    Kind.RUN_CANCELLED: (ALIVE, RunStatus.CANCELLED),
    Kind.RUN_REWOUND: (ALIVE, RunStatus.READY),
    Kind.AGENT_HANDOFF: (frozenset({RunStatus.READY, RunStatus.RUNNING}), RunStatus.WAITING),
    Kind.HANDOFF_ASSIGNED: (frozenset({RunStatus.WAITING}), RunStatus.READY),
    Kind.HANDOFF_REVERTED: (
        frozenset({RunStatus.WAITING, RunStatus.READY, RunStatus.RUNNING}),
        RunStatus.READY,
    ),
    Kind.RECOVERY_INITIATED: (frozenset({RunStatus.READY, RunStatus.RUNNING}), RunStatus.READY),
}

CHANGING: Final = frozenset(
    {
        *MOVES,
        Kind.RUN_CREATED,
        Kind.GROUP_CLOSED,
        Kind.HANDOFF_REQUESTED,
        Kind.HANDOFF_ACKNOWLEDGED,
        Kind.RECOVERY_COMPLETED,
        Kind.RECOVERY_FAILED,
    }
)
"""The kinds of entries that may change a run's row. All others leave it as it is."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run as stored in its row. `lease_seq` names the entry that gave `worker` its lease."""

    tenant: str
    run_id: str
    agent: str = ""
    status: RunStatus = RunStatus.READY
    blocked_reason: str = ""
    created_at: int = 0
    ready_at: int = 0
    worker: str = ""
    lease_seq: int = 0
    attempts: int = 0
    waiting_on: str = ""
    result_seq: int = 0
    root_id: str = ""
    parent_id: str = ""
    forked_from: str = ""
    forked_version: int = 0
    input_digest: bytes = b""
    schema: int = 1  # the newest among its entries
    reply_to: str = ""  # where its outcome is reported
    subject: str = ""  # what it is about, among those of its agent
    owner: str = ""  # the principal that started it; nobody's if empty
    handoff: str = ""  # the id of the handoff it is in, until that is acknowledged or reverted
    giver: str = ""  # its agent again if nobody acknowledges
    wish: str = ""  # to whom it is to be handed over at the next boundary of its turns
    contexts: int = 1  # how many have worked on it: the first, and one per handoff
    reverts: int = 0  # how many handoffs in a row nobody acknowledged
    is_recovering: bool = False  # it was lost or broke, and has not resumed yet
    lost: int = 0  # how many of its attempts in a row ended with the loss of a worker
    losses: str = "[]"  # the last of those losses, as JSON


class RunCreated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_CREATED. A run without a root is its own."""

    agent: str = ""
    input_digest: bytes = b""
    root_id: str = ""
    parent_id: str = ""
    forked_from: str = ""
    forked_version: int = 0
    note: str = ""
    reply_to: str = ""
    subject: str = ""
    owner: str = ""
    resend: tuple[str, ...] = ()  # what the runs it continues did, and it is to send again
    parent_seq: int = 0  # the last entry of its parent then, if that did not call it


class Rewound(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_REWOUND: the version whose state the run resumes from."""

    version: int
    note: str = ""
    agent: str = ""  # who worked on it then, if that has changed since
    contexts: int = 1
    keeps_waits: bool = False  # what is not cancelled by entries that follow stays open


class Released(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_RELEASED and RUN_UNBLOCKED: when the run wants a worker again.

    `keeps_losses` is set if nobody worked on the run under this lease: it has not proven anything.
    """

    ready_at: int = 0
    note: str = ""
    keeps_losses: bool = False


class Suspended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_WAITING: the group that will wake the run."""

    group_id: str


class Blocked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_BLOCKED."""

    reason: BlockedReason
    note: str = ""


class RunFinished(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_COMPLETED, RUN_FAILED and RUN_CANCELLED."""

    note: str = ""


class RunLeased(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RUN_LEASED."""

    worker: str


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker that was lost while it held a run: how often it had beaten, and the blame."""

    worker: str
    beats: int
    how: str


class LeaseExpired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of LEASE_EXPIRED: attempts in a row without progress, and the losses among them."""

    worker: str
    attempts: int
    ready_at: int = 0
    lost: int = 0
    losses: tuple[Loss, ...] = ()


class Requested(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_REQUESTED."""

    to: str
    note: str = ""


class AgentHandoff(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of AGENT_HANDOFF. `to` is the agent the giver wishes for; empty: any.

    `tokens` are those that the giver's context used of its model's `window`; 0: not known.
    """

    handoff_id: str
    checkpoint_id: UUID
    version: int
    giver: str
    to: str
    trigger: str
    until: int
    note: str = ""
    tokens: int = 0
    window: int = 0


class HandoffReceived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_RECEIVED: which handoff, and when the orchestrator received it."""

    handoff_id: str
    received_at: int


class Verified(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_VERIFIED: the checkpoint that was read, and the hash of its record."""

    handoff_id: str
    checkpoint_id: UUID
    version: int
    hash: str


class Selected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_SELECTED: the next agent, its type if it is known, and why."""

    handoff_id: str
    to: str
    agent_type: str
    reason: str


class Assigned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_ASSIGNED: which agent is to continue."""

    handoff_id: str
    to: str


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_ACKNOWLEDGED: which agent continues, and in which process."""

    handoff_id: str
    agent: str
    worker: str


class Reverted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of HANDOFF_REVERTED: its agent again, and how often in a row that happened."""

    handoff_id: str
    agent: str
    times: int
    note: str = ""


class RecoveryInitiated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RECOVERY_INITIATED: the checkpoint to resume from (none: the start), and why.

    `attempts` is how often in a row it was lost, or broke, without progress; 0 if somebody asked
    for the recovery. `gaps` are seqs, from and to, that are missing and were accepted so.
    """

    checkpoint_id: UUID | None
    version: int
    reason: str
    attempts: int
    ready_at: int = 0
    note: str = ""
    gaps: tuple[tuple[int, int], ...] = ()


class RecoveryCompleted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RECOVERY_COMPLETED: from which checkpoint which agent resumes."""

    checkpoint_id: UUID | None
    version: int
    agent: str
    worker: str


class RecoveryFailed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of RECOVERY_FAILED: why the run cannot resume without an operator."""

    checkpoint_id: UUID | None
    version: int
    reason: str
    attempts: int
    note: str = ""


LOST: Final = "lost"
"""The reason of a recovery from the loss of a worker."""


def losses_of(run: RunRow) -> tuple[Loss, ...]:
    """The workers that were lost in a row while they held the run, without progress."""
    try:
        return msgspec.json.decode(run.losses, type=tuple[Loss, ...])
    except msgspec.MsgspecError as error:
        raise IntegrityError(f"the row of run {run.run_id} has losses that cannot be") from error


def reason_of(reason: BlockedReason | str) -> BlockedReason:
    """Return a reason by its name. Raises MisuseError for an unknown name."""
    if reason not in set(BlockedReason):
        raise MisuseError(f"{reason!r} is no reason; one of {', '.join(BlockedReason)} is")
    return BlockedReason(reason)


def check_move(run: RunRow, kind: Kind) -> None:
    """Raise unless `kind` may happen to the run now; an ended run says how it ended."""
    allowed, _ = MOVES[kind]
    if run.status in allowed:
        return
    check_alive(run)
    expected = " or ".join(sorted(allowed - ENDED))
    raise IllegalMove(f"run {run.run_id} is {run.status}; this needs it to be {expected}")


def check_alive(run: RunRow) -> None:
    """Raise RunEnded (RunCancelled for a cancelled one) if the run takes no more work."""
    if run.status is RunStatus.CANCELLED:
        raise RunCancelled(f"run {run.run_id} was cancelled: stop working on it")
    if run.status in ENDED:
        raise RunEnded(
            f"run {run.run_id} has {run.status}; fork it to go on from one of its versions: "
            f"`holdfast runs fork {run.run_id} --at VERSION`"
        )


def is_blocked_by_effect(run: RunRow) -> bool:
    """Return whether the run waits for an operator to report the outcome of an effect."""
    return run.status is RunStatus.BLOCKED and run.blocked_reason == BlockedReason.UNKNOWN_EFFECT


def check_understood(run: RunRow) -> None:
    """Raise if the run has entries of a newer Holdfast: this version must not move it."""
    if run.schema > journal.SCHEMA:
        raise SchemaMismatch(
            f"run {run.run_id} has entries of schema {run.schema}, and this version of Holdfast "
            f"knows {journal.SCHEMA}: a newer one works on it. Upgrade Holdfast here"
        )


def check_leased(run: RunRow) -> None:
    """Raise unless a worker holds the run."""
    check_alive(run)
    if run.status is not RunStatus.RUNNING:
        raise IllegalMove(f"run {run.run_id} is {run.status}; open it to work on it")


def fold(run: RunRow | None, entry: Header, facts: object) -> RunRow:
    """The run after `entry`: the only place that says what an entry does to a run's row."""
    if run is None:
        return _created(entry, facts)
    match facts:
        case RunLeased(worker):
            return _moved(run, entry, worker=worker, lease_seq=entry.seq)
        case LeaseExpired(_, attempts, ready_at, lost, losses):
            fields = {"lost": lost, "losses": msgspec.json.encode(losses).decode()}
            return _moved(run, entry, attempts=attempts, ready_at=ready_at or entry.at, **fields)
        case Released(ready_at):
            return _moved(run, entry, ready_at=ready_at or entry.at, **_released(run, entry, facts))
        case Suspended(group_id):
            return _moved(run, entry, waiting_on=group_id, attempts=0, **_NO_LOSSES)
        case Blocked(reason):
            return _moved(run, entry, blocked_reason=reason.value, **_given_back(run))
        case RunFinished():
            back = _NO_HANDOFF | _given_back(run)
            return _moved(run, entry, result_seq=entry.seq, **back)
        case Rewound():
            agent, contexts = facts.agent or run.agent, facts.contexts
            if not facts.agent:
                contexts = run.contexts
                agent = run.giver if run.handoff else run.agent
            going = {"agent": agent, "contexts": contexts, "attempts": 0, "is_recovering": False}
            going |= _NO_LOSSES
            return _moved(run, entry, ready_at=entry.at, **_NO_HANDOFF, **going)
        case _:
            return _fold_handoff(run, entry, facts)


ANYBODY: Final = "*"
"""The wish of a handoff request that names no agent."""
_NO_HANDOFF: Final[dict[str, object]] = {"handoff": "", "giver": "", "wish": ""}
# Its worker is alive, has worked on it and released it: the run caused no loss.
_NO_LOSSES: Final[dict[str, object]] = {"lost": 0, "losses": "[]"}


def _released(run: RunRow, entry: Header, facts: Released) -> dict[str, object]:
    """Return what is still counted against a run that was released or unblocked."""
    if facts.keeps_losses:
        return {}
    is_anew = entry.kind == Kind.RUN_UNBLOCKED
    attempts, reverts = (0, 0) if is_anew else (run.attempts - run.lost, run.reverts)
    return {"attempts": attempts, "reverts": reverts, **_NO_LOSSES}


def _given_back(run: RunRow) -> dict[str, object]:
    """Give a run that is blocked or ends before its handoff is acknowledged back to the giver."""
    return {**_NO_HANDOFF, "agent": run.giver} if run.handoff else {}


def _fold_handoff(run: RunRow, entry: Header, facts: object) -> RunRow:
    match facts:
        case Requested(to):
            return msgspec.structs.replace(run, wish=to)
        case AgentHandoff(handoff_id, giver=giver):
            is_met = run.wish in (ANYBODY, facts.to)
            wish = "" if is_met else run.wish
            going = {"waiting_on": handoff_id, "handoff": handoff_id, "giver": giver, "wish": wish}
            return _moved(run, entry, **going)
        case Assigned(_, to):
            # Ahead of runs that became ready since: it is under way, and has a time limit.
            return _moved(run, entry, agent=to, ready_at=run.created_at)
        case Acknowledged(_, agent):
            contexts = run.contexts + 1
            gone = {**_NO_HANDOFF, "wish": run.wish, "reverts": 0}
            return msgspec.structs.replace(run, agent=agent, contexts=contexts, **gone)
        case Reverted(_, agent, times):
            back = {"agent": agent, "reverts": times, **_NO_HANDOFF}
            return _moved(run, entry, ready_at=run.created_at, **back)
        case _:
            return _fold_recovery(run, entry, facts)


def _fold_recovery(run: RunRow, entry: Header, facts: object) -> RunRow:
    match facts:
        case RecoveryInitiated(attempts=attempts, ready_at=ready_at):
            kept = {} if facts.reason == LOST else _NO_LOSSES
            going = {"attempts": attempts, "ready_at": ready_at or entry.at, **kept}
            return _moved(run, entry, is_recovering=True, **going)
        case RecoveryCompleted() | RecoveryFailed():
            return msgspec.structs.replace(run, is_recovering=False)
        case _:
            return run


def woken(run: RunRow, at: int) -> RunRow:
    """The run after the group it waited for was closed."""
    return msgspec.structs.replace(run, status=RunStatus.READY, ready_at=at, waiting_on="")


def _created(entry: Header, facts: object) -> RunRow:
    assert isinstance(facts, RunCreated), "a journal begins with RUN_CREATED"
    return RunRow(
        tenant=entry.tenant,
        run_id=entry.run_id,
        agent=facts.agent,
        created_at=entry.at,
        ready_at=entry.at,
        root_id=facts.root_id or entry.run_id,
        parent_id=facts.parent_id,
        forked_from=facts.forked_from,
        forked_version=facts.forked_version,
        input_digest=facts.input_digest,
        schema=entry.schema,
        reply_to=facts.reply_to,
        subject=facts.subject,
        owner=facts.owner,
    )


def _moved(run: RunRow, entry: Header, **changed: object) -> RunRow:
    _, target = MOVES[Kind(entry.kind)]
    fields: dict[str, object] = {
        "status": target,
        "waiting_on": "",
        "blocked_reason": "",
        "worker": "",
        "lease_seq": 0,
    }
    return msgspec.structs.replace(run, **(fields | changed))
