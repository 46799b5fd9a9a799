"""The relay: sends pending messages to peers behind a transport, in order for each run.

A message is sent at least once: the relay claims it with a lease, sends it under its own id, and
then deletes it. If the relay dies before it deletes a sent message, that message is sent again
under the same id.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from holdfast import codec, faults
from holdfast.engine.context import Context
from holdfast.engine.messages.courier import Courier, in_order
from holdfast.engine.messages.outbox import lost, note_of, put_off
from holdfast.engine.messages.peers import answer, is_awaited
from holdfast.engine.messages.queues import Queues
from holdfast.engine.messages.replies import PeerReply, intact_entry, reply_of
from holdfast.engine.reading.journal import body_of
from holdfast.errors import IntegrityError, UnavailableError
from holdfast.kernel import indexes, peers
from holdfast.kernel.journal import Entry
from holdfast.kernel.messages import OUTGOING, QueuedMessage
from holdfast.kernel.peers import Note
from holdfast.peers import envelopes
from holdfast.peers.envelopes import (
    AliveEnvelope,
    AnswerEnvelope,
    CancelEnvelope,
    Envelope,
    QuestionEnvelope,
    ReplyEnvelope,
    RequestEnvelope,
)
from holdfast.peers.transports.contract import Transport
from holdfast.telemetry import log

_TRIES: Final = 20


class Relay:
    """Sends the pending messages of one store's runs over one transport."""

    def __init__(self, context: Context, transport: Transport, *, reply_to: str) -> None:
        self._context = context
        self._queues = Queues(context)
        self._transport = transport
        self._reply_to = reply_to
        lease = context.settings.lease_seconds
        self._courier = Courier(
            self._queues, OUTGOING, self._send_in_order, lease=lease, split=in_order
        )

    async def keep_sending(self) -> None:
        """Send due messages, in order for each run, until this is cancelled."""
        await self._courier.keep_delivering(self._context.settings.wakeup_poll_seconds)

    async def _send_in_order(self, messages: Sequence[QueuedMessage]) -> None:
        for at, message in enumerate(messages):
            try:
                await self._send(message)
            except UnavailableError as error:
                if _kind_of(message) == "cancel":  # best effort: later messages do not depend on it
                    await self._retry(message, error)
                    continue
                for left in messages[at:]:
                    await self._retry(left, error)
                return
            except Exception as error:
                _log_once(message, error)
                await put_off(self._queues, message, error, tries=_TRIES, tell=self._tell_lost)
            else:
                await self._queues.ack(message)

    async def _tell_lost(self, message: QueuedMessage, why: str) -> None:
        """Fail the call whose request cannot be sent; send a failure in place of a lost reply."""
        note = note_of(message)
        if note.kind == "request":
            await answer(self._context, note.subject, lost("the request", why))
        elif note.kind == "reply":
            failed = ReplyEnvelope(wait_id=note.subject, reply=lost("its reply", why))
            await self._transport.publish(
                peers.queue_at(note.address),
                envelopes.encode(failed),
                key=f"{message.message_id}/lost",
                headers={"content-type": envelopes.CONTENT_TYPE, "kind": "reply"},
                ordering=note.subject,
            )

    async def _send(self, message: QueuedMessage) -> None:
        note = note_of(message)
        if note.kind == "cancel" and await is_awaited(self._context, note.subject):
            return  # a caller still waits for this call
        envelope = await self._envelope(message, note)
        faults.point("relay.before_publish")
        await self._transport.publish(
            peers.queue_at(note.address),
            _body_of(envelope, most=self._context.settings.max_body_bytes),
            key=message.message_id,
            headers={"content-type": envelopes.CONTENT_TYPE, "kind": note.kind},
            ordering="" if note.kind == "cancel" else note.subject,
        )
        faults.point("relay.after_publish")

    async def _retry(self, message: QueuedMessage, error: UnavailableError) -> None:
        """Retry a message later. The attempt does not count: the transport is unavailable."""
        _log_once(message, error)
        note = str(error)[:1000]
        await self._queues.retry(message, delay=0.5, note=note, is_counted=False)

    async def _envelope(self, message: QueuedMessage, note: Note) -> Envelope:
        if note.kind == "cancel":
            agent = envelopes.agent_of_queue(self._context.tenant, peers.queue_at(note.address))
            return CancelEnvelope(wait_id=note.subject, agent=agent)
        if note.kind in ("alive", "taken", "working"):
            return AliveEnvelope(wait_id=note.subject, is_awake=note.kind == "alive")
        if note.kind == "progress":
            return AliveEnvelope(wait_id=note.subject, said=codec.decode(message.body))
        if note.kind == "reply":
            reply = await reply_of(self._context, note.subject, note.seq)
            return ReplyEnvelope(wait_id=note.subject, reply=reply)
        entry = await intact_entry(self._context, message.ordering, note.seq)
        match note.kind:
            case "request":
                return self._request(entry, note)
            case "asks":
                return self._asks(entry, message, note)
            case "answer":
                return AnswerEnvelope(
                    question_id=note.subject, value=body_of(entry), by=entry.actor
                )
            case _:
                raise IntegrityError(f"nobody owes a {note.kind!r}")

    def _request(self, entry: Entry, note: Note) -> RequestEnvelope:
        call = _payload(entry, note.subject)
        return RequestEnvelope(
            wait_id=note.subject,
            agent=call["agent"],
            input=call.get("input"),
            reply_to=self._reply_to,
            caller=entry.run_id,
            root=call.get("root", ""),
            former=call.get("former", ""),
            resend=tuple(call.get("resend", ())),
        )

    def _asks(self, entry: Entry, message: QueuedMessage, note: Note) -> QuestionEnvelope:
        question_id = message.message_id.rpartition("/")[2]
        (wait,) = [w for w in indexes.facts_of(entry).waits if w.wait_id == question_id]
        question = _payload(entry, question_id)
        return QuestionEnvelope(
            wait_id=note.subject,
            question_id=question_id,
            kind=wait.kind,
            deadline=wait.deadline,
            question={**question, "place": b""},
            answer_to=self._reply_to,
        )


def _kind_of(message: QueuedMessage) -> str:
    """Return a message's kind; "unreadable" if its headers cannot be decoded."""
    try:
        return note_of(message).kind
    except msgspec.MsgspecError:
        return "unreadable"


def _log_once(message: QueuedMessage, error: Exception) -> None:
    """Log the first failure to send a message. A message with a note has failed before."""
    if not message.note:
        kind, id = _kind_of(message), message.message_id
        log.warning("the %s message %s was not sent yet: %s", kind, id, error)


def _body_of(envelope: Envelope, *, most: int) -> bytes:
    """Return an envelope encoded for sending; a failure in place of a reply that is too large."""
    body = envelopes.encode(envelope)
    if len(body) <= most or not isinstance(envelope, ReplyEnvelope):
        return body
    error = (
        f"its answer and artifacts have {len(body):,} bytes, and at most {most:,} are sent "
        "(setting max_body_bytes); let it keep them elsewhere and answer where they are"
    )
    failed = PeerReply(status="failed", error=error)
    return envelopes.encode(ReplyEnvelope(wait_id=envelope.wait_id, reply=failed))


def _payload(entry: Entry, wait_id: str) -> dict[str, Any]:
    bodies = cast("dict[str, Any]", body_of(entry) or {})
    return bodies.get(wait_id, {})
