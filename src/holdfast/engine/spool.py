"""Continue while the store is away, with commits in a local file: `on_store_failure: spool`.

The spool holds sealed commits, and draining submits them unchanged. If a commit is stored already,
that is success; if its run continued elsewhere, it is kept apart as evidence, and never merged.
Nothing that others could see is spooled: no intent, no wait, no end, no lease.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from holdfast import faults
from holdfast.errors import HoldfastError, SpoolCorrupted, SpoolSuperseded, UnavailableError
from holdfast.kernel import indexes, journal
from holdfast.kernel.effects import EffectSettled
from holdfast.kernel.journal import Draft, Kind
from holdfast.settings import Settings, spool_folder
from holdfast.stores import spool_files
from holdfast.stores.contract import Applied, Commit, Store
from holdfast.stores.spool_files import LeftFile, SpoolFile
from holdfast.telemetry import SPOOL_DRAINED, SPOOL_SUPERSEDED, SPOOLED, Telemetry, log

T = TypeVar("T")
Report = Callable[[str, Draft], Awaitable[None]]
Ended = Callable[[HoldfastError | None], None]

_KINDS: Final = frozenset(
    {
        Kind.STEP_RECORDED,
        Kind.VERSIONS_RECORDED,
        Kind.STATE_VALUES,
        Kind.STATE_BASE,
        Kind.CHECKPOINT_CREATED,
        Kind.COST_RECORDED,
        Kind.EFFECT_COMPLETED,
        Kind.EFFECT_NOT_DONE,
        Kind.EFFECT_UNKNOWN,
        Kind.RECOVERY_COMPLETED,
    }
)
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class _WaitingCommit(NamedTuple):
    commit: Commit
    ended: Ended


class Spool:
    """The commits of one process that the store has not taken yet, and those left by others."""

    def __init__(
        self, store: Store, settings: Settings, telemetry: Telemetry, *, worker: str
    ) -> None:
        self._store = store
        self._root = spool_folder(settings.spool_folder)
        self._most = settings.spool_bytes
        self._telemetry = telemetry
        self._worker = worker
        self._head = spool_files.SpoolHeader("", store.tenant, worker, 0)
        self._folder = self._root
        self._file: SpoolFile | None = None
        # One thread, so that records and cuts stay in order even if a task is cancelled meanwhile.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-spool")
        self._waiting: list[_WaitingCommit] = []
        self._draining = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._report: Report | None = None
        self.is_away = False
        """Whether the store was away at the last attempt: not every commit need try it."""
        self.is_broken = False
        """Whether the last commit could not be spooled either."""

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    async def open(self, report: Report) -> None:
        """Find out whose spools are to be drained, and drain those that were left behind.

        `report` records outcomes of effects that their runs cannot store.
        """
        spool_files.check_supported()
        self._report = report
        store_id = await self._store.store_id()
        self._head = spool_files.SpoolHeader(
            store_id, self._store.tenant, self._worker, self._store.clock.now()
        )
        self._folder = await self._in_thread(lambda: spool_files.make_folder(self._root / store_id))
        await self.drain_left()

    async def close(self) -> None:
        """Drain what can be drained; the next process drains the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            await self.drain()
        except HoldfastError as error:
            log.warning("%d commits stay in %s: %s", len(self._waiting), self._folder, error)
        if self._file is not None:
            self._file.close(is_empty=not self._waiting)
        self._thread.shutdown()

    def takes(self, commit: Commit) -> bool:
        """Whether a commit may be spooled: of a run that is stored, and only with its own work."""
        is_begun = bool(commit.after.seq) and not commit.begun
        return is_begun and all(entry.kind in _KINDS for entry in commit.entries)

    async def add(self, commit: Commit, ended: Ended) -> None:
        """Keep a commit on this machine's disk until the store takes it; raises SpoolUnusable.

        `ended` is called when it is stored, or with the error that says why it never will be.
        """
        try:
            await asyncio.shield(
                self._in_thread(lambda: self._append(_WaitingCommit(commit, ended)))
            )
        except HoldfastError as error:
            log.warning("the store is away, and so is the spool: %s", error)
            self.is_broken = True
            raise
        if not self.is_away:
            log.warning("the store is away: commits go to %s until it is back", self._folder)
        self.is_away, self.is_broken = True, False
        self._telemetry.count(SPOOLED)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_draining())

    async def drain(self) -> None:
        """Submit all that waits, in order; raises UnavailableError while the store is away."""
        if not self._waiting and not self.is_away:
            return
        async with self._draining:
            while self._waiting:
                await self._deliver(self._waiting[0])
            # Before the file is cut, which may take long: the store takes commits again.
            self.is_away = self.is_broken = False
            await self._in_thread(self._cut)

    async def drain_left(self) -> int:
        """Drain what other processes of this store and tenant left. Returns how many commits."""
        drained = 0
        for path in spool_files.files_in(self._folder):
            left = await self._in_thread(lambda path=path: LeftFile.claim(path))
            if left is not None:
                try:
                    drained += await self._drain_file(left)
                finally:
                    left.close()
        return drained

    def _append(self, waiting: _WaitingCommit) -> None:
        if self._file is None:
            path = self._folder / f"{self._worker}{spool_files.SUFFIX}"
            self._file = SpoolFile(path, self._head, most_bytes=self._most)
        self._file.append(waiting.commit)
        self._waiting.append(waiting)

    def _cut(self) -> None:
        if self._file is not None and not self._waiting:
            self._file.cut()

    async def _keep_draining(self) -> None:
        pause = _FIRST_PAUSE
        while self._waiting:
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
            try:
                await self.drain()
            except UnavailableError as error:
                log.debug("the spool is not drained yet: %s", error)
            except HoldfastError:
                log.exception("the spool cannot be drained")

    async def _deliver(self, first: _WaitingCommit) -> None:
        """Submit a commit; if its run continued elsewhere, keep all of that run as evidence."""
        if await self._submit(first.commit):
            self._waiting.pop(0)
            first.ended(None)
            return
        same = [each for each in self._waiting if each.commit.run_id == first.commit.run_id]
        kept = await self._set_apart(self._head, [each.commit for each in same])
        error = SpoolSuperseded(
            f"run {first.commit.run_id} went on elsewhere while the store was away; what was "
            f"spooled for it is kept in {kept}"
        )
        for each in same:
            self._waiting.remove(each)
            each.ended(error)

    async def _submit(self, commit: Commit) -> bool:
        faults.point("spool.before_submit")
        outcome = await self._store.submit(commit)
        faults.point("spool.after_submit")
        if isinstance(outcome, Applied):
            self._telemetry.count(SPOOL_DRAINED)
            return True
        return False

    async def _drain_file(self, left: LeftFile) -> int:
        contents = left.contents
        head = contents.head or self._head
        if (head.store_id, head.tenant) != (self._head.store_id, self._head.tenant):
            return 0  # another tenant's: its own process will find it
        drained, superseded = 0, set[str]()
        for at, commit in enumerate(contents.commits):
            if commit.run_id in superseded:
                continue
            if await self._submit(commit):
                drained += 1
                continue
            superseded.add(commit.run_id)
            later = contents.commits[at:]
            await self._set_apart(head, [each for each in later if each.run_id == commit.run_id])
        try:
            spool_files.check(left.path, contents)
        except SpoolCorrupted as damage:
            kept = await self._in_thread(left.keep)
            self._telemetry.count(SPOOL_SUPERSEDED)
            log.error("%s; the file is kept as %s", damage, kept)
            return drained
        await self._in_thread(left.remove)
        if drained:
            log.info("drained %d commits that were left in %s", drained, left.path)
        return drained

    async def _set_apart(self, head: spool_files.SpoolHeader, commits: Sequence[Commit]) -> Path:
        """Keep commits of a run as evidence, and report what tools are known to have done."""
        first = commits[0]
        why = await self._why(first)
        of_run = spool_files.SpoolHeader(
            head.store_id, head.tenant, head.worker, head.created_at, first.run_id, why
        )
        kept = await self._in_thread(
            lambda: spool_files.write_evidence(self._folder, of_run, commits)
        )
        await self._report_outcomes(commits)
        self._telemetry.count(SPOOL_SUPERSEDED, len(commits))
        log.error(
            "%d commits of run %s cannot be stored any more (%s); they are kept in %s",
            len(commits),
            first.run_id,
            why,
            kept,
        )
        return kept

    async def _why(self, commit: Commit) -> str:
        after = commit.after.seq
        found = await self._store.journal.read(commit.run_id, after=after, limit=1)
        if not found:
            return f"the journal ends before entry {after + 1}, or refuses it"
        return f"entry {found[0].seq} is {found[0].kind} by {found[0].actor}"

    async def _report_outcomes(self, commits: Sequence[Commit]) -> None:
        assert self._report is not None, "given when it was opened"
        for entry in (entry for commit in commits for entry in commit.entries):
            facts = indexes.facts_of(entry)
            if isinstance(facts, EffectSettled) and not facts.retry:
                draft = Draft(Kind(entry.kind), facts, journal.body_of(entry))
                await self._report(entry.run_id, draft)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
