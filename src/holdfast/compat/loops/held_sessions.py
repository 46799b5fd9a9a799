"""The runs of a checkpointer's sessions: opened, taken, and taken again after another process.

A session is a run of agent `checkpointer`, which no worker works on. A process that uses one takes
it over from its holder; an operation that finds its run taken is retried. So processes that share a
session take turns, and one that uses it alone pays a single commit for each operation.
"""

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.effects import Effects
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.leases import Leases
from holdfast.engine.reading.journal import Journal
from holdfast.engine.runs import Runs
from holdfast.errors import (
    ConflictError,
    Fenced,
    HoldfastError,
    IllegalMove,
    InputDiffers,
    RunBlocked,
    RunCancelled,
    RunEnded,
    RunExists,
    RunNotFound,
)
from holdfast.kernel.runs import ENDED, BlockedReason, RunRow, RunStatus
from holdfast.settings import Settings
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry
from holdfast.wakeups import open_wakeups

T = TypeVar("T")

AGENT: Final = "checkpointer"
_KEPT: Final = 64
_TRIES: Final = 200
_SHORTEST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.25


class Engine(Protocol):
    """The verbs a checkpointer is made of; an open Holdfast has them."""

    @property
    def runs(self) -> Runs: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def checkpoints(self) -> Checkpoints: ...
    @property
    def effects(self) -> Effects: ...


class OwnEngine:
    """A store that is opened for one checkpointer, and closed with it."""

    def __init__(self, where: str, settings: Settings) -> None:
        counts = Telemetry()
        store = open_store(where, settings=settings, telemetry=counts)
        self._context = Context(
            store, open_wakeups(where, store.look_for_foreign_commits), settings, counts
        )
        store.on_applied = self._context.wakeups.notify
        self._leases = Leases(self._context)
        self.runs = Runs(self._context, self._leases)
        self.journal = Journal(self._context)
        self.checkpoints = Checkpoints(self._context)
        self.effects = Effects(self._context)

    async def open(self) -> None:
        await self._context.store.open()
        try:
            await self._context.wakeups.open()
        except BaseException:
            await self._context.store.close()
            raise

    async def close(self) -> None:
        try:
            await self._leases.close()
        finally:
            await self._context.wakeups.close()
            await self._context.store.close()


class HeldSessions:
    """The runs of sessions that this process has taken, and how they are taken again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: OrderedDict[str, LeasedRun] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def advance(
        self,
        session_id: str,
        work: Callable[[LeasedRun], Awaitable[T]],
        *,
        metadata: Mapping[str, Any] | None = None,
        anew: bool = False,
    ) -> T:
        """Do `work` with the session's run; retry while others take the run over.

        The writes of a fenced worker are not stored, so nothing is done twice.
        """
        async with self._lock(session_id):
            if anew:
                self._held.pop(session_id, None)
            for tried in range(_TRIES):
                try:
                    return await work(await self._hold(session_id, metadata))
                except (Fenced, IllegalMove):
                    self._held.pop(session_id, None)
                except RunEnded:
                    self._held.pop(session_id, None)
                    raise
                # A random pause, else two processes would take the run from each other for ever.
                longest = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(tried, 10))
                await asyncio.sleep(random.uniform(0, longest))
        raise ConflictError(
            f"session {session_id!r} was taken by other processes {_TRIES} times in a row; "
            "nothing was stored. Try again"
        )

    async def close(self) -> None:
        """Release what is held; what cannot be is free as soon as this worker counts as gone."""
        while self._held:
            _, held = self._held.popitem()
            with contextlib.suppress(HoldfastError):
                await held.release(note="the checkpointer was closed")

    def _lock(self, session_id: str) -> asyncio.Lock:
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        return lock

    async def _hold(self, session_id: str, metadata: Mapping[str, Any] | None) -> LeasedRun:
        held = self._held.get(session_id)
        if held is None:
            found = await self._find_or_create(session_id, metadata)
            check_goes_on(found)
            if found.status is RunStatus.BLOCKED:
                await self._unblock(found)
            held = await self._engine.runs.open(session_id, takeover=True)
            self._held[session_id] = held
            while len(self._held) > _KEPT:
                self._held.popitem(last=False)
        self._held.move_to_end(session_id)
        return held

    async def _find_or_create(self, session_id: str, metadata: Mapping[str, Any] | None) -> RunRow:
        try:
            found = await self._engine.runs.get(session_id)
        except RunNotFound:
            with contextlib.suppress(RunExists):
                given = {"metadata": dict(metadata or {})}
                await self._engine.runs.create(session_id, agent=AGENT, input=given)
            found = await self._engine.runs.get(session_id)
        return found

    async def _unblock(self, run: RunRow) -> None:
        # The breaker stops workers that a run kills again and again; here no worker is at risk.
        if run.blocked_reason != BlockedReason.BREAKER:
            raise RunBlocked(
                f"session {run.run_id!r} is blocked ({run.blocked_reason}); `holdfast runs show "
                f"{run.run_id}` tells why. An earlier version can be forked into a new session"
            )
        await self._engine.runs.unblock(run.run_id, note="a checkpointer goes on with it")


def check_is_session(run: RunRow) -> None:
    """Raise InputDiffers for a run that is not a checkpointer's session."""
    if run.agent != AGENT:
        raise InputDiffers(
            f"{run.run_id!r} is a run of agent {run.agent!r}, not a checkpointer's session; "
            "choose another id"
        )


def check_goes_on(run: RunRow) -> None:
    """Raise RunEnded for a session that has ended."""
    check_is_session(run)
    if run.status in ENDED:
        kind = RunCancelled if run.status is RunStatus.CANCELLED else RunEnded
        raise kind(
            f"session {run.run_id!r} has ended ({run.status}) and takes no more; begin another "
            "one, or fork it to go on from one of its versions: "
            f"`holdfast runs fork {run.run_id} --at VERSION`"
        )
