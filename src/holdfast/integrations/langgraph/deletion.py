"""Delete threads and checkpoints; the deletion is kept in the journal.

All data of a deleted thread is erased. Data of deleted checkpoints is erased only if up to 16
checkpoints remain in the thread: see `pruner.prune`.
"""

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.engine.marked.marked_run import MarkedRun
from holdfast.engine.reading.log_views import LogView
from holdfast.errors import MisuseError
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.host import AGENT, Host
from holdfast.integrations.langgraph.layout import run_id_of
from holdfast.kernel.marks import Marked
from holdfast.kernel.waits import WaitStatus


class Deletion:
    """What takes checkpoints away."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def thread(
        self, thread_id: str, note: str = "the thread was deleted", *, unused_since: int = 0
    ) -> None:
        """Erase all of a thread. Its id may be used again, and begins with nothing.

        A thread that was used since a moment, or has an open question, is left alone.
        """
        run_id = run_id_of(thread_id)
        if not await self._host.marks.of_run(run_id):
            return

        async def erase(run: MarkedRun) -> None:
            await run.look()
            if not unused_since or await self._is_unused(run_id, unused_since):
                await self._host.marks.erase(run, note=note)

        for wait in await self._host.waits.of_run(run_id):
            if wait.status is WaitStatus.OPEN and not unused_since:
                await self._host.waits.cancel(wait.wait_id, by=AGENT)
        await self._host.advance(run_id, erase)

    async def _is_unused(self, run_id: str, since: int) -> bool:
        """Check just before the known state of the thread decides: later writers are refused."""
        waits = await self._host.waits.of_run(run_id)
        every = await self._host.marks.of_run(run_id)
        is_asking = any(wait.status is WaitStatus.OPEN for wait in waits)
        return not is_asking and all(marked.created_at < since for marked in every)

    async def for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs of a graph have made, in any thread."""
        found = await self._host.marks.tagged("run_id", list(run_ids)) if run_ids else []
        of_thread: dict[str, set[int]] = {}
        for marked in found:
            of_thread.setdefault(marked.run_id, set()).add(marked.version)
        for run_id, versions in of_thread.items():
            await self._drop(run_id, versions, "checkpoints of runs were deleted")

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """Delete all checkpoints of threads, or all but the latest of each namespace."""
        if strategy not in ("keep_latest", "delete"):
            raise MisuseError(f'the strategy is "keep_latest" or "delete", not {strategy!r}')
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.thread(thread_id, "the thread was pruned")
                continue
            run_id = run_id_of(thread_id)
            every = await self._host.marks.of_run(run_id)
            drop = {marked.version for marked in every} - await self._needed(run_id, every)
            await self._drop(run_id, drop, "all but the latest checkpoints were pruned")

    async def _needed(self, run_id: str, every: Sequence[Marked]) -> set[int]:
        """The versions of the latest checkpoint of each namespace, and of what those are made of.

        A channel of deltas has no value in most checkpoints: it is made of the writes since the
        last one that has.
        """
        latest = {marked.space: marked for marked in every}
        by_name = {(marked.space, marked.name): marked for marked in every}
        deltas = _channels_of_deltas(every)
        views: dict[int, LogView] = {}
        if any(deltas.values()):
            versions = {marked.version for marked in every}
            views = await self._host.marks.views(run_id, versions, self._host.known(run_id))
        kept: set[int] = set()
        for space, last in latest.items():
            marked: Marked | None = last
            missing = set(deltas[space])
            while marked is not None:
                kept.add(marked.version)
                if missing:
                    missing -= layout.forms_of(views[marked.version], space).keys()
                marked = by_name.get((space, marked.parent)) if missing else None
        return kept

    async def _drop(self, run_id: str, versions: Collection[int], note: str) -> None:
        async def drop(run: MarkedRun) -> None:
            await self._host.marks.prune(run, versions, note=note)

        if versions:
            await self._host.advance(run_id, drop)


def _channels_of_deltas(every: Sequence[Marked]) -> dict[str, set[str]]:
    """The channels of each namespace that are stored as deltas; the metadata counts for them."""
    found: dict[str, set[str]] = {}
    for marked in every:
        counted: dict[str, Any] = marked.tags.get("counters_since_delta_snapshot") or {}
        found.setdefault(marked.space, set()).update(counted)
    return found
