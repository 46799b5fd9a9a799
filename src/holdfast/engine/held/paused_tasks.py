"""A task that pauses: its state and what it waits for in one commit, with any holder.

The task is a run. The first pause creates it; a later one continues it: held since it was resumed,
ready because nobody resumed it yet, or waiting because the pause was written before.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast import codec, names
from holdfast.engine.context import Context
from holdfast.engine.reading.versions import load_newest
from holdfast.engine.waits import Opening, WaitSpec, opening
from holdfast.engine.writing.checkpoint_saver import About, CheckpointPlan
from holdfast.engine.writing.commits import build_commit
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter, WritePlan
from holdfast.engine.writing.staged_entries import StagedEntries
from holdfast.errors import Fenced, LeaseHeld, RunEnded, WaitExists
from holdfast.kernel import runs
from holdfast.kernel.edits import Edits
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Kind
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.state import Parts
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.stores.contract import Applied, Refused
from holdfast.stores.reads import RunAtHead


class Pause(msgspec.Struct, frozen=True):
    """What is to be stored: the whole state, and groups of waits, each satisfied by all of them.

    `lease_seq` names the lease under which the task resumed since its last pause, 0 if it did not.
    `subject` is what a new run is about, `about` what is said of the version.
    """

    agent: str
    state: Mapping[str, object]
    groups: Sequence[Sequence[WaitSpec]]
    lease_seq: int = 0
    subject: str = ""
    about: About | None = None


class _Overtaken(Exception):
    """Somebody stored a version meanwhile: look again."""


async def pause(context: Context, run_id: str, wanted: Pause) -> None:
    """Store a pause. Waits that the run has already do not change.

    The run waits for one group after another until all are closed; see `waits_for_more`. Without
    open waits it is ready.
    """
    names.check(run_id, what="run id")
    names.check(wanted.agent, what="agent")
    while True:
        found = await context.store.runs.at_head(run_id)
        stored = await context.store.waits.of_run(run_id) if found is not None else []
        try:
            if found is None:
                is_stored = await _begin(context, run_id, wanted)
            else:
                await _ContinuedTask(context, found, wanted, stored).commit()
                is_stored = True
        except _Overtaken:
            continue
        except ConditionFailed as failed:
            if len(await context.store.waits.of_run(run_id)) == len(stored):
                raise WaitExists(
                    "a wait with one of these ids exists already, for another run; the id of a "
                    "sub-task is used once"
                ) from failed
            continue
        if is_stored:
            return


def waits_for_more(stored: Collection[Wait]) -> str:
    """Return the group that a run has to wait for before it resumes; "" if no wait is open."""
    still_open = [wait for wait in stored if wait.status is WaitStatus.OPEN]
    return min(still_open, key=lambda wait: wait.opened_seq).group_id if still_open else ""


async def _begin(context: Context, run_id: str, wanted: Pause) -> bool:
    """Store the run's first entries; False if somebody else created it meanwhile."""
    now = context.now()
    created = runs.RunCreated(
        agent=wanted.agent, input_digest=codec.canonical_digest(None), subject=wanted.subject
    )
    first = [
        Draft(Kind.RUN_CREATED, created, codec.encode(None)),
        Draft(Kind.RUN_LEASED, runs.RunLeased(context.worker)),
    ]
    opened = _openings(run_id, wanted.groups, (), now)
    saving = _saving(context, Parts(), wanted, _end(opened, ""))
    leased = build_commit(context, run_id, None, ORIGIN, first, at=now).run
    drafts = [*first, *saving.plan(leased, len(first) + 1).drafts]
    built = build_commit(context, run_id, None, ORIGIN, drafts, at=now)
    outcome = await context.store.submit(built.commit)
    if isinstance(outcome, Refused):
        raise ConditionFailed(outcome.change)
    return isinstance(outcome, Applied)


class _ContinuedTask:
    """A pause of a run that exists."""

    def __init__(
        self, context: Context, found: RunAtHead, wanted: Pause, stored: Sequence[Wait]
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._stored = stored
        self._writer = RunWriter(context, found.run, found.position, on_later=self._look)
        self._parts = Parts()
        known = {wait.wait_id for wait in stored}
        self._opened = _openings(found.run.run_id, wanted.groups, known, context.now())

    async def commit(self) -> None:
        run_id = self._writer.run.run_id
        newest = await load_newest(self._context, run_id)
        self._parts = newest.parts
        await self._writer.advance(self._plan)

    async def _look(self, later: Sequence[Entry]) -> None:
        if any(entry.kind in (Kind.CHECKPOINT_CREATED, Kind.WAITS_OPENED) for entry in later):
            raise _Overtaken

    def _plan(self, run: RunRow, seq: int) -> WritePlan:
        if self._is_stored(run):
            return WritePlan(())
        self._check(run)
        before: list[Draft] = []
        end = [opened.draft for opened in self._opened]
        if run.status is RunStatus.READY:
            before.append(Draft(Kind.RUN_LEASED, runs.RunLeased(self._context.worker)))
        if run.status is not RunStatus.WAITING:
            still_open = [w for w in self._stored if w.group_id not in self._writer.closed_groups]
            end = _end(self._opened, waits_for_more(still_open))
        saving = _saving(self._context, self._parts, self._wanted, end)
        return WritePlan([*before, *saving.plan(run, seq + len(before)).drafts])

    def _is_stored(self, run: RunRow) -> bool:
        """Return whether this very pause was stored before, and its answer was lost."""
        if not self._wanted.lease_seq or run.status is RunStatus.RUNNING or self._opened:
            return False
        edits = Edits(self._parts, max_bytes=self._context.settings.max_body_bytes)
        edits.replace_all(self._wanted.state)
        return edits.is_empty

    def _check(self, run: RunRow) -> None:
        """Raise unless this pause may be written: nobody else has continued the task."""
        if run.status in runs.ENDED:
            raise RunEnded(
                f"task {run.run_id} has {run.status}: it was cleaned up. Clean up a task when it "
                "is over, not when it is restored; a new task needs an id of its own"
            )
        lease = self._wanted.lease_seq
        if lease and (run.status is not RunStatus.RUNNING or run.lease_seq != lease):
            raise Fenced(
                f"task {run.run_id} was restored here under lease {lease}, which was lost: stop "
                "working on it, whoever has restored it since goes on"
            )
        if run.status is RunStatus.RUNNING and not lease:
            raise LeaseHeld(
                f"task {run.run_id} was restored by worker {run.worker}, which goes on with it"
            )
        if run.status is RunStatus.BLOCKED:
            runs.check_move(run, Kind.RUN_LEASED)


def _openings(
    run_id: str, groups: Sequence[Sequence[WaitSpec]], known: Collection[str], now: int
) -> list[Opening]:
    new = ([spec for spec in specs if spec.wait_id not in known] for specs in groups)
    return [opening(specs, run_id=run_id, now=now) for specs in new if specs]


def _end(opened: Sequence[Opening], else_for: str) -> list[Draft]:
    """Return what follows the checkpoint: the new waits, and whether the run waits or is ready."""
    group_id = else_for or (opened[0].group_id if opened else "")
    leave = (
        Draft(Kind.RUN_WAITING, runs.Suspended(group_id))
        if group_id
        else Draft(Kind.RUN_RELEASED, runs.Released())
    )
    return [*(each.draft for each in opened), leave]


def _saving(context: Context, parts: Parts, wanted: Pause, end: Sequence[Draft]) -> CheckpointPlan:
    max_bytes = context.settings.max_body_bytes
    edits = Edits(parts, max_bytes=max_bytes)
    edits.replace_all(wanted.state)
    return CheckpointPlan(
        parts,
        edits,
        wanted.about or About(phase="paused", agent=wanted.agent),
        staged=StagedEntries(parts.recorded),
        max_bytes=max_bytes,
        then=end,
        check=runs.check_alive,
    )
