"""Schedules: runs that start other runs, by the store's clock.

A schedule is a run of the agent below, which every worker knows; nothing else is stored. It waits
for its next tick or for a change, whichever is first. What it will start is in its state before
anything is started, and each start has the id of its tick: the worker that resumes after a crash
starts the same runs where they are missing, and none twice.
"""

import builtins
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent, Agents, agent
from holdfast.agents.run import Run, turn_of
from holdfast.agents.work import schedule_times
from holdfast.agents.work.schedule_times import CatchUp, Overlap, ScheduleSpec, Skip
from holdfast.clock import to_datetime
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.leases.leases import Leases
from holdfast.engine.runs import Runs
from holdfast.engine.signals import Signals
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    MisuseError,
    NotFoundError,
    RunExists,
    RunNotFound,
    ScheduleNotFound,
    UnsupportedValue,
)
from holdfast.kernel.runs import ENDED, RunStatus
from holdfast.kernel.runs import RunRow as RunRow
from holdfast.telemetry import log

T = TypeVar("T")

AGENT: Final = "holdfast.schedule"
_PREFIX: Final = "schedule:"
_CHANGE: Final = "schedule"
_DUE: Final = "a tick is due"
_KEPT_SKIPS: Final = 20
_LONGEST_NAME: Final = names.MAX_LENGTH - len("@2026-11-16T09:00:00Z")
_PAGE: Final = 1000


class ScheduleChange(msgspec.Struct, frozen=True):
    """What a schedule is from a moment on; without a spec it starts nothing."""

    spec: ScheduleSpec | None
    at: int


class ScheduleProgress(msgspec.Struct, frozen=True):
    """How far a schedule has come.

    `starting` (as `starts` says) and `cancelling` are decided, maybe not yet done; `coming` is a
    change that waits for the ticks before it.
    """

    spec: ScheduleSpec | None
    since: int
    last_run_id: str = ""
    starting: tuple[str, ...] = ()
    starts: ScheduleSpec | None = None
    cancelling: str = ""
    coming: ScheduleChange | None = None
    started: int = 0
    skips: int = 0
    skipped: tuple[Skip, ...] = ()


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now; `status` is that of its run."""

    name: str
    agent: str
    input: Any
    cron: str
    every_seconds: int
    tz: str
    overlap: str
    catch_up: str
    run_id: str
    status: RunStatus
    next_at: int
    last_run_id: str
    started: int
    skips: int
    skipped: tuple[Skip, ...]


async def _keep_schedule(run: Run, change: ScheduleChange) -> None:
    known = run.value("progress", ScheduleProgress, ScheduleProgress(change.spec, change.at))
    while True:
        if known.get().starting:
            await _outside(run, _start(turn_of(run).context, run.run_id, known.get()))
            known.set(replace(known.get(), starting=(), starts=None, cancelling=""))
            await run.checkpoint(label="started")
        update = known.get().coming or await _next_change(run, known.get())
        if update is None:
            known.set(await _planned(run, known.get(), turn_of(run).context.now()))
        else:
            known.set(await _changed(run, known.get(), update))
        await run.checkpoint(label="planned" if update is None else "changed")


SCHEDULE: Final[Agent[..., Any]] = agent(name=AGENT)(_keep_schedule)


async def _outside(run: Run, call: Coroutine[Any, Any, T]) -> T:
    """Read or write other runs; if the store cannot, the schedule is tried again."""
    try:
        return await call
    except HoldfastError as error:
        turn_of(run).gate.leave(error)


async def _next_change(run: Run, known: ScheduleProgress) -> ScheduleChange | None:
    """Return what the schedule was changed to; None when a tick is due."""
    due = _due_at(known)
    while True:
        if due is None:
            value = await run.signal(_CHANGE)
        else:
            value = await run.signal(_CHANGE, until=to_datetime(due), default=_DUE)
        if value == _DUE:
            return None
        change = _change_of(value)
        if change is not None:
            return change
        log.warning("%s was sent something that is no change, which is passed over", run.run_id)


def _change_of(value: object) -> ScheduleChange | None:
    """Convert a signal to a change of a schedule; None if it is something else."""
    try:
        return type_conversion.convert(value, ScheduleChange, what="a change of a schedule")
    except UnsupportedValue:
        return None


async def _changed(run: Run, known: ScheduleProgress, update: ScheduleChange) -> ScheduleProgress:
    """Return a schedule after a change: ticks before it are those of the old schedule."""
    if update.spec is None:
        return replace(known, spec=None, coming=None)
    planned = await _planned(run, known, update.at)
    following = _due_at(planned)
    if following is not None and following <= update.at:
        return replace(planned, coming=update)
    return replace(planned, spec=update.spec, since=update.at, coming=None)


def _due_at(known: ScheduleProgress) -> int | None:
    return None if known.spec is None else next(schedule_times.after(known.spec, known.since), None)


async def _planned(run: Run, known: ScheduleProgress, now: int) -> ScheduleProgress:
    """Return the progress with what to start for the ticks that are due."""
    spec = known.spec
    if spec is None:
        return known
    is_busy = await _outside(run, _is_going_on(turn_of(run).context, known.last_run_id))
    plan = schedule_times.plan(spec, since=known.since, now=now, is_busy=is_busy)
    name = run.run_id.removeprefix(_PREFIX)
    starting = tuple(schedule_times.run_id_of(name, tick) for tick in plan.start)
    return replace(
        known,
        since=plan.until,
        last_run_id=starting[-1] if starting else known.last_run_id,
        starting=starting,
        starts=spec if starting else None,
        cancelling=known.last_run_id if plan.replaces else "",
        started=known.started + len(starting),
        skips=known.skips + len(plan.skip),
        skipped=(*known.skipped, *plan.skip)[-_KEPT_SKIPS:],
    )


async def _is_going_on(context: Context, run_id: str) -> bool:
    found = await context.store.runs.get(run_id) if run_id else None
    return found is not None and found.status not in ENDED


async def _start(context: Context, run_id: str, known: ScheduleProgress) -> None:
    """Start what was planned, and end what it replaces, unless that has been done."""
    runs = Runs(context, Leases(context))
    if known.cancelling:
        with suppress(ConflictError, NotFoundError):
            note = f"{run_id} starts the next one"
            await runs.cancel(known.cancelling, by=AGENT, note=note)
    assert known.starts is not None, "what is started is stored with it"
    starts, owner = known.starts, (await runs.get(run_id)).owner
    for each in known.starting:
        with suppress(RunExists):
            await runs.create(each, agent=starts.agent, input=starts.input, owner=owner)


class Schedules:
    """The schedules of the tenant."""

    def __init__(self, context: Context, runs: Runs, agents: Agents) -> None:
        self._context = context
        self._runs = runs
        self._agents = agents
        self._signals = Signals(context)
        self._checkpoints = Checkpoints(context)

    async def add(
        self,
        agent: Agent[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        cron: str = "",
        every_seconds: int = 0,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Start an agent again and again, once per tick, on any worker and despite crashes.

        The same name again changes nothing if all is as it was, else the schedule. A tick comes
        while the last run is active: `overlap`. Ticks were missed while nobody worked: `catch_up`.
        """
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"{agent!r} is not an agent; make it one with @holdfast.agent")
        self._agents.add(agent)
        given = type_conversion.plain(agent.input_of(args, {}), what="input")
        agent.arguments_of(given)  # raises now, not at each tick
        spec = ScheduleSpec(
            agent=agent.name,
            input=given,
            cron=cron,
            every_seconds=every_seconds,
            tz=tz,
            overlap=overlap,
            catch_up=catch_up,
        )
        schedule_times.check(spec)
        name = names.check(agent.name if name is None else name, what="the name of a schedule")
        if len(name) > _LONGEST_NAME:
            raise MisuseError(
                f"the name of a schedule has at most {_LONGEST_NAME} characters: its runs are "
                "named after it"
            )
        await self._change(name, spec)
        return await self.get(name)

    async def list(self) -> "list[Schedule]":
        """All schedules that start something, by name."""
        found: builtins.list[RunRow] = []
        page: builtins.list[RunRow] | None = None
        while page is None or len(page) == _PAGE:
            before = page[-1] if page else None
            page = await self._runs.list(agent=AGENT, limit=_PAGE, before=before)
            found += page
        shown = [await self._shown(run) for run in found]
        return sorted((each for each in shown if each is not None), key=lambda each: each.name)

    async def get(self, name: str) -> Schedule:
        """One schedule; raises ScheduleNotFound."""
        try:
            found = await self._shown(await self._runs.get(_PREFIX + name))
        except RunNotFound:
            found = None
        if found is None:
            raise ScheduleNotFound(
                f"there is no schedule {name!r}; `holdfast schedules list` shows those that are"
            )
        return found

    async def remove(self, name: str, *, by: str = "") -> None:
        """Start nothing from now on; what was started continues. The record stays."""
        await self.get(name)
        await self._change(name, None, by=by)

    async def next(self, name: str, *, count: int = 5) -> "list[datetime]":
        """When the schedule is due next, by the store's clock."""
        names.check_count(count, what="count")
        spec = (await self._latest(await self._runs.get((await self.get(name)).run_id))).spec
        assert spec is not None, "a schedule that is found has a spec"
        return [
            to_datetime(tick)
            for tick in islice(schedule_times.after(spec, self._context.now()), count)
        ]

    async def _change(self, name: str, spec: ScheduleSpec | None, *, by: str = "") -> None:
        change = ScheduleChange(spec, self._context.now())
        run_id = _PREFIX + name
        try:
            await self._runs.create(run_id, agent=AGENT, input={"change": change})
            return
        except RunExists:
            run = await self._runs.get(run_id)
        if run.status in ENDED:
            raise ConflictError(
                f"schedule {name!r} cannot be changed: its run {run_id} is {run.status}; choose "
                "another name"
            )
        sent = [s for s in await self._signals.of_run(run_id) if s.name == _CHANGE]
        if (await self._latest(run)).spec != spec:
            # Callers that ask for the same at once send the same signal, which counts once.
            digest = codec.canonical_digest(spec, name="schedule").hex()[:32]
            await self._signals.send(run_id, _CHANGE, change, id=f"{len(sent)}-{digest}", by=by)

    async def _latest(self, run: RunRow) -> ScheduleChange:
        """Return what was asked for last, whether the schedule has received it or not."""
        sent = [s for s in await self._signals.of_run(run.run_id) if s.name == _CHANGE]
        for signal in reversed(sent):
            change = _change_of(await self._signals.value(run.run_id, signal.signal_id))
            if change is not None:
                return change
        stored = (await self._runs.input(run.run_id))["change"]
        return type_conversion.convert(stored, ScheduleChange, what="a change of a schedule")

    async def _shown(self, run: RunRow) -> Schedule | None:
        latest = await self._latest(run)
        spec = latest.spec
        if spec is None or run.agent != AGENT:
            return None
        stored = (await self._checkpoints.load(run.run_id)).get("progress")
        known = ScheduleProgress(spec, latest.at)
        if stored is not None:
            known = type_conversion.convert(
                stored, ScheduleProgress, what="the progress of a schedule"
            )
        since = max(known.since, latest.at)
        due = None if run.status in ENDED else next(schedule_times.after(spec, since), None)
        return Schedule(
            name=run.run_id.removeprefix(_PREFIX),
            agent=spec.agent,
            input=spec.input,
            cron=spec.cron,
            every_seconds=spec.every_seconds,
            tz=spec.tz,
            overlap=spec.overlap,
            catch_up=spec.catch_up,
            run_id=run.run_id,
            status=run.status,
            next_at=due or 0,
            last_run_id=known.last_run_id,
            started=known.started,
            skips=known.skips,
            skipped=known.skipped,
        )
