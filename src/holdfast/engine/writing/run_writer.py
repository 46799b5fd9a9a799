"""The writer of one run: commits that continue its journal, with staged entries in front.

`advance` runs a pure decision on the known state and commits what it asks for. If another writer
was first, what came between is folded in and the decision is made again: a cancel means stop, a
later lease means fenced. A commit whose outcome is unknown is resent before anything else.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.engine.context import Context
from holdfast.engine.reading.journal import read_after
from holdfast.engine.spool import Spool
from holdfast.engine.writing.commits import ChildRun, build_commit
from holdfast.engine.writing.outages import retry_while_unavailable
from holdfast.engine.writing.staged_entries import Staged, StagedEntries
from holdfast.errors import (
    Fenced,
    HoldfastError,
    OutcomeUnknown,
    SpoolUnusable,
    UnavailableError,
)
from holdfast.kernel import budgets, indexes, leases, runs, signals, waits
from holdfast.kernel.indexes import Change
from holdfast.kernel.journal import Draft, Entry, Position
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import Applied, Commit, Conflict, Outcome, Refused
from holdfast.telemetry import COMMIT_CONFLICT


class WritePlan(NamedTuple):
    """What a decision asks for, and what to do once it is stored."""

    drafts: Sequence[Draft]
    on_applied: Callable[[Sequence[Entry], Sequence[Draft]], None] | None = None
    begins: Sequence[ChildRun] = ()


Decide = Callable[[RunRow, int], WritePlan]


class ConditionFailed(HoldfastError):
    """A condition on an index did not hold."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"a condition did not hold: {type(change).__name__}")
        self.change = change


OnLater = Callable[[Sequence[Entry]], Awaitable[None]]


class _PendingCommit(NamedTuple):
    """A commit that was sent, or is about to be; `plan` is what its decision asked for."""

    commit: Commit
    run: RunRow
    staged: Sequence[Staged]
    plan: WritePlan
    before: tuple[RunRow, int]

    @property
    def own_entries(self) -> Sequence[Entry]:
        """The entries that the decision asked for, without those that were staged."""
        return self.commit.entries[len(self.staged) :]


class RunWriter:
    """Where one writer is in one run.

    `recorded` are the bodies that may be named in its state. `on_later` is given what others have
    appended to a run that they write too; without it the run is this writer's alone, until somebody
    takes a later lease. `on_stored` is called after the first commit.
    """

    def __init__(
        self,
        context: Context,
        run: RunRow,
        position: Position,
        *,
        recorded: dict[int, bytes] | None = None,
        on_later: OnLater | None = None,
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        self.run = run
        self.position = position
        self.closed_groups: set[str] = set()
        self.signalled: dict[str, int] = {}
        """The seq of the last signal of each name that was folded in."""
        self.budget_seq = 0
        """The seq of the last entry of others that set a budget of the run and was folded in."""
        self.is_unbudgeted = False
        """Whether it is known that no budget applies: the run descends from none, and has none."""
        self.staged = StagedEntries({} if recorded is None else recorded)
        self._context = context
        self._lease_seq = run.lease_seq
        self._on_later = on_later
        self._on_stored = on_stored
        self._pending: _PendingCommit | None = None
        self._spooled = 0
        self._superseded: HoldfastError | None = None
        self._is_busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every commit is known."""
        return self._pending is None

    @property
    def is_spooled(self) -> bool:
        """Whether some of what this writer has committed is in the local spool only."""
        return self._spooled > 0

    def append(self, *drafts: Draft, begins: Sequence[ChildRun] = ()) -> Awaitable[Sequence[Entry]]:
        """Commit drafts to a run that is held; without drafts, what is staged."""

        def decide(run: RunRow, seq: int) -> WritePlan:
            runs.check_leased(run)
            return WritePlan(drafts, begins=begins)

        return self.advance_patiently(decide)

    def advance_patiently(self, decide: Decide) -> Awaitable[Sequence[Entry]]:
        """Advance; if the settings say so, retry while the store is away."""
        if not self._context.may_wait_for_store:
            return self.advance(decide)
        return retry_while_unavailable(self._context, partial(self.advance, decide))

    async def advance(self, decide: Decide) -> Sequence[Entry]:
        """Commit what is staged, then what `decide(run, seq)` asks for: its entries, once on disk.

        Nothing is written when nothing is staged and it asks for nothing.
        """
        if self._is_busy or self._pending is not None:
            settled = await self._settle_before(decide)
            if settled is not None:
                return settled
        else:
            self._is_busy = True
        try:
            while (pending := self._prepare(decide)) is not None:
                outcome = await self._submit(pending)
                if isinstance(outcome, Applied):
                    return pending.own_entries
                if isinstance(outcome, Refused):
                    raise ConditionFailed(outcome.change)
                await self._catch_up()
            return ()
        finally:
            self._leave()

    async def settle(self) -> Sequence[Entry]:
        """Settle a commit whose answer was lost. Returns its entries if it is stored."""
        await self._enter()
        try:
            return await self._settle()
        finally:
            self._leave()

    async def look(self) -> None:
        """Fold in what others appended meanwhile, without writing anything."""
        await self._enter()
        try:
            if not await self._settle() and self._pending is None:
                await self._fold_later()
        finally:
            self._leave()

    async def _settle_before(self, decide: Decide) -> Sequence[Entry] | None:
        """Wait for the caller's turn and settle what is pending.

        If `decide` asks for just what turns out to be stored, its caller retries what has
        succeeded: the entries are returned, and the turn is over. Else it is the caller's turn.
        """
        await self._enter()
        try:
            pending = self._pending
            is_asked_again = pending is not None and _asks_again(decide, pending)
            if await self._settle() and pending is not None and is_asked_again:
                self._leave()
                return pending.own_entries
        except BaseException:
            self._leave()
            raise
        return None

    async def _enter(self) -> None:
        """Wait until nobody else uses this writer. Tasks take turns in the order they came."""
        while self._is_busy:
            # In a forked process, the task that has the turn does not exist.
            self._context.store.home.check()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and not self._is_busy:
                    self._leave()  # it was this task's turn: the next one has it now
                raise
        self._is_busy = True

    def _leave(self) -> None:
        self._is_busy = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _prepare(self, decide: Decide) -> _PendingCommit | None:
        """Seal what is staged and what a decision asks for. Returns None if there is nothing."""
        before, seq = self.run, self.position.seq + 1
        staged = self.staged.plan(seq)
        own_seq = seq + len(staged)
        plan = decide(before, own_seq)
        if not staged and not plan.drafts:
            return None
        drafts = [*(item.draft for item in staged), *plan.drafts] if staged else plan.drafts
        built = build_commit(
            self._context, before.run_id, before, self.position, drafts, begins=plan.begins
        )
        return _PendingCommit(built.commit, built.run, staged, plan, (before, own_seq))

    async def _submit(self, pending: _PendingCommit) -> Outcome:
        # Until the answer is here, the commit may or may not be stored: the next user of this
        # writer finds it in `_pending` and settles it first.
        is_first_time = self._pending is None
        self._pending = pending
        try:
            if self._context.spool is None:
                outcome: Outcome = await self._context.store.submit(pending.commit)
            else:
                outcome = await self._send_or_spool(self._context.spool, pending.commit)
        except OutcomeUnknown:
            raise
        except HoldfastError:
            # This sending stored nothing; an earlier one may have.
            if is_first_time:
                self._pending = None
            raise
        self._pending = None
        if isinstance(outcome, Applied):
            self._stored(pending)
        return outcome

    async def _send_or_spool(self, spool: Spool, commit: Commit) -> Outcome:
        """Submit a commit after those that are spooled; spool it too if the store is away."""
        # In a shared run, the next writer would supersede it.
        can_spool = self._on_later is None and spool.takes(commit)
        is_away = spool.is_away and not spool.is_broken
        if can_spool and is_away and self._superseded is None:
            return await self._spool(spool, commit)
        try:
            await self._drain()
            return await self._context.store.submit(commit)
        except UnavailableError as error:
            if not can_spool:
                raise
            try:
                return await self._spool(spool, commit)
            except SpoolUnusable as unusable:
                raise error from unusable

    async def _spool(self, spool: Spool, commit: Commit) -> Outcome:
        # Before it is written: it may be drained before this task continues.
        self._spooled += 1
        try:
            await spool.add(commit, self._drained)
        except SpoolUnusable:
            self._spooled -= 1
            raise
        return Applied()

    def _drained(self, error: HoldfastError | None) -> None:
        self._spooled -= 1
        self._superseded = self._superseded or error

    async def _drain(self) -> None:
        """Let the store take what is spooled; raises SpoolSuperseded if it never will."""
        if self._spooled and self._context.spool is not None:
            await self._context.spool.drain()
        if self._superseded is not None:
            raise self._superseded

    def _stored(self, pending: _PendingCommit) -> None:
        entries, plan = pending.commit.entries, pending.plan
        self.run = pending.run
        self.position = entries[-1].position
        if self._on_stored is not None:
            self._on_stored()
            self._on_stored = None
        self.staged.settle(pending.staged, entries)
        if plan.on_applied is not None:
            plan.on_applied(pending.own_entries, plan.drafts)

    async def _settle(self) -> Sequence[Entry]:
        """Send the commit again unchanged: if it is stored already, that is success."""
        if self._pending is None:
            return ()
        pending = self._pending
        outcome = await self._submit(pending)
        if isinstance(outcome, Conflict):
            await self._catch_up()
        return pending.commit.entries if isinstance(outcome, Applied) else ()

    async def _catch_up(self) -> None:
        """Fold in what others appended; raises Fenced if another worker has the lease now."""
        self._context.telemetry.count(COMMIT_CONFLICT)
        await self._fold_later()

    async def _fold_later(self) -> None:
        await self._drain()
        later = await read_after(self._context, self.run.run_id, self.position)
        if later and not self.position.seq:
            raise Fenced(f"run {self.run.run_id} was begun by somebody else: stop working on it")
        if self._on_later is None:
            leases.check_not_fenced(self._lease_seq, later)
        else:
            await self._on_later(later)
        for entry in later:
            facts = indexes.facts_of(entry)
            self.run = indexes.fold_run(self.run, entry, facts)
            self.position = entry.position
            if isinstance(facts, waits.Closed):
                self.closed_groups.add(facts.group_id)
            elif isinstance(facts, signals.SignalReceived):
                self.signalled[facts.name] = entry.seq
            elif isinstance(facts, budgets.Set):
                self.budget_seq, self.is_unbudgeted = entry.seq, False


def _asks_again(decide: Decide, pending: _PendingCommit) -> bool:
    """Return whether a decision asks for a commit's own entries; False if it has none."""
    if not pending.plan.drafts:
        return False
    try:
        return decide(*pending.before).drafts == pending.plan.drafts
    except HoldfastError:
        return False
