"""Watch a run for a bounded time, and report its progress to the client.

Nothing here works on a run: the watcher may disconnect at any moment.
"""

import asyncio
from typing import Final

from holdfast.app import Holdfast
from holdfast.edges.mcp.contract import ClientProgress
from holdfast.edges.mcp.resources import timelines
from holdfast.edges.mcp.shutdown import Shutdown
from holdfast.kernel.runs import ENDED, RunRow, RunStatus

_LOOK_SECONDS: Final = 0.1
_SELDOM_SECONDS: Final = 2.0
_MOST_BELOW: Final = 20
_MOST_LINES: Final = 20


async def settled(
    hf: Holdfast,
    run_id: str,
    *,
    seconds: float,
    progress: ClientProgress,
    stopping: Shutdown | None = None,
) -> RunRow:
    """Return the run once it has ended, is blocked or needs a person, or when the time is over.

    Report its newest entry as progress, then each new one. A server that is
    `stopping` waits no longer. What happens to the run itself is seen at once; what its runs below
    ask is looked for, at first often, then every two seconds.
    """
    loop = asyncio.get_running_loop()
    deadline, look = loop.time() + seconds, _LOOK_SECONDS
    teller = _ProgressReporter(hf, run_id, progress)
    known: RunRow | None = None
    while True:
        run = await hf.runs.get(run_id)
        await teller.tell(run)
        is_over = run.status in ENDED or run.status is RunStatus.BLOCKED
        is_over = is_over or (stopping is not None and stopping.is_wanted)
        left = deadline - loop.time()
        if is_over or left <= 0 or await hf.approvals.needs_a_person(run):
            return run
        look = _LOOK_SECONDS if run != known else min(2 * look, _SELDOM_SECONDS)
        known = run
        await hf.runs.changed(run, timeout=min(left, look))


class _ProgressReporter:
    """Reports the entries of a run, each once; while it waits, the newest of the runs below it.

    Of many new entries it reports the last ones, so that reporting does not outlast the wait.
    """

    def __init__(self, hf: Holdfast, run_id: str, progress: ClientProgress) -> None:
        self._hf = hf
        self._run_id = run_id
        self._progress = progress
        self._seen: dict[str, int] = {}
        self._reported = 0

    async def tell(self, run: RunRow) -> None:
        await self._tell_of(self._run_id)
        if run.status is RunStatus.WAITING:
            for child in await self._hf.runs.list(parent_id=self._run_id, limit=_MOST_BELOW):
                await self._tell_of(child.run_id, f"{child.subject or child.agent}: ")

    async def _tell_of(self, run_id: str, before: str = "") -> None:
        head = await self._hf.journal.head(run_id)
        seen = max(self._seen.get(run_id, head - 1), head - (1 if before else _MOST_LINES))
        self._reported = max(self._reported, 0 if before else seen)
        while seen < head and (lines := await timelines.read(self._hf, run_id, after=seen)):
            for line in lines:
                seen, self._reported = line.seq, self._reported + 1
                await self._progress(self._reported, None, f"{before}{line.text}")
        self._seen[run_id] = seen
