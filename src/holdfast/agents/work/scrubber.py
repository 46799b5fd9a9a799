"""The scrubber: reads every journal now and then, so that damage is found before it is needed.

It takes a small part of a worker's time, and finds what a load would find. It records each damaged
version, logs it and counts it. It changes nothing else: a run goes back to an older version when
somebody is about to use the damaged one.
"""

import asyncio
from typing import Final

from holdfast.engine.context import Context
from holdfast.engine.maintenance.recoveries import find_point
from holdfast.engine.reading.journal import Journal
from holdfast.errors import HoldfastError, IndexCorrupted, NotFoundError
from holdfast.telemetry import DAMAGE_FOUND, log

_SHARE: Final = 0.05


class Scrubber:
    """Verifies all runs of a tenant, one after another."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._journal = Journal(context)
        self._reported: set[str] = set()

    async def keep_scrubbing(self) -> None:
        """Scrub every `scrub_seconds`, until this is cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.scrub_seconds)
            try:
                await self.scrub(pace=_SHARE)
            except HoldfastError as error:
                log.warning("journals were not scrubbed to the end: %s", error)

    async def scrub(self, *, pace: float = 1.0) -> list[str]:
        """Verify every run once, with this share of the time. Returns the ids of damaged runs."""
        loop = asyncio.get_running_loop()
        damaged: list[str] = []
        async for run_id in self._journal.run_ids():
            began = loop.time()
            if await self._is_damaged(run_id):
                damaged.append(run_id)
            await asyncio.sleep((loop.time() - began) * (1 / pace - 1))
        return damaged

    async def _is_damaged(self, run_id: str) -> bool:
        try:
            problems = await self._journal.verify(run_id)
        except NotFoundError:
            return False
        if not problems:
            return False
        if run_id not in self._reported:
            self._reported.add(run_id)
            self._context.telemetry.count(DAMAGE_FOUND)
            worst = problems[0]
            log.error(
                "run %s is damaged: entry %d %s (%d problems; `holdfast audit verify %s`)",
                run_id,
                worst.seq,
                worst.what,
                len(problems),
                run_id,
            )
            try:
                await find_point(self._context, run_id)
            except IndexCorrupted as error:
                log.error("where run %s could go on is not known: %s", run_id, error)
        return True
