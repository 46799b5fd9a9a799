"""Runs: creating, opening, looking at, cancelling and forking them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Container, Mapping
from typing import Any
from uuid import UUID

from holdfast import codec, names
from holdfast.engine.budgets.budgets import first_budget
from holdfast.engine.budgets.costs import Budget
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.leases import Leases
from holdfast.engine.maintenance import replayed_effects, travel
from holdfast.engine.maintenance.travel import TravelPlan, Unclaimed
from holdfast.engine.reading import turns
from holdfast.engine.reading.journal import body_of
from holdfast.engine.writing import unheld_runs
from holdfast.errors import (
    ConflictError,
    IntegrityError,
    MisuseError,
    RunExists,
    RunNotFound,
)
from holdfast.kernel import journal, runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.peers import CANCELS
from holdfast.kernel.runs import BlockedReason, RunRow, RunStatus
from holdfast.kernel.travel import PastItem
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.stores.reads import RunFilter

_ENDS = frozenset({Kind.RUN_COMPLETED, Kind.RUN_FAILED, Kind.RUN_CANCELLED})


class Runs:
    """Every run of the tenant."""

    def __init__(self, context: Context, leases: Leases) -> None:
        self._context = context
        self._leases = leases

    async def create(
        self,
        run_id: str | None = None,
        *,
        agent: str = "",
        input: object = None,
        parent_id: str = "",
        subject: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> RunRow:
        """Create a run, ready for a worker. Raises RunExists if the id is taken.

        A run with a parent draws on the budgets of its parent and of all that this descends from.
        If the parent went back since it began such a run, the new one continues what that did.
        `subject` is what it is about and `owner` whose it is, to list runs by; the owner of its
        parent unless one is given.
        """
        digest = codec.canonical_digest(input, name="input")
        former = await replayed_effects.started_before(self._context, parent_id, agent, digest)
        return await create_run(
            self._context,
            run_id,
            agent=agent,
            input=input,
            parent_id=parent_id,
            subject=subject,
            owner=owner,
            budget=budget,
            former=former,
        )

    async def open(
        self, run_id: str, *, agent: str = "", input: object = None, takeover: bool = False
    ) -> LeasedRun:
        """Lease a run to work on it; create it if no run has this id.

        A run that a living worker holds is refused, or with `takeover` taken from it: all that the
        worker writes from then on is refused.
        """
        try:
            return await self._leases.take(run_id, takeover=takeover)
        except RunNotFound:
            # Another process may create it just now: the first to lease it holds it.
            with contextlib.suppress(RunExists):
                return await self._leases.create(run_id, agent=agent, input=input)
            return await self._leases.take(run_id, takeover=takeover)

    async def get(self, run_id: str) -> RunRow:
        return await get_run(self._context, run_id)

    async def input(self, run_id: str) -> Any:
        """Return the input that a run was created with."""
        await self.get(run_id)
        return await self._body(run_id, 1, {Kind.RUN_CREATED})

    async def result(self, run_id: str) -> Any:
        """Return the result that a run ended with; raises ConflictError while it has not ended."""
        run = await self.get(run_id)
        if run.status not in runs.ENDED:
            raise ConflictError(f"run {run_id} is {run.status}; it has no result yet")
        return await self._body(run_id, run.result_seq, _ENDS)

    async def watch(self, run_id: str) -> AsyncIterator[RunRow]:
        """Yield the run's row now and whenever it has changed, until the run has ended."""
        seen: RunRow | None = None
        async for _ in self._context.changes(f"run:{run_id}"):
            run = await self.get(run_id)
            if run != seen:
                yield run
                seen = run
            if run.status in runs.ENDED:
                return

    async def changed(self, known: RunRow, *, timeout: float) -> RunRow:
        """Return the run's row when it differs from `known`, or the current one after `timeout`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                async for run in self.watch(known.run_id):
                    if run != known:
                        return run
        return await self.get(known.run_id)

    async def note(self, run_id: str) -> str:
        """Return the newest note in a run's journal: why it has failed, or is blocked."""
        await self.get(run_id)
        return await turns.last_note(self._context, run_id)

    async def cancel(self, run_id: str, *, by: str = "", note: str = "") -> None:
        """End a run now; the worker that holds it finds out at its next commit."""
        await cancel_run(self._context, run_id, by=by, note=note)

    async def block(
        self, run_id: str, reason: BlockedReason | str, *, by: str = "", note: str = ""
    ) -> None:
        """Block a run until an operator acts."""
        blocked = runs.Blocked(runs.reason_of(reason), _remark(note))
        await _move(self._context, run_id, Draft(Kind.RUN_BLOCKED, blocked), by)

    async def unblock(self, run_id: str, *, by: str = "", note: str = "") -> None:
        """Give a blocked run back to the workers."""
        unblocked = Draft(Kind.RUN_UNBLOCKED, runs.Released(note=_remark(note)))
        await _move(self._context, run_id, unblocked, by)

    async def fork(
        self,
        run_id: str,
        version: int,
        *,
        new_run_id: str | None = None,
        by: str = "",
        note: str = "",
        edits: Mapping[str, object] | None = None,
        resend: Collection[UUID | str] = (),
    ) -> RunRow:
        """Create a run that begins with another's state at a version; the other does not change.

        What was done outside after that version is given back to it, not sent again, except the
        effects that `resend` names. `edits` are parts of the state to begin with instead: a
        separate version, by `by`.
        """
        change = travel.change_of(by, note, edits, resend)
        return await travel.fork(self._context, run_id, version, new_run_id, change)

    async def rewind(
        self,
        run_id: str,
        version: int,
        *,
        by: str = "",
        note: str = "",
        edits: Mapping[str, object] | None = None,
        resend: Collection[UUID | str] = (),
        takeover: bool = False,
    ) -> RunRow:
        """Resume a run from an earlier version, as a new version.

        Its open waits are closed, and it is ready for a worker. What it did outside since is given
        back to it, as in a fork. A run that a living worker holds is refused, or with `takeover`
        taken from it; one that has ended can only be forked.
        """
        change = travel.change_of(by, note, edits, resend)
        return await travel.rewind(self._context, run_id, version, change, takeover=takeover)

    async def plan(self, run_id: str, version: int) -> TravelPlan:
        """Return what lies after a version: the effects that a fork or rewind does not undo."""
        return await travel.plan(self._context, run_id, version)

    async def unclaimed(self, run_id: str) -> "list[Unclaimed]":
        """Return what a run did before it went back or recovered, and has not asked for again."""
        await self.get(run_id)
        return await travel.unclaimed(self._context, run_id)

    async def _body(self, run_id: str, seq: int, kinds: Container[str]) -> Any:
        found = await self._context.store.journal.named(run_id, [seq])
        previous = found[0].previous if found and seq > 1 else journal.GENESIS
        is_right = bool(found) and found[0].entry.kind in kinds
        if not is_right or previous is None or not journal.is_intact(found[0].entry, previous):
            raise IntegrityError(f"entry {seq} of run {run_id} is damaged or missing")
        return body_of(found[0].entry)

    async def list(
        self,
        *,
        status: RunStatus | str | None = None,
        agent: str | None = None,
        subject: str | None = None,
        parent_id: str | None = None,
        owner: str | None = None,
        limit: int = 100,
        before: RunRow | None = None,
    ) -> list[RunRow]:
        """Return runs, newest first; `before` the last one of a page continues a listing.

        Those with a `parent_id` draw on that run's budgets; the runs of the peers it called do.
        """
        if status is not None and status not in set(RunStatus):
            raise MisuseError(f"{status!r} is not a status; one of {', '.join(RunStatus)} is")
        names.check_optional(agent, what="agent")
        names.check_optional(parent_id, what="parent id")
        names.check_optional(owner, what="owner")
        if names.check_optional(subject, what="subject") is not None and agent is None:
            raise MisuseError("subjects are those of an agent: give agent as well")
        names.check_count(limit, what="limit")
        after = None if before is None else (before.created_at, before.run_id)
        return await self._context.store.runs.page(
            RunFilter(
                status=None if status is None else str(status),
                agent=agent,
                subject=subject,
                parent=parent_id,
                owner=owner,
                limit=limit,
                before=after,
            )
        )


async def create_run(
    context: Context,
    run_id: str | None,
    *,
    agent: str,
    input: object,
    parent_id: str,
    subject: str,
    owner: str,
    budget: Budget | None,
    former: PastItem | None,
) -> RunRow:
    """Create a run as `Runs.create` does, with the root of `former`; it continues its work."""
    if parent_id and not owner:
        owner = (await get_run(context, parent_id)).owner
    created = unheld_runs.first_entry(
        agent=agent,
        input=input,
        parent_id=parent_id,
        parent_seq=await _head_of(context, parent_id),
        subject=subject,
        owner=owner,
        former=former,
    )
    drafts = [created] if budget is None else [created, first_budget(budget)]
    return await unheld_runs.create(context, unheld_runs.choose_id(run_id), drafts)


async def _head_of(context: Context, run_id: str) -> int:
    """Return where the journal of a parent ends; 0 if there is no parent."""
    head = await context.store.journal.head(run_id) if run_id else None
    return 0 if head is None else head.seq


async def get_run(context: Context, run_id: str) -> RunRow:
    """Return a run; raises RunNotFound."""
    found = await context.store.runs.get(names.check(run_id, what="run id"))
    if found is None:
        raise RunNotFound(f"there is no run {run_id!r}; `holdfast runs list` shows those that are")
    return found


async def cancel_run(context: Context, run_id: str, *, by: str = "", note: str = "") -> None:
    """End a run now, as `Runs.cancel` does."""
    await _move(context, run_id, Draft(Kind.RUN_CANCELLED, runs.RunFinished(_remark(note))), by)


async def _move(context: Context, run_id: str, draft: Draft, by: str) -> None:
    def decide(snapshot: Snapshot) -> LateDecision:
        if snapshot.run is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        runs.check_move(snapshot.run, draft.kind)
        return LateDecision(None, (draft,))

    names.check(run_id, what="run id")
    by = by and names.check(by, what="by")
    await context.decide_late(run_id, decide, by=by, topics=CANCELS)


def _remark(note: str) -> str:
    return names.check_text(note, what="note")
