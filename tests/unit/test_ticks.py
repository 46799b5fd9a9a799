"""When schedules are due, on their own: cron lines, time zones, and what to do about a tick.

The oracle for cron lines goes through every minute and asks a calendar; it shares nothing with the
library that is used.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from holdfast.agents.work import schedule_times
from holdfast.agents.work.schedule_times import ScheduleSpec, Skip, TickPlan
from holdfast.clock import MICROSECONDS, from_datetime, to_datetime
from holdfast.errors import MisuseError

HOUR = 3600 * MICROSECONDS
MINUTE = 60 * MICROSECONDS


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=UTC))


def told(moments: "list[int]") -> list[str]:
    return [f"{to_datetime(moment):%m-%dT%H:%M}" for moment in moments]


def cron(line: str, tz: str = "UTC", **policy: str) -> ScheduleSpec:
    return schedule_times.check(ScheduleSpec(agent="a", cron=line, tz=tz, **policy))  # type: ignore[arg-type]


def first(spec: ScheduleSpec, moment: str, count: int) -> list[str]:
    return told(list(islice(schedule_times.after(spec, at(moment)), count)))


def test_weekdays_in_a_time_zone() -> None:
    spec = cron("0 9 * * 1-5", "Europe/Zurich")
    assert first(spec, "2026-11-13T08:00", 3) == ["11-16T08:00", "11-17T08:00", "11-18T08:00"]


def test_line_in_the_hour_that_spring_skips_comes_right_after_it() -> None:
    spec = cron("30 2 * * *", "Europe/Zurich")
    assert first(spec, "2027-03-27T00:00", 3) == ["03-27T01:30", "03-28T01:00", "03-29T00:30"]


def test_line_in_the_hour_that_autumn_repeats_comes_once() -> None:
    spec = cron("30 2 * * *", "Europe/Zurich")
    assert first(spec, "2027-10-30T00:00", 3) == ["10-30T00:30", "10-31T00:30", "11-01T01:30"]
    assert first(spec, "2027-10-31T01:10", 1) == ["11-01T01:30"], "it was in the first 2:30"


def test_line_for_every_half_hour_follows_the_real_hours() -> None:
    spec = cron("*/30 * * * *", "Europe/Zurich")
    got = list(islice(schedule_times.after(spec, at("2027-10-30T23:00")), 10))
    assert {b - a for a, b in pairwise(got)} == {30 * MINUTE}


@pytest.mark.parametrize("day", ["2027-03-27", "2027-10-30"])
@pytest.mark.parametrize("line", ["30 2 * * *", "0 2,3 * * *", "15 */2 * * *", "*/20 * * * *"])
@pytest.mark.parametrize("zone", ["Europe/Zurich", "UTC", "Australia/Lord_Howe"])
def test_newest_tick_is_the_last_one_that_has_come(zone: str, line: str, day: str) -> None:
    spec = cron(line, zone)
    begin = at(f"{day}T00:00")
    known = [
        tick for tick in islice(schedule_times.after(spec, begin), 300) if tick < begin + 72 * HOUR
    ]
    assert known == sorted(set(known))
    for moment in range(known[0], begin + 72 * HOUR, 7 * MINUTE):
        expected = max(tick for tick in known if tick <= moment)
        assert schedule_times.newest(spec, moment) == expected, to_datetime(moment)
        following = [tick for tick in known if tick > moment]
        if following:
            assert next(schedule_times.after(spec, moment)) == following[0], to_datetime(moment)


def test_ticks_are_those_a_calendar_finds() -> None:
    zone = ZoneInfo("America/New_York")
    spec = cron("15 8-10 * 6 1,3", "America/New_York")
    moment, wanted = datetime(2027, 5, 30, tzinfo=UTC), list[int]()
    while moment < datetime(2027, 7, 2, tzinfo=UTC):
        local = moment.astimezone(zone)
        is_day = local.month == 6 and local.isoweekday() in (1, 3)
        if is_day and local.hour in (8, 9, 10) and local.minute == 15:
            wanted.append(from_datetime(moment))
        moment += timedelta(minutes=1)
    got = [
        t
        for t in islice(schedule_times.after(spec, at("2027-05-30T00:00")), 200)
        if t <= wanted[-1]
    ]
    assert len(wanted) == 27
    assert got == wanted


def test_interval_is_counted_from_1970_so_that_all_agree() -> None:
    spec = schedule_times.check(ScheduleSpec(agent="a", every_seconds=900))
    assert first(spec, "2026-11-16T09:07", 2) == ["11-16T09:15", "11-16T09:30"]
    assert first(spec, "2026-11-16T09:15", 1) == ["11-16T09:30"], "a tick is after the moment"
    assert schedule_times.newest(spec, at("2026-11-16T09:15")) == at("2026-11-16T09:15")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (ScheduleSpec(agent="a", cron="61 9 * * *"), "Bad minute"),
        (ScheduleSpec(agent="a", cron="9 o'clock"), "Wrong number of fields"),
        (ScheduleSpec(agent="a", cron="0 0 30 2 *"), "Bad day-of-month"),
        (ScheduleSpec(agent="a", cron="0 9 * * *", tz="Europe/Zuerich"), "Europe/Zuerich"),
        (ScheduleSpec(agent="a", cron="0 9 * * *", tz="../etc/passwd"), "time zone"),
        (ScheduleSpec(agent="a", cron="0 9 * * *", every_seconds=5), "either"),
        (ScheduleSpec(agent="a"), "either"),
        (ScheduleSpec(agent="a", every_seconds=-1), "from 1"),
        (ScheduleSpec(agent="a", every_seconds=0.5), "from 1"),  # type: ignore[arg-type]
        (ScheduleSpec(agent="a", every_seconds=5, overlap="queue"), "'skip'"),  # type: ignore[arg-type]
        (ScheduleSpec(agent="a", every_seconds=5, catch_up="some"), "'none'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_told_with_an_example(spec: ScheduleSpec, told: str) -> None:
    with pytest.raises(MisuseError, match=told):
        schedule_times.check(spec)


def hourly(**policy: str) -> ScheduleSpec:
    return cron("0 * * * *", **policy)


NINE, TEN, ELEVEN = (at(f"2026-11-16T{hour}:00") for hour in ("09", "10", "11"))


def missed(first_at: int, last_at: int) -> Skip:
    return Skip(first_at=first_at, last_at=last_at, why="missed")


def overlapping(first_at: int, last_at: int) -> Skip:
    return Skip(first_at=first_at, last_at=last_at, why="overlap")


@pytest.mark.parametrize(
    ("spec", "now", "is_busy", "plan"),
    [
        (hourly(), NINE - 1, False, TickPlan(until=NINE - HOUR)),
        (hourly(), NINE, False, TickPlan(until=NINE, start=(NINE,))),
        (hourly(), NINE, True, TickPlan(until=NINE, skip=(overlapping(NINE, NINE),))),
        (hourly(overlap="allow"), NINE, True, TickPlan(until=NINE, start=(NINE,))),
        (hourly(overlap="replace"), NINE, True, TickPlan(until=NINE, start=(NINE,), replaces=True)),
        (hourly(overlap="replace"), NINE, False, TickPlan(until=NINE, start=(NINE,))),
        # Three ticks are due, the last of them half an hour late.
        (
            hourly(),
            ELEVEN + HOUR // 2,
            False,
            TickPlan(until=ELEVEN, start=(ELEVEN,), skip=(missed(NINE, TEN),)),
        ),
        (
            hourly(catch_up="none"),
            ELEVEN + HOUR // 2,
            False,
            TickPlan(until=ELEVEN, skip=(missed(NINE, ELEVEN),)),
        ),
        (
            hourly(catch_up="none"),
            ELEVEN + MINUTE,
            False,
            TickPlan(until=ELEVEN, start=(ELEVEN,), skip=(missed(NINE, TEN),)),
        ),
        (
            hourly(catch_up="all", overlap="allow"),
            ELEVEN,
            True,
            TickPlan(until=ELEVEN, start=(NINE, TEN, ELEVEN)),
        ),
        (
            hourly(catch_up="all"),
            ELEVEN,
            False,
            TickPlan(until=ELEVEN, start=(NINE,), skip=(overlapping(TEN, ELEVEN),)),
        ),
        (
            hourly(catch_up="all", overlap="replace"),
            ELEVEN,
            True,
            TickPlan(until=ELEVEN, start=(ELEVEN,), skip=(overlapping(NINE, TEN),), replaces=True),
        ),
    ],
)
def test_plan_follows_the_policies(
    spec: ScheduleSpec, now: int, is_busy: bool, plan: TickPlan
) -> None:
    assert schedule_times.plan(spec, since=NINE - HOUR, now=now, is_busy=is_busy) == plan


def test_many_missed_ticks_are_caught_up_with_in_batches() -> None:
    spec = schedule_times.check(
        ScheduleSpec(agent="a", every_seconds=1, overlap="allow", catch_up="all")
    )
    since, started = NINE, list[int]()
    while (
        plan := schedule_times.plan(spec, since=since, now=NINE + 5 * MINUTE, is_busy=False)
    ).start:
        assert len(plan.start) <= schedule_times.BATCH
        started += plan.start
        since = plan.until
    assert started == [NINE + n * MICROSECONDS for n in range(1, 301)]


def test_years_of_missed_ticks_are_passed_over_at_once() -> None:
    spec = cron("* * * * *")
    now = at("2040-01-01T00:00")
    assert schedule_times.plan(spec, since=NINE, now=now, is_busy=False).start == (now,)
