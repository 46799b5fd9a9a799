"""The receiver: takes what comes from peers elsewhere, and acknowledges it after the commit.

Everything may come twice, late, or in another order. A request begins a run under its own id, so
once; a reply is claimed by its wait, so once; a cancel before its request leaves a run that has
ended already.
"""

import asyncio
import contextlib
from typing import Final

from holdfast import faults
from holdfast.agents.work import Work
from holdfast.engine import peers
from holdfast.engine.context import Context
from holdfast.engine.waits import Waits
from holdfast.errors import (
    HoldfastError,
    MisuseError,
    UnavailableError,
    WaitNotFound,
)
from holdfast.peers import envelopes
from holdfast.peers.envelopes import Alive, Answer, Asks, Cancel, Envelope, Reply, Request
from holdfast.peers.transports.contract import Delivery, Transport
from holdfast.telemetry import log

_PREFETCH: Final = 32
_TRIES: Final = 20
_AT_ONCE: Final = 64


class Receiver:
    """Takes messages of one transport for the runs of one store."""

    def __init__(self, context: Context, transport: Transport, work: Work) -> None:
        self._context = context
        self._transport = transport
        self._work = work
        self._waits = Waits(context)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._working: set[asyncio.Task[None]] = set()

    async def keep_receiving(self, queue: str) -> None:
        """Take whatever comes in a queue, until this is cancelled or the transport closed."""
        async for delivery in self._transport.consume(
            queue, lease=self._context.settings.lease_seconds, prefetch=_PREFETCH
        ):
            await self._free.acquire()
            task = asyncio.create_task(self._take(delivery))
            self._working.add(task)
            task.add_done_callback(self._taken)

    def _taken(self, task: "asyncio.Task[None]") -> None:
        self._free.release()
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message of a peer was not taken, and comes again: %s", error)

    async def _take(self, delivery: Delivery) -> None:
        try:
            envelope = envelopes.decode(delivery.body)
            faults.point("receiver.before_commit")
            if isinstance(envelope, Request) and self._waits_for_boundary(envelope.agent):
                if not await self._work_on(envelope, delivery):
                    return await delivery.retry(1.0, "its work was not stored")
            else:
                await self._carry_out(envelope)
            faults.point("receiver.after_commit")
        except UnavailableError as error:
            log.warning("a message of a peer waits: %s", error)
            await delivery.retry(1.0, str(error)[:1000])
        except MisuseError as error:
            log.error("message %s of a peer is dead: %s", delivery.key, error)
            await delivery.dead(str(error)[:1000])
        except HoldfastError as error:
            if delivery.attempt >= _TRIES:
                log.error("message %s of a peer is dead: %s", delivery.key, error)
                await delivery.dead(str(error)[:1000])
            else:
                await delivery.retry(min(60.0, 0.1 * 2**delivery.attempt), str(error)[:1000])
        else:
            await delivery.ack()

    def _waits_for_boundary(self, agent: str) -> bool:
        """Whether a request is acknowledged at the first boundary of its run, or at its end."""
        agents = self._work.agents
        return agent in agents and agents.get(agent).rules.cadence == "boundary"

    async def _work_on(self, request: Request, delivery: Delivery) -> bool:
        """Work on a request until it is stored; it stays this consumer's meanwhile."""
        if await self._context.store.runs.get(request.wait_id) is not None:
            return True  # it came before
        created = peers.creation(
            agent=request.agent, given=request.input, reply_to=request.reply_to
        )
        keeping = asyncio.create_task(_keep(delivery, self._context.settings.lease_seconds))
        try:
            return await self._work.take_in(request.wait_id, created, request.input)
        finally:
            keeping.cancel()

    async def _carry_out(self, envelope: Envelope) -> None:
        context = self._context
        match envelope:
            case Request():
                await peers.begin(
                    context,
                    envelope.wait_id,
                    agent=envelope.agent,
                    given=envelope.input,
                    reply_to=envelope.reply_to,
                )
            case Cancel():
                await peers.cancel(context, envelope.wait_id, agent=envelope.agent)
            case Reply():
                await peers.answer(self._waits, envelope.wait_id, envelope.reply)
                await peers.withdraw_questions(self._waits, envelope.wait_id)
            case Alive():
                await peers.hear_from(context, envelope.wait_id, said=envelope.said)
            case Asks():
                await peers.pass_on_question(
                    context,
                    envelope.wait_id,
                    question_id=envelope.question_id,
                    kind=envelope.kind,
                    deadline=envelope.deadline,
                    question=envelope.question,
                    answer_to=envelope.answer_to,
                )
            case Answer():
                try:
                    await self._waits.resolve(envelope.question_id, envelope.value, by=envelope.by)
                except WaitNotFound as error:
                    log.warning("an answer came for nobody: %s", error)


async def _keep(delivery: Delivery, lease: float) -> None:
    """Let nobody else be given a message while its run is worked on."""
    while True:
        await asyncio.sleep(lease / 3)
        with contextlib.suppress(HoldfastError):
            await delivery.extend()
