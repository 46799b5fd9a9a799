"""Calls of peers: who owes whom a message, by what was just entered on a journal.

A wait for a peer has the peer's address, a run that a caller waits for has the address to report
its end to. `store:` is a run of the same store: the peer's run has the id of the
caller's wait. `queue:NAME` is a queue of the transport. `call:ID` is a call that was made before,
by this run or by one that it is a fork of: the new caller joins the one that waits for it.

    join      a wait for a call that is under way was opened: it may have ended already
    request   a wait for a peer elsewhere was opened: it is to begin
    cancel    a wait for a peer was given up, or its time is over: it may stop
    reply     a run that somebody waits for has ended
    asks      such a run asks a person something
    answer    a person answered what a peer elsewhere asked
    alive     such a run continues after it waited
    taken     a worker has taken such a run
    working   such a run has stored a checkpoint
    handoff   a context of the run has ended: another is to continue
"""

from typing import Any, Final

import msgspec

from holdfast.kernel import checkpoints, runs, waits
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.messages import OUTBOX, OUTGOING, OWED_TOPICS, AddMessage, QueuedMessage
from holdfast.kernel.runs import RunRow

PEER: Final = "peer"
QUESTION: Final = "question"
STORE: Final = "store:"
CANCELS: Final = ("cancelled", *OWED_TOPICS)
"""The topics of a cancelled run: for its worker, and for those that notify its peers."""
_QUEUE: Final = "queue:"
_CALL: Final = "call:"
_WORKING_MICROSECONDS: Final = 250_000
"""Of the checkpoints within this time one is a sign of life."""
TAKEN_MICROSECONDS: Final = 250_000
"""How long after it was taken a run gives its first sign of life: many have ended by then."""
_OWN_MICROSECONDS: Final = 250_000
"""For how long a reply is left to the process that completed the run: it needs no claim."""
FOR_PEOPLE: Final = frozenset({QUESTION, "approval"})


class Note(msgspec.Struct, frozen=True, gc=False):
    """What the headers of an owed message say: its content is entry `seq` of the run it is from.

    `subject` is the id of the wait that it is about, which is the id of the peer's run as well.
    """

    kind: str
    address: str
    subject: str
    seq: int


def queue_at(address: str) -> str:
    """The queue of the transport that an address names; "" for the same store."""
    return address.removeprefix(_QUEUE) if address.startswith(_QUEUE) else ""


def at_queue(queue: str) -> str:
    """The address of a queue of the transport."""
    return f"{_QUEUE}{queue}"


def at_call(wait_id: str) -> str:
    """The address of a call that was made before."""
    return f"{_CALL}{wait_id}"


def call_at(address: str) -> str:
    """The call that was made before which an address names; "" if it names none."""
    return address.removeprefix(_CALL) if address.startswith(_CALL) else ""


def call_of(wait_id: str, address: str) -> str:
    """The call that a wait is for, which is the id of its peer's run: its own, or an earlier."""
    return call_at(address) or wait_id


OWING: Final = frozenset(
    {
        Kind.WAITS_OPENED,
        Kind.WAIT_RESOLVED,
        Kind.WAIT_EXPIRED,
        Kind.WAIT_CANCELLED,
        Kind.AGENT_HANDOFF,
    }
)
"""The kinds of entries that may make any run owe a message; others only one with a caller."""


def owed(run: RunRow | None, entry: Entry, facts: Any) -> list[AddMessage]:
    """What an entry makes its run owe; `run` is as it was before."""
    match facts:
        case waits.WaitsOpened():
            return [*_requests(entry, facts), *_asked(run, entry, facts)]
        case waits.WaitSettled(wait_id, _, address) if address:
            kind = "answer" if entry.kind == Kind.WAIT_RESOLVED else "cancel"
            return [_owe(entry, kind, address, wait_id)]
        case waits.Closed(wakes=True) if run is not None and run.reply_to:
            return [_owe(entry, "alive", run.reply_to, run.run_id, f"alive/{entry.seq}")]
        case runs.RunLeased() if run is not None and run.reply_to:
            sign = _sign(entry, run, "taken", f"taken/{entry.seq}")
            return [_put_off(sign, TAKEN_MICROSECONDS)]
        case checkpoints.CheckpointCreated() if run is not None and run.reply_to:
            name = f"working/{entry.at // _WORKING_MICROSECONDS}"
            return [_sign(entry, run, "working", name)]
        case runs.AgentHandoff(handoff_id):
            return [_owe(entry, "handoff", STORE, handoff_id)]
        case runs.RunFinished() if run is not None and run.reply_to:
            reply = _owe(entry, "reply", run.reply_to, run.run_id)
            is_here = run.reply_to == STORE and entry.kind == Kind.RUN_COMPLETED
            return [_put_off(reply, _OWN_MICROSECONDS) if is_here else reply]
        case _:
            return []


def _requests(entry: Entry, facts: waits.WaitsOpened) -> list[AddMessage]:
    calls = [wait for wait in facts.waits if wait.kind == PEER]
    return [
        _owe(entry, "request" if queue_at(wait.address) else "join", wait.address, wait.wait_id)
        for wait in calls
        if queue_at(wait.address) or call_at(wait.address)
    ]


def _asked(run: RunRow | None, entry: Entry, facts: waits.WaitsOpened) -> list[AddMessage]:
    if run is None or not run.reply_to:
        return []
    return [
        _owe(entry, "asks", run.reply_to, run.run_id, f"asks/{wait.wait_id}")
        for wait in facts.waits
        if wait.kind in FOR_PEOPLE
    ]


def _sign(entry: Entry, run: RunRow, kind: str, name: str) -> AddMessage:
    """A sign of life. It has no ordering: the reply must not wait until it is delivered.

    One that is already on its way makes later ones of the same name unnecessary.
    """
    message = _owe(entry, kind, run.reply_to, run.run_id, name).message
    return AddMessage(msgspec.structs.replace(message, ordering=""))


def _put_off(owed: AddMessage, delay: int) -> AddMessage:
    due_at = owed.message.due_at + delay
    return AddMessage(msgspec.structs.replace(owed.message, due_at=due_at))


def messages_of_reply(run_id: str, lease_seq: int) -> tuple[str, ...]:
    """The ids of the messages that the reply of a run settles: its own, and that it was taken."""
    return (f"{run_id}/reply", f"{run_id}/taken/{lease_seq}")


def _owe(entry: Entry, kind: str, address: str, subject: str, name: str = "") -> AddMessage:
    note = Note(kind, address, subject, entry.seq)
    return AddMessage(
        QueuedMessage(
            tenant=entry.tenant,
            queue=OUTGOING if queue_at(address) else OUTBOX,
            message_id=f"{subject}/{name or kind}",
            ordering=entry.run_id,
            headers=msgspec.json.encode(note).decode(),
            created_at=entry.at,
            due_at=entry.at,
        )
    )
