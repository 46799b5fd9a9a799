"""Handoffs: one context of a run ends, and another resumes from its last checkpoint.

    given ──▶ assigned ──▶ acknowledged
      └────────┴─────────▶ reverted        (not acknowledged in time, or refused)

The run stays the same: its effects, waits, approvals and budget need not be moved. What is given is
the right to continue, by `runs.agent`, in the commit of the giver's last checkpoint. Until somebody
acknowledges it, a wait of the run with the handoff's id says when it goes back to the giver.
"""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import ConflictError, IllegalMove
from holdfast.kernel import runs, waits
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.runs import (
    Acknowledged,
    AgentHandoff,
    Assigned,
    Requested,
    Reverted,
    RunRow,
    RunStatus,
)
from holdfast.kernel.waits import GroupStatus, WaitFacts

WAIT_KIND: Final = "handoff"
MAX_REASON: Final = 1000
MOST_REVERTS: Final = 3
"""After so many handoffs in a row that nobody acknowledged, an operator must act."""


def request(run: RunRow, to: str, note: str) -> Draft:
    """Ask that a run is handed over at the next boundary of its turns."""
    runs.check_alive(run)
    if run.handoff:
        raise IllegalMove(
            f"run {run.run_id} is being handed over already (handoff {run.handoff}); it goes on "
            "with its new agent, or goes back to its giver in time"
        )
    return Draft(Kind.HANDOFF_REQUESTED, Requested(to or runs.ANYBODY, note))


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a giver says: to whom (nobody: the orchestrator chooses), why, and until when."""

    handoff_id: str
    checkpoint_id: UUID
    version: int
    to: str
    trigger: str
    until: int
    note: str = ""
    tokens: int = 0
    window: int = 0


class Verification(msgspec.Struct, frozen=True):
    """The checkpoint that the orchestrator has read and found intact."""

    checkpoint_id: UUID
    version: int
    hash: str


class Selection(msgspec.Struct, frozen=True):
    """Which agent is to continue, and why."""

    to: str
    reason: str
    agent_type: str = ""


class HandoffProgress(msgspec.Struct, kw_only=True):
    """How far an orchestrator has come with a handoff: steps 5, 6 and 7."""

    received_at: int
    verified: Verification | None = None
    selected: Selection | None = None


def found(handoff_id: str, findings: HandoffProgress) -> tuple[Draft, ...]:
    """Record the steps that an orchestrator has taken, in the commit of what it decides."""
    drafts = [Draft(Kind.HANDOFF_RECEIVED, runs.HandoffReceived(handoff_id, findings.received_at))]
    if (seen := findings.verified) is not None:
        verified = runs.Verified(handoff_id, seen.checkpoint_id, seen.version, seen.hash)
        drafts.append(Draft(Kind.HANDOFF_VERIFIED, verified))
    if (chosen := findings.selected) is not None:
        reason = chosen.reason[:MAX_REASON]
        selected = runs.Selected(handoff_id, chosen.to, chosen.agent_type, reason)
        drafts.append(Draft(Kind.HANDOFF_SELECTED, selected))
    return tuple(drafts)


def give(run: RunRow, offer: Offer) -> tuple[Draft, ...]:
    """End the giver's context; the run waits for its receiver."""
    runs.check_move(run, Kind.AGENT_HANDOFF)
    # A request for an agent also counts if it came after the giver had decided.
    to = offer.to or ("" if run.wish == runs.ANYBODY else run.wish)
    given = AgentHandoff(
        offer.handoff_id,
        offer.checkpoint_id,
        offer.version,
        run.agent,
        to,
        offer.trigger,
        offer.until,
        offer.note,
        offer.tokens,
        offer.window,
    )
    named = to or run.agent or runs.ANYBODY
    wait = WaitFacts(offer.handoff_id, WAIT_KIND, named, offer.until)
    return (
        Draft(Kind.AGENT_HANDOFF, given),
        Draft(Kind.WAITS_OPENED, waits.WaitsOpened(offer.handoff_id, 0, (wait,))),
    )


def check_open(run: RunRow, handoff_id: str) -> None:
    """Raise unless this is the handoff that the run is in."""
    runs.check_alive(run)
    if run.handoff != handoff_id:
        now = f"handoff {run.handoff}" if run.handoff else "no handoff"
        raise ConflictError(
            f"handoff {handoff_id} of run {run.run_id} is over: the run is in {now}, with agent "
            f"{run.agent!r}; `holdfast journal show {run.run_id}` tells how it ended"
        )


def assign(run: RunRow, handoff_id: str, to: str, findings: HandoffProgress) -> tuple[Draft, ...]:
    """Assign the run to the agent `to`, with the findings; nothing if it was assigned already."""
    check_open(run, handoff_id)
    if run.status is not RunStatus.WAITING:
        return ()
    assigned = Draft(Kind.HANDOFF_ASSIGNED, Assigned(handoff_id, to))
    return (*found(handoff_id, findings), assigned)


def acknowledge(run: RunRow, *, agent: str, worker: str) -> tuple[Draft, ...]:
    """Record that the receiver has read the checkpoint and continues; fences the giver's writes."""
    handoff_id = run.handoff
    return (
        Draft(Kind.HANDOFF_ACKNOWLEDGED, Acknowledged(handoff_id, agent, worker)),
        Draft(Kind.WAIT_RESOLVED, waits.WaitSettled(handoff_id, handoff_id)),
        Draft(Kind.GROUP_CLOSED, waits.Closed(handoff_id, GroupStatus.SATISFIED, False)),
    )


def revert(run: RunRow, handoff_id: str, reason: str) -> tuple[Draft, ...]:
    """Give the run back to its giver, after its wait has ended; nothing if it is not open.

    A run that is repeatedly not acknowledged is blocked.
    """
    if run.handoff != handoff_id or run.status in runs.ENDED:
        return ()
    times = run.reverts + 1
    reverted = Draft(Kind.HANDOFF_REVERTED, Reverted(handoff_id, run.giver, times, reason))
    if times < MOST_REVERTS:
        return (reverted,)
    note = f"{times} handoffs in a row were not acknowledged; the last one: {reason}"
    return (reverted, Draft(Kind.RUN_BLOCKED, runs.Blocked(runs.BlockedReason.NO_AGENT, note)))


def refuse(
    run: RunRow, handoff_id: str, reason: str, findings: HandoffProgress | None = None
) -> tuple[Draft, ...]:
    """The same before its time is over: the wait ends with it.

    `findings` are those of an orchestrator that refuses; a receiver has none.
    """
    check_open(run, handoff_id)
    before = () if findings is None else found(handoff_id, findings)
    wakes = run.status is RunStatus.WAITING and run.waiting_on == handoff_id
    closed = waits.Closed(handoff_id, GroupStatus.CANCELLED, wakes)
    return (*before, Draft(Kind.GROUP_CLOSED, closed), *revert(run, handoff_id, reason))


class Standing(msgspec.Struct, frozen=True):
    """Who worked on a run at some point of its journal: the agent, and the context's number."""

    agent: str
    contexts: int


def standing_at(entries: Iterable[tuple[Entry, object]], agent: str) -> Standing:
    """Return who worked on a run after these entries of its journal, which `agent` began."""
    contexts = 1
    for _, facts in entries:
        match facts:
            case Acknowledged():
                agent, contexts = facts.agent, contexts + 1
            case runs.Rewound() if facts.agent:
                agent, contexts = facts.agent, facts.contexts
            case _:
                pass
    return Standing(agent, contexts)
