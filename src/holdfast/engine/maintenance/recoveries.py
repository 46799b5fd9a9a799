"""Recovery: find the checkpoint that a failed run can resume from, and resume it there.

Damage is never skipped silently: each damaged version is recorded before an older one is used. A
person decides if the chain has a gap, if no version is intact, or if a damaged entry may concern
effects outside.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast import names
from holdfast.engine import sweeper
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.maintenance import gaps, travel
from holdfast.engine.maintenance.travel import TravelRequest
from holdfast.engine.reading.erasures import erased_among
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IndexCorrupted,
    IntegrityError,
    LeaseHeld,
    RunBlocked,
    RunNotFound,
    UnavailableError,
)
from holdfast.kernel import indexes, journal, recoveries, runs
from holdfast.kernel.checkpoints import COPIES, Checkpoint
from holdfast.kernel.journal import ORIGIN, Draft, Flaw, Kind, Problem
from holdfast.kernel.recoveries import Cause, Failure, Point, RecoveryVerdict
from holdfast.kernel.runs import RecoveryCompleted, RunRow, RunStatus
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.telemetry import log

_PAGE: Final = 1000
_COPIES: Final = 10
_OF_RECOVERY: Final = frozenset({Kind.RECOVERY_INITIATED, Kind.RUN_UNBLOCKED})
_REPEATABLE: Final = frozenset(
    {Kind.CHECKPOINT_CREATED, Kind.STATE_VALUES, Kind.STATE_BASE, Kind.STEP_RECORDED}
)
"""The loss of such an entry only repeats work. Other kinds may concern effects outside."""


class RecoveryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest intact version of a run.

    `skipped` has the ids of newer, damaged versions. `why_not` says why the run cannot resume there
    unless a person accepts it; it is empty if nobody has to. `is_over` means that the run has
    ended: it cannot be resumed at all.
    """

    run_id: str
    version: int
    checkpoint_id: UUID | None
    skipped: tuple[UUID, ...] = ()
    why_not: str = ""
    problems: tuple[Problem, ...] = ()
    is_over: bool = False
    is_torn: bool = False
    """Whether the journal is damaged after the version; resuming there skips the damage."""

    @property
    def is_damaged(self) -> bool:
        """Whether resuming there leaves something out."""
        return bool(self.skipped) or self.is_torn


class Recoveries:
    """Recovering runs, for people and programs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def find_point(self, run_id: str) -> RecoveryPoint:
        """Find where a run could resume, and record the damage that is found."""
        run = await self._get(run_id)
        point = await find_point(self._context, run_id)
        if run.status not in runs.ENDED:
            return point
        ended = f"it has ended ({run.status.value}): fork it to go on from one of its versions"
        return msgspec.structs.replace(point, why_not=ended, is_over=True)

    async def execute(
        self,
        run_id: str,
        *,
        version: int | None = None,
        accept_gap: bool = False,
        by: str = "",
        note: str = "",
    ) -> RunRow:
        """Resume a failed run from its newest intact version, or from an older one.

        Raises ConflictError if the recovery point has a `why_not`, unless `accept_gap` is set. If
        no version is intact, the run then starts again, and effects outside are not repeated.
        Raises LeaseHeld while a living worker holds the run. Raises RunBlocked after too many
        recoveries without progress: an operator must act first.
        """
        run = await self._get(run_id)
        runs.check_alive(run)
        by = by and names.check(by, what="by")
        note = names.check_text(note, what="note")
        try:
            await _check_tries(self._context, run_id)
        except RunBlocked:
            if run.status is not RunStatus.BLOCKED:
                await self._give_up(run, by)
            raise
        point = await find_point(self._context, run_id)
        if point.why_not and not accept_gap:
            raise ConflictError(
                f"run {run_id} is not recovered: {point.why_not}. If that is acceptable, say so: "
                f"`holdfast runs recover {run_id} --accept-gap`"
            )
        missing = tuple(await gaps.gaps_of(self._context, run_id)) if accept_gap else ()
        target = point.version if version is None else version
        gap = f"accepted: {point.why_not}" if point.why_not else ""
        reason = "; ".join(filter(None, (note, gap))) or "recovered by a person"
        if not point.is_damaged and target == point.version:
            await self._begin(run, point, by, reason, missing)
            return await self._get(run_id)
        cause = Cause.CORRUPTION if point.is_damaged else Cause.ERROR
        failure = Failure(cause, reason, attempts=0)
        return await _go_back(self._context, point, failure, version=target, by=by, missing=missing)

    async def _give_up(self, run: RunRow, by: str) -> None:
        note = f"it was recovered {recoveries.TRIES} times, and came no further"
        newest = await self._context.store.checkpoints.page(run.run_id, before=2**62, limit=1)
        at = Point(0, newest[0].version, newest[0].checkpoint_id) if newest else Point(0, 0, None)
        failure = Failure(Cause.ERROR, note, attempts=recoveries.TRIES)
        verdict = RecoveryVerdict(False, why_not="recovering it does not help")

        def decide(snapshot: Snapshot) -> LateDecision:
            now = snapshot.run
            if now is None or now.status in runs.ENDED or now.status is RunStatus.BLOCKED:
                return LateDecision(None)
            return LateDecision(None, recoveries.recover(at, failure, verdict, now=snapshot.now))

        await self._context.decide_late(run.run_id, decide, by=by)

    async def _begin(
        self,
        run: RunRow,
        point: RecoveryPoint,
        by: str,
        note: str,
        missing: tuple[gaps.Range, ...],
    ) -> None:
        """Make an undamaged run ready for a worker; its state does not change."""
        at = Point(0, point.version, point.checkpoint_id)
        failure = Failure(Cause.ERROR, note, attempts=0)

        def decide(snapshot: Snapshot) -> LateDecision:
            now = snapshot.run
            if now is None:
                raise RunNotFound(f"there is no run {run.run_id!r}")
            initiated = recoveries.recover(
                at, failure, RecoveryVerdict(True), now=snapshot.now, gaps=missing
            )
            if now.status is RunStatus.BLOCKED:
                unblocked = Draft(Kind.RUN_UNBLOCKED, runs.Released(note=note))
                return LateDecision(None, (unblocked, *initiated))
            runs.check_move(now, Kind.RECOVERY_INITIATED)
            _check_not_held(now, snapshot)
            return LateDecision(None, initiated)

        await self._context.decide_late(run.run_id, decide, by=by)

    async def _get(self, run_id: str) -> RunRow:
        found = await self._context.store.runs.get(names.check(run_id, what="run id"))
        if found is None:
            raise RunNotFound(
                f"there is no run {run_id!r}; `holdfast runs list` shows those that are"
            )
        return found


async def check_accepted(context: Context, point: RecoveryPoint) -> None:
    """Raise what `Recoveries.execute` would raise now for a point of a run that has not ended."""
    await _check_tries(context, point.run_id)

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is not None and run.status is not RunStatus.BLOCKED:
            if not point.is_damaged:
                runs.check_move(run, Kind.RECOVERY_INITIATED)
            _check_not_held(run, snapshot)
        return LateDecision(None)

    await context.decide_late(point.run_id, decide)


def _check_not_held(run: RunRow, snapshot: Snapshot) -> None:
    """Raise LeaseHeld while a living worker holds a run."""
    holder = snapshot.holder
    is_alive = holder is not None and holder.expires_at > snapshot.now
    if run.status is RunStatus.RUNNING and is_alive:
        raise LeaseHeld(
            f"run {run.run_id} is held by worker {run.worker}, which is alive; wait until it is "
            "done, or lost"
        )


async def _check_tries(context: Context, run_id: str) -> None:
    """Raise RunBlocked after too many recoveries in a row that made no progress."""
    asked = recoveries.asked_in_a_row(await _since_progress(context, run_id))
    if asked >= recoveries.TRIES:
        raise RunBlocked(
            f"run {run_id} is not recovered: it was recovered {asked} times, and came no further. "
            f"Mend what stops it, then let it go on: `holdfast runs unblock {run_id}`"
        )


async def find_point(context: Context, run_id: str) -> RecoveryPoint:
    """Find the newest intact version of a run, and whether a person must accept resuming there."""
    problems, kinds = await _look(context, run_id)
    accepted = {last + 1 for _, last in await _accepted(context, run_id, problems)}
    problems = [problem for problem in problems if problem.seq not in accepted]
    try:
        state = await Checkpoints(context).load_newest_intact(run_id)
    except IndexCorrupted:
        raise  # the versions are intact: only their index rows must be rebuilt
    except IntegrityError as error:
        versions = await context.store.checkpoints.page(run_id, before=2**62, limit=_PAGE)
        return RecoveryPoint(
            run_id=run_id,
            version=0,
            checkpoint_id=None,
            skipped=tuple(damaged.checkpoint_id for damaged in versions),
            why_not=f"no version is intact: {error}",
            problems=tuple(problems),
        )
    found = await context.store.checkpoints.get(run_id, state.version) if state.version else None
    return RecoveryPoint(
        run_id=run_id,
        version=state.version,
        checkpoint_id=state.checkpoint_id,
        skipped=state.skipped,
        why_not=_why_not(problems, kinds, after=found.seq if found else 0),
        problems=tuple(problems),
        is_torn=any(problem.seq > (found.seq if found else 0) for problem in problems),
    )


def _why_not(problems: Sequence[Problem], kinds: dict[int, str], *, after: int) -> str:
    """Return the damage that a person must accept first; empty if there is none."""
    for problem in problems:
        if problem.flaw is Flaw.MISSING:
            return f"its chain is broken: entry {problem.seq} {problem.what}"
        if problem.seq > after and kinds.get(problem.seq) not in _REPEATABLE:
            kind = kinds.get(problem.seq, "an entry")
            return f"{kind} at entry {problem.seq} is damaged, and tells of something outside"
    return ""


async def _accepted(context: Context, run_id: str, problems: Sequence[Problem]) -> list[gaps.Range]:
    """Return the gaps that a person accepted; none unless entries are missing."""
    if not any(problem.flaw is Flaw.MISSING for problem in problems):
        return []
    return await gaps.accepted_gaps(context, run_id)


async def _since_progress(context: Context, run_id: str) -> list[tuple[str, object]]:
    """Return the kind of each entry since the last progress, and the facts of recovery entries.

    The last progress is the newest checkpoint that is not a copy (`COPIES`).
    """
    found: list[tuple[str, object]] = []
    after = await _last_progress(context, run_id)
    while page := await context.store.journal.headers_after(run_id, after=after, limit=_PAGE):
        found += [
            (entry.kind, indexes.facts_of(entry) if entry.kind in _OF_RECOVERY else None)
            for entry in page
        ]
        after = page[-1].seq
    return found


async def _last_progress(context: Context, run_id: str) -> int:
    before = 2**62
    while page := await context.store.checkpoints.page(run_id, before=before, limit=_COPIES):
        for row in page:
            if row.label not in COPIES:
                return row.seq
        before = page[-1].version
    return 0


async def _look(context: Context, run_id: str) -> tuple[list[Problem], dict[int, str]]:
    """Return all problems of a journal, and the kinds of the entries that have one, by seq."""
    problems: list[Problem] = []
    kinds: dict[int, str] = {}
    after = ORIGIN
    while page := await context.store.journal.read(run_id, after=after.seq, limit=_PAGE):
        erased = await erased_among(context.store, run_id, page)
        found = list(journal.verify(page, after=after, erased=erased))
        wrong = {problem.seq for problem in found}
        kinds |= {entry.seq: entry.kind for entry in page if entry.seq in wrong}
        problems += found
        after = page[-1].position
    return problems, kinds


async def mend_or_block(context: Context, run_id: str, damage: IntegrityError) -> None:
    """Rewind a damaged run to its newest intact version, or block it. Either is recorded."""
    try:
        point = await find_point(context, run_id)
        goes_back = context.settings.on_corruption == "ancestor" and point.is_damaged
        if goes_back and not point.why_not:
            log.error(
                "run %s is damaged, and goes back to version %d: %s", run_id, point.version, damage
            )
            failure = Failure(Cause.CORRUPTION, str(damage)[:1000])
            await _go_back(context, point, failure, takeover=True)
            return
    except UnavailableError:
        raise  # the store is away: the next worker decides whether the run can be recovered
    except HoldfastError as error:
        log.error("run %s cannot be recovered by itself: %s", run_id, error)
    await sweeper.block_damaged(context, run_id, damage)


async def _go_back(
    context: Context,
    point: RecoveryPoint,
    failure: Failure,
    *,
    version: int | None = None,
    by: str = "",
    takeover: bool = False,
    missing: tuple[gaps.Range, ...] = (),
) -> RunRow:
    target = point.version if version is None else version
    found = await context.store.checkpoints.get(point.run_id, target) if target else None
    at = Point(0, target, found.checkpoint_id if found else None)
    now = context.now()
    initiated = recoveries.recover(at, failure, RecoveryVerdict(True), now=now, gaps=missing)
    change = TravelRequest(by=by, note=f"recovered: {failure.note}"[:1000], serves=True)
    return await travel.rewind(
        context, point.run_id, target, change, takeover=takeover, then=initiated
    )


def completed(run: RunRow, newest: Checkpoint | None) -> Draft:
    """Return the entry that records that a worker resumes a lost or failed run."""
    version, checkpoint_id = (newest.version, newest.checkpoint_id) if newest else (0, None)
    facts = RecoveryCompleted(checkpoint_id, version, run.agent, run.worker)
    return Draft(Kind.RECOVERY_COMPLETED, facts)


async def give_up(
    context: Context,
    held: LeasedRun,
    failure: Failure,
    *,
    tries: int,
    backoff_seconds: float,
) -> bool:
    """Release a held run whose agent failed: retry it after a pause, or block it.

    Returns whether it will be retried.
    """
    run = held.run
    found = await context.store.checkpoints.page(run.run_id, before=2**62, limit=1)
    at = Point(0, found[0].version, found[0].checkpoint_id) if found else Point(0, 0, None)
    verdict = recoveries.judge(failure, run.run_id, tries=tries, backoff_seconds=backoff_seconds)
    for draft in recoveries.recover(at, failure, verdict, now=context.now()):
        held.stage.add(draft)
    await held.stage.flush()
    return verdict.is_recoverable
