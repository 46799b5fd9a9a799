"""The outbox: messages between runs of this store, delivered at least once.

A message is in the same commit as the event it reports, so none is lost. It is removed after its
delivery, so one that is delivered twice finds its wait settled. The process that commits a message
delivers it right away if it can; every worker delivers what is left.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from holdfast import faults
from holdfast.clock import MICROSECONDS
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.messages import peers
from holdfast.engine.messages.courier import Courier
from holdfast.engine.messages.queues import Queues
from holdfast.engine.messages.replies import PeerReply, intact_entry, reply_of, reply_of_held
from holdfast.engine.waits import Waits
from holdfast.errors import HoldfastError, MisuseError, UnavailableError, WaitNotFound
from holdfast.kernel import indexes
from holdfast.kernel.messages import OUTBOX, QueuedMessage
from holdfast.kernel.peers import Note, call_at, messages_of_reply
from holdfast.telemetry import log

_TRIES: Final = 10
_ELSEWHERE_SECONDS: Final = 0.2
_UNAVAILABLE_SECONDS: Final = 1.0

Tell = Callable[[QueuedMessage, str], Awaitable[None]]
"""Reports to the waiting caller that a message is given up, and why."""

_notes: Final = msgspec.json.Decoder(Note, strict=False)


def note_of(message: QueuedMessage) -> Note:
    """Return what a message is about."""
    return _notes.decode(message.headers)


def by_subject(messages: Sequence[QueuedMessage]) -> list[list[QueuedMessage]]:
    """Group messages by wait: those of one wait are delivered in order, without delaying others."""
    found: dict[str, list[QueuedMessage]] = {}
    for message in messages:
        try:
            about = note_of(message).subject
        except msgspec.MsgspecError:
            about = message.message_id
        found.setdefault(about, []).append(message)
    return list(found.values())


class NotHere(HoldfastError):
    """This process cannot deal with a message: it is left to another."""


class Outbox:
    """Delivers what is due, in this process. `orchestrate` chooses the receiver of a handoff."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.orchestrate: Callable[[str, str, int], Awaitable[None]] | None = None
        self._queues = Queues(context)
        self._waits = Waits(context)
        lease = context.settings.lease_seconds
        self._courier = Courier(
            self._queues, OUTBOX, self._deliver_each, lease=lease, split=by_subject
        )

    async def deliver(self) -> int:
        """Deliver everything that is due now. Returns the number of messages."""
        return await self._courier.deliver_due()

    async def deliver_if_due(self) -> float | None:
        """Deliver as above, without a write if nothing is due; failures are retried later.

        Returns the seconds until a message becomes due; None if there is none, or it is not known.
        """
        try:
            due_at = await self._context.store.messages.next_due_at(OUTBOX, 0)
            if due_at is not None and due_at > self._context.now():
                return (due_at - self._context.now()) / MICROSECONDS
            if due_at is not None:
                await self.deliver()
        except HoldfastError as error:
            log.warning("what runs owe each other was not delivered yet: %s", error)
        return None

    async def deliver_reply(self, held: LeasedRun, lease_seq: int) -> None:
        """Deliver the reply of a run that this process has just completed, without claiming it.

        If that fails, the message is delivered like any other when it is due.
        """
        run = held.run
        forgets = messages_of_reply(run.run_id, lease_seq)
        faults.point("outbox.before_reply")
        try:
            await peers.answer(
                self._context,
                run.run_id,
                reply_of_held(held),
                caller_id=run.parent_id,
                forgets=forgets,
            )
        except HoldfastError as error:
            log.debug("the reply of run %s is delivered later: %s", run.run_id, error)
        faults.point("outbox.after_reply")

    async def keep_delivering(self) -> None:
        """Deliver what becomes due, until this is cancelled."""
        await self._courier.keep_delivering(self._context.settings.wakeup_poll_seconds)

    async def _deliver_each(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            await self._deliver(message)

    async def _deliver(self, message: QueuedMessage) -> None:
        try:
            await self._carry_out(message, note_of(message))
        except UnavailableError as error:
            note, pause = str(error)[:1000], _UNAVAILABLE_SECONDS
            log.warning("message %s was not delivered yet: %s", message.message_id, note)
            await self._queues.retry(message, delay=pause, note=note, is_counted=False)
        except WaitNotFound as error:
            log.warning("nobody waits for the reply, it is left alone: %s", error)
            await self._queues.ack(message)
        except NotHere as error:
            note = str(error)[:1000]
            await self._queues.retry(message, delay=_ELSEWHERE_SECONDS, note=note, is_counted=False)
        except Exception as error:  # one that cannot be delivered must not stop the others
            if not isinstance(error, HoldfastError | msgspec.MsgspecError):
                log.exception("message %s could not be delivered", message.message_id)
            await put_off(self._queues, message, error, tries=_TRIES, tell=self._tell_lost)
        else:
            faults.point("outbox.after_delivery")
            await self._queues.ack(message)
            faults.point("outbox.after_ack")

    async def _tell_lost(self, message: QueuedMessage, why: str) -> None:
        note = note_of(message)
        if note.kind == "reply":
            await peers.answer(self._context, note.subject, lost("its reply", why))

    async def _carry_out(self, message: QueuedMessage, note: Note) -> None:
        match note.kind:
            case "reply":
                reply = await reply_of(self._context, note.subject, note.seq)
                try:
                    await peers.answer(self._context, note.subject, reply)
                except MisuseError as error:
                    text = f"its answer cannot be given back: {error}"
                    failed = PeerReply(status="failed", error=text[:1000])
                    await peers.answer(self._context, note.subject, failed)
            case "cancel":
                await peers.give_up(self._context, note.subject, note.address)
            case "join":
                call = call_at(note.address)
                await peers.join(self._context, self._waits, note.subject, call)
            case "asks":
                entry = await intact_entry(self._context, message.ordering, note.seq)
                until = peers.asked_until(self._context, indexes.facts_of(entry))
                await peers.hear_from(self._context, note.subject, until=until)
            case "handoff":
                if self.orchestrate is None:
                    raise NotHere("nobody here decides who goes on after a handoff")
                await self.orchestrate(message.ordering, note.subject, note.seq)
            case "taken" | "working":
                await peers.hear_from(self._context, note.subject)
            case _:
                await peers.hear_from(self._context, note.subject, is_awake=True)


async def put_off(
    queues: Queues, message: QueuedMessage, error: Exception, *, tries: int, tell: Tell
) -> None:
    """Retry a message later, or give it up after reporting that to the waiting caller.

    If the process dies in between, another one reports it again, which changes nothing.
    """
    note = str(error)[:1000].replace("\0", "�").encode("utf-8", "replace").decode()
    if message.attempts < tries and not isinstance(error, MisuseError):
        delay = min(60.0, 0.1 * 2**message.attempts)
        await queues.retry(message, delay=delay, note=note)
        return
    log.error("message %s cannot be delivered, and is dead: %s", message.message_id, note)
    try:
        await tell(message, note)
    except UnavailableError:
        await queues.retry(message, delay=_UNAVAILABLE_SECONDS, note=note, is_counted=False)
        return
    except (HoldfastError, msgspec.MsgspecError) as failure:
        log.error(
            "the sender was not notified that message %s is dead: %s", message.message_id, failure
        )
    await queues.dead(message, note)


def lost(what: str, why: str) -> PeerReply:
    """Return the reply in place of a message that cannot be delivered."""
    return PeerReply(status="failed", error=f"{what} could not be delivered: {why}"[:1000])
