"""The receiver: takes messages from peers elsewhere, and acknowledges them after the commit.

Everything may come twice, late, or in another order. A request begins a run under its own id, so
once; a reply is claimed by its wait, so once; a cancel before its request leaves a run that has
ended already.
"""

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, Final

from holdfast import faults
from holdfast.agents.work.work import Work
from holdfast.engine.context import Context
from holdfast.engine.messages import peers
from holdfast.engine.messages.outbox import lost
from holdfast.engine.waits import Waits
from holdfast.errors import (
    HoldfastError,
    MisuseError,
    UnavailableError,
    WaitNotFound,
)
from holdfast.kernel.journal import Draft
from holdfast.kernel.peers import queue_at
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
from holdfast.peers.transports.contract import Delivery, Transport
from holdfast.telemetry import log

_PREFETCH: Final = 32
_TRIES: Final = 20
_AT_ONCE: Final = 64
_TASKS: Final = 8
_FOR_OTHERS: Final = 8
_FOR_CANCELS: Final = 60
_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Receiver:
    """Takes messages of one transport for the runs of one store."""

    def __init__(self, context: Context, transport: Transport, work: Work) -> None:
        self._context = context
        self._transport = transport
        self._work = work
        self._waits = Waits(context)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._taking: set[asyncio.Task[None]] = set()
        self.most_tasks = _TASKS
        """How many runs that are not stored yet are worked on at once."""
        self._tasks = 0

    async def keep_receiving(self, queue: str) -> None:
        """Take the messages of a queue, until this is cancelled or the transport is closed."""
        async for delivery in self._transport.consume(
            queue, lease=self._context.settings.lease_seconds, prefetch=_PREFETCH
        ):
            await self._free.acquire()
            self._begin(self._take(delivery)).add_done_callback(lambda _: self._free.release())

    async def close(self) -> None:
        """Drop the messages in progress: they are delivered again."""
        for task in self._taking:
            task.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)

    def _begin(self, taking: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(taking)
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        return task

    async def _take(self, delivery: Delivery) -> None:
        """Process a message; a task that is not stored before its boundary blocks no other."""
        try:
            envelope = envelopes.decode(delivery.body)
        except MisuseError as error:
            return await self._bury(delivery, error)
        if isinstance(envelope, RequestEnvelope) and self._waits_for_boundary(envelope.agent):
            if self._tasks >= self.most_tasks or self._work.suspects.is_closed:
                return await delivery.retry(_PAUSE_SECONDS, "there was no room for it")
            self._tasks += 1
            working = self._answered(delivery, envelope, _marked(self._work_on(envelope)))
            self._begin(working).add_done_callback(self._end_task)
        elif isinstance(envelope, AliveEnvelope):  # losing one costs nothing: another follows
            await self._answered(delivery, envelope, self._carry_out(envelope, delivery.attempt))
        else:
            carried = _marked(self._carry_out(envelope, delivery.attempt))
            await self._answered(delivery, envelope, carried)

    async def _answered(
        self, delivery: Delivery, envelope: Envelope, dealing: Coroutine[Any, Any, str]
    ) -> None:
        """Acknowledge a message after its result is stored; if that fails, it is retried.

        This consumer keeps it meanwhile.
        """
        keeping = asyncio.create_task(_keep(delivery, self._context.settings.lease_seconds))
        try:
            not_yet = await dealing
        except UnavailableError as error:
            log.warning("a message of a peer waits: %s", error)
            await delivery.retry(1.0, str(error)[:1000])
        except Exception as error:
            if isinstance(error, MisuseError) or delivery.attempt >= _TRIES:
                await self._give_up(delivery, envelope, error)
            else:
                await delivery.retry(min(60.0, 0.1 * 2**delivery.attempt), str(error)[:1000])
        else:
            if not_yet:
                await delivery.retry(_pause(delivery.attempt), not_yet)
            else:
                await delivery.ack()
        finally:
            keeping.cancel()

    async def _give_up(self, delivery: Delivery, envelope: Envelope, error: Exception) -> None:
        """Report the failure to the waiting run, then bury the message; a crash may repeat this."""
        try:
            await self._tell_lost(envelope, str(error))
        except UnavailableError as away:
            return await delivery.retry(1.0, str(away)[:1000])
        except HoldfastError as failure:
            log.error(
                "the sender was not notified that message %s is dead: %s", delivery.key, failure
            )
        await self._bury(delivery, error)

    async def _tell_lost(self, envelope: Envelope, why: str) -> None:
        if isinstance(envelope, ReplyEnvelope):
            await peers.answer(self._context, envelope.wait_id, lost("its reply", why))
        elif isinstance(envelope, RequestEnvelope):
            reply = ReplyEnvelope(wait_id=envelope.wait_id, reply=lost("the request", why))
            await self._transport.publish(
                queue_at(envelope.reply_to),
                envelopes.encode(reply),
                key=f"{envelope.wait_id}/lost",
                headers={"content-type": envelopes.CONTENT_TYPE, "kind": "reply"},
                ordering=envelope.wait_id,
            )

    async def _bury(self, delivery: Delivery, error: Exception) -> None:
        log.error("message %s of a peer is dead: %s", delivery.key, error)
        await delivery.dead(str(error)[:1000])

    def _waits_for_boundary(self, agent: str) -> bool:
        """Return whether a request is acknowledged at its run's first boundary, or at its end."""
        agents = self._work.agents
        return agent in agents and agents.get(agent).rules.cadence == "boundary"

    async def _work_on(self, request: RequestEnvelope) -> str:
        """Work on a request until it is stored."""
        if await self._context.store.runs.get(request.wait_id) is not None:
            return ""  # it came before
        created = await self._creation(request)
        await self._tell_taken(request)
        is_stored = await self._work.take_in(request.wait_id, created, request.input)
        return "" if is_stored else "its work was not stored"

    def _end_task(self, _: "asyncio.Task[None]") -> None:
        self._tasks -= 1

    async def _creation(self, request: RequestEnvelope) -> Draft:
        return await peers.creation(
            self._context,
            agent=request.agent,
            given=request.input,
            reply_to=request.reply_to,
            root=request.root,
            former=request.former,
            resend=request.resend,
        )

    async def _tell_taken(self, request: RequestEnvelope) -> None:
        """Start the caller's timeout. A run that is not stored yet has no message to do so."""
        await self._transport.publish(
            queue_at(request.reply_to),
            envelopes.encode(AliveEnvelope(wait_id=request.wait_id)),
            key=f"{request.wait_id}/taken",
            headers={"content-type": envelopes.CONTENT_TYPE, "kind": "taken"},
            ordering=request.wait_id,
        )

    async def _carry_out(self, envelope: Envelope, attempt: int) -> str:
        """Do what a message asks for; return the reason if it cannot be done yet.

        A message about a run or a wait that is not here may be for another store that takes
        messages from the same queue: retry it. A cancel may also have overtaken its request.
        """
        try:
            is_here = await self._do(envelope)
        except WaitNotFound as error:
            if attempt < _FOR_OTHERS:
                return str(error)
            log.warning("nobody waits for this any more, it is left alone: %s", error)
            return ""
        if is_here or not isinstance(envelope, CancelEnvelope):
            return ""
        if attempt == _FOR_OTHERS:
            await peers.begin_cancelled(self._context, envelope.wait_id, agent=envelope.agent)
        return "there is no such run" if attempt < _FOR_CANCELS else ""

    async def _do(self, envelope: Envelope) -> bool:
        """Do what a message asks for; False if it is about a run that is not here."""
        context, of = self._context, self._waits
        match envelope:
            case RequestEnvelope():
                await peers.begin(context, envelope.wait_id, await self._creation(envelope))
            case CancelEnvelope():
                return await peers.cancel(context, envelope.wait_id)
            case ReplyEnvelope():
                await peers.answer(context, envelope.wait_id, envelope.reply)
                await peers.withdraw_questions(of, envelope.wait_id)
            case AliveEnvelope(wait_id=wait_id, said=said, is_awake=is_awake):
                await peers.hear_from(context, wait_id, said=said, is_awake=is_awake)
            case QuestionEnvelope():
                await peers.pass_on_question(
                    context,
                    envelope.wait_id,
                    question_id=envelope.question_id,
                    kind=envelope.kind,
                    deadline=envelope.deadline,
                    question=envelope.question,
                    answer_to=envelope.answer_to,
                )
            case AnswerEnvelope():
                await of.resolve(envelope.question_id, envelope.value, by=envelope.by)
        return True


async def _marked(dealing: Coroutine[Any, Any, str]) -> str:
    """Await the result of a message, with fault points at which its receiver may die."""
    faults.point("receiver.before_commit")
    not_yet = await dealing
    faults.point("receiver.after_commit")
    return not_yet


def _pause(attempt: int) -> float:
    """Return the delay before a retry; random, so that the same receiver does not always win."""
    longest = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 1.2**attempt)
    return random.uniform(0.0, longest)


async def _keep(delivery: Delivery, lease: float) -> None:
    """Extend the claim on a message while its run is worked on."""
    while True:
        await asyncio.sleep(lease / 3)
        with contextlib.suppress(HoldfastError):
            await delivery.extend()
