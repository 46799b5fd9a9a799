"""The trial of a suspect by this worker: its row names the run, so that a loss is blamed on it.

While it lasts, `Leases.next` takes nothing more. `Work` knows how long the runs take that it has
begun itself, and ends their trials; a run that `next` has taken is watched here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import ref

from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import HoldfastError
from holdfast.telemetry import log

LOOK_SECONDS: Final = 0.1
_LOOKS_PER_READ: Final = 10


class Trials:
    """The suspect that is tried here, if there is one."""

    def __init__(self, context: Context, renew: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._renew = renew
        self.suspect = ""
        """The run that is tried, or that the row may still name; empty if there is none."""
        self._is_named = True
        self.is_of_next = False
        """Whether the suspect was taken by `next`."""
        self._taken: tuple[ref[LeasedRun], int] | None = None
        """A suspect that `next` has taken, and its version then."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        """The run that this worker's row is to name; empty if there is none."""
        return "" if self._is_over() or not self._is_named else self.suspect

    def begin(self, run_id: str, *, is_of_next: bool = False) -> None:
        """Name a suspect, before it is taken or loaded."""
        self.suspect, self._is_named, self.is_of_next = run_id, True, is_of_next

    async def end(self, run_id: str) -> None:
        """End the trial of a suspect, if it is tried. The row says so when this returns."""
        if self.suspect == run_id:
            self.suspect = ""
            await self._renew()

    async def drop(self, run_id: str) -> None:
        """End a trial because the run was not taken. If the store is away, a beat says so later."""
        with contextlib.suppress(HoldfastError):
            await self.end(run_id)

    def watch(self, held: LeasedRun) -> None:
        """Try a run that `next` has taken, until it makes progress or is not held any more."""
        self._taken = (ref(held), held.version)
        self._watching = asyncio.create_task(self._end_when_over(held.run_id, held.run.lease_seq))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    def _is_over(self) -> bool:
        """Whether a suspect that `next` has taken has made progress, or is not held any more."""
        if self._taken is None:
            return False
        taken, version = self._taken
        held = taken()
        return held is None or held.version > version or not held.run.lease_seq

    async def _end_when_over(self, run_id: str, lease_seq: int) -> None:
        looks = 0
        while not self._is_over():
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            if looks % _LOOKS_PER_READ == 0 and not await self._is_leased(run_id, lease_seq):
                break
        while True:  # until the row names it no more: what begins beside it would not be blamed
            self._is_named = False
            try:
                await self._renew()
                break
            except Exception as error:
                log.warning("the trial of run %s could not be ended yet: %s", run_id, error)
                await asyncio.sleep(LOOK_SECONDS * _LOOKS_PER_READ)
        self.suspect, self._taken = "", None

    async def _is_leased(self, run_id: str, lease_seq: int) -> bool:
        """Whether the lease has not ended: its holder may not have noticed yet."""
        try:
            run = await self._context.store.runs.get(run_id)
        except HoldfastError:
            return True
        return run is not None and run.lease_seq == lease_seq
