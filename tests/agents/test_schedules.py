"""Schedules on a clock that the tests advance: one start per tick, and the policies kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast import Schedule, faults, sync
from holdfast.agents.work.schedules import AGENT
from holdfast.clock import MICROSECONDS, from_datetime
from holdfast.errors import (
    ConflictError,
    InvalidIdentifier,
    MisuseError,
    ScheduleNotFound,
    StoreUnavailable,
    UnsupportedValue,
)
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test

MONDAY = from_datetime(datetime(2026, 11, 16, 8, 30, tzinfo=UTC))
HOUR = 3600.0
DAY = 86_400.0


@holdfast.agent
async def report(run: holdfast.Run, topic: str = "sales") -> str:
    return f"{topic} in {run.run_id}"


@holdfast.agent
async def endless(run: holdfast.Run) -> str:
    return await run.signal("end", str)


class Store:
    """A store whose clock stands still until it is told to go on."""

    def __init__(self, hf: holdfast.Holdfast, clock: ManualClock) -> None:
        self.hf = hf
        self._clock = clock

    async def advance(self, seconds: float) -> None:
        """So much time passes while workers look on: nothing is due before it comes."""
        self._clock.advance(seconds)
        await self.work()

    def sleep(self, seconds: float) -> None:
        """So much time passes while nobody works."""
        self._clock.advance(seconds)

    async def work(self) -> None:
        """Do everything that is due, by one worker after another."""
        while True:
            twin = self.hf.another_worker()
            await twin.waits.expire_due()
            held = await twin.leases.next(agents=[AGENT, "report", "endless"])
            if held is None:
                return
            await asyncio.wait([twin._work.start_pass(held)])

    async def started(self) -> list[str]:
        """The runs that were started, the oldest tick first."""
        found = await self.hf.runs.list(limit=1000)
        return sorted(run.run_id for run in found if run.agent != AGENT)

    async def ticks(self) -> list[str]:
        return [run_id.partition("@2026-")[2] for run_id in await self.started()]


@asynccontextmanager
async def opened(store: str, now: int = MONDAY) -> AsyncIterator[Store]:
    clock = ManualClock(now)
    async with holdfast.Holdfast(store, agents=[report, endless], clock=clock) as hf:
        yield Store(hf, clock)


@async_test
async def test_tick_starts_a_run_with_its_input_and_an_id_of_its_own(store: str) -> None:
    async with opened(store) as at:
        made = await at.hf.schedule(report, "costs", name="daily", cron="0 9 * * 1-5")
        assert (made.name, made.agent, made.run_id) == ("daily", "report", "schedule:daily")
        await at.work()
        assert await at.started() == []
        await at.advance(HOUR)
        assert await at.started() == ["daily@2026-11-16T09:00:00Z"]
        run_id = "daily@2026-11-16T09:00:00Z"
        assert await at.hf.runs.result(run_id) == f"costs in {run_id}"
        for _ in range(8):
            await at.advance(DAY)
        days = [16, 17, 18, 19, 20, 23, 24]
        assert await at.ticks() == [f"11-{day}T09:00:00Z" for day in days]
        assert (await at.hf.schedules.get("daily")).started == 7
        assert await at.hf.journal.verify("schedule:daily") == []


@async_test
async def test_same_schedule_again_changes_nothing(store: str) -> None:
    async with opened(store) as at:
        for _ in range(3):
            await at.hf.schedule(report, name="daily", cron="0 9 * * *")
            await at.work()
        await asyncio.gather(
            *(at.hf.schedule(report, name="daily", cron="0 9 * * *") for _ in range(5))
        )
        assert await at.hf.signals.of_run("schedule:daily") == []
        assert [each.name for each in await at.hf.schedules.list()] == ["daily"]


@async_test
async def test_changed_schedule_goes_on_as_changed(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, "old", name="daily", cron="0 9 * * *")
        await at.advance(HOUR)
        await at.hf.schedule(report, "new", name="daily", cron="0 12 * * *")
        assert (await at.hf.schedules.get("daily")).cron == "0 12 * * *", "before any worker"
        await at.advance(DAY)
        assert await at.ticks() == ["11-16T09:00:00Z", "11-16T12:00:00Z"]
        assert await at.hf.runs.input("daily@2026-11-16T12:00:00Z") == {"topic": "new"}


@async_test
async def test_schedule_can_be_changed_back_and_forth(store: str) -> None:
    async with opened(store) as at:
        for hour in (9, 10, 9, 10, 9):
            made = await at.hf.schedule(report, name="daily", cron=f"0 {hour} * * *")
            assert made.cron == f"0 {hour} * * *"
            await at.work()
        assert len(await at.hf.signals.of_run("schedule:daily")) == 4
        await at.advance(DAY)
        assert await at.ticks() == ["11-16T09:00:00Z"]


@async_test
async def test_ticks_before_a_change_are_those_of_the_old_schedule(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, "old", name="daily", cron="0 9 * * *")
        await at.work()
        at.sleep(HOUR)
        await at.hf.schedule(report, "new", name="daily", cron="0 11 * * *")
        at.sleep(2 * HOUR)
        await at.work()
        assert await at.ticks() == ["11-16T09:00:00Z", "11-16T11:00:00Z"]
        inputs = [(await at.hf.runs.input(run_id))["topic"] for run_id in await at.started()]
        assert inputs == ["old", "new"]


@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_change_waits_for_all_ticks_before_it(store: str) -> None:
    async with opened(store) as at:
        for topic in ("old", "new"):
            await at.hf.schedule(
                report, topic, name="often", every_seconds=10, overlap="allow", catch_up="all"
            )
            at.sleep(1040)
        await at.work()
        inputs = [(await at.hf.runs.input(run_id))["topic"] for run_id in await at.started()]
        assert inputs == ["old"] * 104 + ["new"] * 104


@async_test
async def test_removed_schedule_starts_nothing_and_can_be_made_again(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, name="daily", cron="0 9 * * *")
        await at.advance(HOUR)
        await at.hf.schedules.remove("daily", by="ann")
        with pytest.raises(ScheduleNotFound, match="daily"):
            await at.hf.schedules.get("daily")
        assert await at.hf.schedules.list() == []
        await at.advance(3 * DAY)
        assert await at.ticks() == ["11-16T09:00:00Z"]
        await at.hf.schedule(report, name="daily", cron="0 9 * * *")
        await at.advance(DAY)
        assert await at.ticks() == ["11-16T09:00:00Z", "11-20T09:00:00Z"]
        (removal, _) = await at.hf.signals.of_run("schedule:daily")
        assert removal.received_by == "ann"


@async_test
async def test_removing_wins_over_a_tick_that_nobody_has_seen(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, name="daily", cron="0 9 * * *")
        await at.work()
        at.sleep(HOUR)
        await at.hf.schedules.remove("daily")
        await at.work()
        assert await at.started() == []


@async_test
async def test_tick_is_skipped_while_the_last_run_goes_on(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(endless, name="watch", cron="0 * * * *")
        for _ in range(4):
            await at.advance(HOUR)
        assert await at.ticks() == ["11-16T09:00:00Z"]
        (_, second, third) = (await at.hf.schedules.get("watch")).skipped
        assert {second.why, third.why} == {"overlap"}
        assert (third.first_at - second.first_at) / MICROSECONDS == HOUR
        await at.hf.signal("watch@2026-11-16T09:00:00Z", "end", "enough")
        await at.advance(HOUR)
        assert await at.ticks() == ["11-16T09:00:00Z", "11-16T13:00:00Z"]


@async_test
async def test_runs_may_overlap_if_that_is_allowed(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(endless, name="watch", cron="0 * * * *", overlap="allow")
        for _ in range(3):
            await at.advance(HOUR)
        assert {run.status for run in await at.hf.runs.list(agent="endless")} == {"waiting"}
        assert len(await at.started()) == 3


@async_test
async def test_older_run_is_cancelled_if_the_next_one_replaces_it(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(endless, name="watch", cron="0 * * * *", overlap="replace")
        for _ in range(3):
            await at.advance(HOUR)
        found = [(await at.hf.runs.get(run_id)).status for run_id in await at.started()]
        assert found == ["cancelled", "cancelled", "waiting"]
        last = (await at.hf.journal.read((await at.started())[0]))[-1]
        assert (last.kind, last.actor) == ("RUN_CANCELLED", AGENT)


@pytest.mark.parametrize(
    ("catch_up", "ticks", "skips"),
    [
        ("one", ["11-16T12:00:00Z"], 1),
        ("all", [f"11-16T{hour:02}:00:00Z" for hour in (9, 10, 11, 12)], 0),
        ("none", [], 1),
    ],
)
@async_test
async def test_ticks_missed_while_nobody_worked_are_caught_up_with(
    store: str, catch_up: Any, ticks: list[str], skips: int
) -> None:
    async with opened(store) as at:
        await at.hf.schedule(
            report, name="hourly", cron="0 * * * *", overlap="allow", catch_up=catch_up
        )
        await at.work()
        at.sleep(4 * HOUR)
        await at.work()
        assert await at.ticks() == ticks
        assert (await at.hf.schedules.get("hourly")).skips == skips
        await at.advance(HOUR / 2)
        assert await at.ticks() == [*ticks, "11-16T13:00:00Z"], "it goes on"


@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_hundreds_of_missed_ticks_all_start(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(
            report, name="often", every_seconds=10, overlap="allow", catch_up="all"
        )
        await at.work()
        at.sleep(1050)
        await at.work()
        assert len(await at.started()) == 105
        assert (await at.hf.schedules.get("often")).started == 105


@async_test
async def test_days_that_have_23_and_25_hours_have_one_tick_each(store: str) -> None:
    spring = from_datetime(datetime(2027, 3, 26, 12, tzinfo=UTC))
    async with opened(store, spring) as at:
        await at.hf.schedule(report, name="night", cron="30 2 * * *", tz="Europe/Zurich")
        for _ in range(18):
            await at.advance(4 * HOUR)
        assert [run_id[11:22] for run_id in await at.started()] == [
            "03-27T01:30",
            "03-28T01:00",
            "03-29T00:30",
        ]
    autumn = from_datetime(datetime(2027, 10, 29, 12, tzinfo=UTC))
    async with opened(store, autumn) as at:
        await at.hf.schedule(report, name="fall", cron="30 2 * * *", tz="Europe/Zurich")
        for _ in range(18):
            await at.advance(4 * HOUR)
        found = [run_id[10:21] for run_id in await at.started() if run_id.startswith("fall")]
        assert found == ["10-30T00:30", "10-31T00:30", "11-01T01:30"]


@async_test
async def test_schedule_shows_what_it_is_and_when_it_is_due(store: str) -> None:
    async with opened(store) as at:
        made = await at.hf.schedule(report, "costs", cron="0 9 * * *", tz="Europe/Zurich")
        assert isinstance(made, Schedule)
        assert (made.name, made.tz, made.overlap, made.catch_up) == (
            "report",
            "Europe/Zurich",
            "skip",
            "one",
        )
        assert made.input == {"topic": "costs"}
        nine = datetime(2026, 11, 17, 8, tzinfo=UTC)
        assert made.next_at == from_datetime(nine)
        following = await at.hf.schedules.next("report", count=2)
        assert following == [nine, nine.replace(day=18)]
        await at.hf.schedule(report, name="another", every_seconds=60)
        assert [each.name for each in await at.hf.schedules.list()] == ["another", "report"]
        assert at.hf.agents == ["endless", "report"], "its own agent is not listed"


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda hf: hf.schedule(report, cron="61 9 * * *"), MisuseError, "0 9 . . 1-5"),
        (lambda hf: hf.schedule(report, cron="0 9 * * *", tz="Mars"), MisuseError, "Mars"),
        (lambda hf: hf.schedule(report), MisuseError, "every_seconds=3600"),
        (lambda hf: hf.schedule(report, "a", "b", every_seconds=1), MisuseError, "started like"),
        (lambda hf: hf.schedule(report, 5, every_seconds=1), UnsupportedValue, "topic"),
        (lambda hf: hf.schedule("report", every_seconds=1), MisuseError, "not an agent"),
        (lambda hf: hf.schedule(report, every_seconds=1, name=""), InvalidIdentifier, "name"),
        (lambda hf: hf.schedule(report, every_seconds=1, name="x" * 250), MisuseError, "at most"),
        (lambda hf: hf.schedules.get("nobody"), ScheduleNotFound, "schedules list"),
        (lambda hf: hf.schedules.remove("nobody"), ScheduleNotFound, "schedules list"),
        (lambda hf: hf.schedules.next("nobody"), ScheduleNotFound, "schedules list"),
    ],
)
@async_test
async def test_misuse_is_told_and_nothing_is_stored(
    change: Callable[[holdfast.Holdfast], Awaitable[Any]], error: type[Exception], told: str
) -> None:
    async with opened("memory://") as at:
        with pytest.raises(error, match=told):
            await change(at.hf)
        assert await at.hf.runs.list() == []


@async_test
async def test_cancelled_schedule_says_why_it_cannot_be_changed(store: str) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, name="daily", cron="0 9 * * *")
        await at.hf.runs.cancel("schedule:daily")
        with pytest.raises(ConflictError, match="cancelled; choose another name"):
            await at.hf.schedule(report, name="daily", cron="0 10 * * *")


@async_test
async def test_agent_cannot_take_the_name_of_the_one_that_keeps_schedules() -> None:
    @holdfast.agent(name=AGENT)
    async def mine(run: holdfast.Run) -> None: ...

    with pytest.raises(MisuseError, match="agent of Holdfast"):
        holdfast.Holdfast("memory://", agents=[mine])


class Away:
    """The store is away for one moment: at the `skip`-th batch after this one."""

    def __init__(self, point: str, skip: int) -> None:
        self._point = point
        self._left = skip

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == -1:
                raise StoreUnavailable


@pytest.mark.parametrize("point", ["batch.before_begin", "batch.before_commit"])
@async_test
async def test_store_that_is_away_for_a_moment_does_not_end_a_schedule(
    store: str, point: str
) -> None:
    async with opened(store) as at:
        await at.hf.schedule(report, name="hourly", cron="0 * * * *")
        await at.work()
        for skip in range(10):
            at.sleep(HOUR - 120)
            faults.install(Away(point, skip))
            with suppress(StoreUnavailable):
                await at.work()
            faults.install(None)
            for _ in range(2):
                at.sleep(60)
                await at.hf.leases.expire_lost()
                await at.work()
            assert (await at.hf.schedules.get("hourly")).status == "waiting"
        assert await at.ticks() == [f"11-16T{hour:02}:00:00Z" for hour in range(9, 19)]


def test_blocking_face_keeps_schedules_too(tmp_path: Any) -> None:
    with sync.open(str(tmp_path / "store.db"), agents=[report]) as hf:
        made = hf.schedule(report, "costs", name="daily", cron="0 9 * * *")
        assert hf.schedules.get("daily") == made
        assert [each.name for each in hf.schedules.list()] == ["daily"]
        assert len(hf.schedules.next("daily", count=3)) == 3
        hf.schedules.remove("daily")
        assert hf.schedules.list() == []
