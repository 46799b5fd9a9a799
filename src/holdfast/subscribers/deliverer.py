"""The deliverer of one process: takes webhooks that nobody delivers, and keeps them.

    read the next events  →  post, until the answer is 2xx  →  store where to continue, one commit

A webhook is held by its lease, so it has one deliverer. If that dies between the answer and the
commit, the same events are posted again, under the same ids. Those of a run stay in order.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast import clock, faults
from holdfast.agents.turn.calls import storable_text
from holdfast.clock import MICROSECONDS
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.leases import Leases
from holdfast.engine.reading.events import SUBSCRIBER, Feed, Page
from holdfast.engine.runs import Runs
from holdfast.errors import ConflictError, HoldfastError, SignatureInvalid, UnavailableError
from holdfast.kernel.events import BATCH_TYPE, Event, EventFilter
from holdfast.kernel.runs import BlockedReason, RunStatus
from holdfast.subscribers import http_post, webhook_signatures
from holdfast.subscribers.http_post import NotDelivered
from holdfast.subscribers.webhooks import PROGRESS, SECRET, WebhookInput, WebhookProgress, secret_of
from holdfast.telemetry import log

Publish = Callable[[str, Event, bytes], Awaitable[None]]
"""Puts one event into a queue of the transport."""

_BATCH: Final = 100
_LOOK_SECONDS: Final = 0.25
_ANSWER_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 60.0
_AWAY_SECONDS: Final = 1.0
_PASSED_PAGES: Final = 20
_MOST: Final = 1000
_LONGEST_ERROR: Final = 500


class Deliverer:
    """Delivers beside a worker, until it is cancelled."""

    def __init__(
        self, context: Context, leases: Leases, runs: Runs, publish: Publish | None
    ) -> None:
        self._context = context
        self._leases = leases
        self._runs = runs
        self._publish = publish
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def keep_delivering(self) -> None:
        """Take every webhook that becomes free, and deliver its events."""
        try:
            async for _ in self._context.changes("ready"):
                try:
                    await self._take_free()
                except HoldfastError as error:
                    log.warning("webhooks wait: %s", error)
                # Runs become ready all the time, and hardly ever is one of them a webhook.
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_free(self) -> None:
        store = self._context.store
        is_one_left = False
        for run in await store.runs.live(SUBSCRIBER, None, after=(0, ""), limit=_MOST):
            if run.run_id in self._tasks:
                continue
            if run.status is RunStatus.READY and run.ready_at <= self._context.now():
                task = asyncio.create_task(self._deliver(run.run_id))
                self._tasks[run.run_id] = task
                task.add_done_callback(lambda _, run_id=run.run_id: self._tasks.pop(run_id, None))
            is_one_left |= run.status is RunStatus.RUNNING and run.worker == self._context.worker
        if is_one_left:
            # It could not be released. A worker that takes runs will do that; one that has reached
            # its concurrency does not.
            await self._leases.tend()

    async def _deliver(self, run_id: str) -> None:
        try:
            begin = msgspec.convert(await self._runs.input(run_id), WebhookInput)
            if begin.spec.queue and self._publish is None:
                return  # another worker may have a transport
            held = await self._leases.take(run_id, only_ready=True)
        except (HoldfastError, msgspec.ValidationError) as error:
            log.debug("%s is not taken: %s", run_id, error)
            return
        try:
            await self._deliver_held(held, begin)
        finally:
            # Nobody works on it now. If the store still says that it is held, that is fixed later.
            self._leases.orphans.abandon(held)

    async def _deliver_held(self, held: LeasedRun, begin: WebhookInput) -> None:
        try:
            await _WebhookDelivery(self._context, held, begin, self._publish).work()
        except ConflictError as error:
            log.info("%s is delivered here no longer: %s", held.run_id, error)
        except UnavailableError as error:
            log.warning("%s waits for the store: %s", held.run_id, error)
            await _give_back(held, "the store was away", delay_seconds=_AWAY_SECONDS)
        except Exception as error:
            log.exception("%s waits for another try", held.run_id)
            note = f"its deliverer broke: {type(error).__name__}"
            await _give_back(held, note, delay_seconds=_LONGEST_PAUSE_SECONDS)
        except asyncio.CancelledError:
            await _give_back(held, "its deliverer is stopping")
            raise


async def _give_back(held: LeasedRun, note: str, *, delay_seconds: float = 0.0) -> None:
    try:
        await held.stage.settle()
        held.discard()
        await held.release(delay_seconds=delay_seconds, note=note)
    except ConflictError as error:
        log.info("%s was not this worker's any more: %s", held.run_id, error)
    except HoldfastError as error:
        log.warning("%s could not be given back yet: %s", held.run_id, error)


class _WebhookDelivery:
    """One webhook that is held."""

    def __init__(
        self, context: Context, held: LeasedRun, begin: WebhookInput, publish: Publish | None
    ) -> None:
        self._context = context
        self._held = held
        self._lease_seq = held.run.lease_seq
        self._spec = begin.spec
        self._publish = publish
        self._feed = Feed(context)
        stored = held.part(PROGRESS)
        self._known = (
            WebhookProgress(begin.after)
            if stored is None
            else msgspec.convert(stored, WebhookProgress)
        )
        self._passed = 0

    async def work(self) -> None:
        """Deliver until this is cancelled, or the webhook is removed or given up."""
        await self._feed.position(None)
        if self._held.run.attempts:
            # Its holder was killed, which says nothing against it: it is not to be blocked.
            await self._save(self._known)
        wanted = EventFilter("", self._spec.kinds, self._spec.agents)
        async for page in self._feed.follow(self._known.position, wanted):
            if not await self._deliver_page(page):
                return

    async def _deliver_page(self, page: Page) -> bool:
        """Deliver the events of a page; return whether to continue after it."""
        for start in range(0, len(page.events), _BATCH):
            batch = page.events[start : start + _BATCH]
            if not await self._deliver(batch):
                return False
            is_end = start + _BATCH >= len(page.events)
            last = page.position if is_end else await self._feed.position(batch[-1].position)
            delivered = self._known.delivered + len(batch)
            await self._save(WebhookProgress(last, delivered))
            faults.point("webhook.after_commit")
        self._passed = 0 if page.events else self._passed + (not page.is_last)
        if self._passed >= _PASSED_PAGES:
            # None of its events are wanted; the next deliverer need not read them again.
            await self._save(replace(self._known, position=page.position))
            self._passed = 0
        return True

    async def _deliver(self, batch: Sequence[Event]) -> bool:
        """Retry until it is delivered. False: it was given up, and the webhook is blocked."""
        tries = 0
        while True:
            await self._check_held()
            failed = await self._try(batch)
            if failed is None:
                return True
            why = storable_text(str(failed))[:_LONGEST_ERROR]
            if failed.is_for_good or await self._is_over(why):
                await self._give_up(why)
                return False
            pause = min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            tries = min(tries + 1, 16)

    async def _try(self, batch: Sequence[Event]) -> NotDelivered | None:
        """Send it once; return why that failed, in words that may be stored."""
        try:
            faults.point("webhook.before_post")
            await self._send(batch)
            faults.point("webhook.after_post")
        except NotDelivered as failed:
            return failed
        except HoldfastError as error:
            return NotDelivered(str(error))
        except Exception as error:
            # What others put into their messages is not known.
            log.exception("%s could not be sent", self._held.run_id)
            return NotDelivered(f"{type(error).__name__}, see the log of the worker")
        return None

    async def _give_up(self, error: str) -> None:
        # After a resume, counting starts again.
        await self._save(replace(self._known, failing_since=0, error=error))
        await self._held.block(BlockedReason.BREAKER, note=error)
        log.error("%s is given up: %s", self._held.run_id, error)

    async def _is_over(self, error: str) -> bool:
        """Return whether it has failed for too long; the start is stored, for the next holder."""
        now = self._context.now()
        if not self._known.failing_since:
            await self._save(replace(self._known, failing_since=now, error=error))
            log.warning("%s is not delivered: %s", self._held.run_id, error)
        give_up = clock.seconds(self._spec.give_up_seconds)
        return now - self._known.failing_since >= give_up

    async def _send(self, batch: Sequence[Event]) -> None:
        cloudevents = [event.to_cloudevent() for event in batch]
        if self._publish is not None and self._spec.queue:
            for event, each in zip(batch, cloudevents, strict=True):
                await self._publish(self._spec.queue, event, msgspec.json.encode(each))
            return
        body = msgspec.json.encode(cloudevents)
        signature = self._sign(f"{batch[0].id}..{batch[-1].id}", body)
        headers = {"content-type": f"{BATCH_TYPE}; charset=utf-8", **signature}
        await http_post.post(self._spec.url, headers, body, seconds=_ANSWER_SECONDS)

    def _sign(self, id: str, body: bytes) -> dict[str, str]:
        secret = secret_of(self._spec.secret)
        timestamp = self._context.now() // MICROSECONDS
        try:
            return webhook_signatures.sign(secret, id=id, timestamp=timestamp, body=body)
        except SignatureInvalid as error:
            name = self._spec.secret.removeprefix(SECRET)
            raise NotDelivered(
                f"the secret {name} cannot sign: {error}; set it anew where workers are, then "
                f"`holdfast webhooks resume {self._held.run.subject}`",
                is_for_good=True,
            ) from None

    async def _check_held(self) -> None:
        """Raise ConflictError if it was removed or has another holder: then send nothing more."""
        run = await self._context.store.runs.get(self._held.run_id)
        if run is None or run.status is not RunStatus.RUNNING or run.lease_seq != self._lease_seq:
            raise ConflictError("it was removed, or is another worker's")

    async def _save(self, known: WebhookProgress) -> None:
        self._held.set(PROGRESS, known)
        await self._held.checkpoint()
        self._known = known
