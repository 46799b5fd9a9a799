"""When a schedule is due: pure functions of what was asked for and of two moments.

A tick is a moment in microseconds, as everywhere. A cron line is read in its time zone, as Debian's
cron does: what falls into the hour that is skipped in spring comes right after it, and what falls
into the hour that is repeated in autumn comes once; lines that begin with `*` go by real hours.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import dropwhile, islice
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast.clock import LONGEST_SECONDS, MICROSECONDS, from_datetime, to_datetime
from holdfast.errors import MisuseError

Overlap = Literal["skip", "allow", "replace"]
CatchUp = Literal["one", "all", "none"]

LATE: Final = 60 * MICROSECONDS
BATCH: Final = 100
REPEATED: Final = 7200 * MICROSECONDS  # more than any zone repeats in autumn


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule starts, and when."""

    agent: str
    input: Any = None
    cron: str = ""
    every_seconds: int = 0
    tz: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "one"


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Ticks for which nothing was started: from `first_at` to `last_at`, both included."""

    first_at: int
    last_at: int
    why: Literal["overlap", "missed"]


class TickPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about the ticks up to `until`."""

    until: int
    start: tuple[int, ...] = ()
    skip: tuple[Skip, ...] = ()
    replaces: bool = False


def check(spec: ScheduleSpec) -> ScheduleSpec:
    """Return a valid spec; raises MisuseError with what is wrong and an example."""
    if bool(spec.cron) == bool(spec.every_seconds):
        raise MisuseError('say when: either cron="0 9 * * 1-5" or every_seconds=3600')
    if spec.overlap not in get_args(Overlap):
        raise MisuseError(f"overlap is 'skip', 'allow' or 'replace', not {spec.overlap!r}")
    if spec.catch_up not in get_args(CatchUp):
        raise MisuseError(f"catch_up is 'one', 'all' or 'none', not {spec.catch_up!r}")
    if spec.cron:
        _check_cron(spec)
    elif type(spec.every_seconds) is not int or not 1 <= spec.every_seconds <= LONGEST_SECONDS:
        raise MisuseError(
            f"every_seconds is a whole number of seconds from 1, not {spec.every_seconds!r}"
        )
    return spec


def after(spec: ScheduleSpec, moment: int) -> Iterator[int]:
    """The ticks after a moment, one after another; they may end."""
    if spec.every_seconds:
        return _interval(spec, moment)
    # In an hour that is repeated a line may come again which has come in the first of the two.
    return dropwhile(lambda tick: tick <= moment, map(from_datetime, _cron(spec, moment)))


def newest(spec: ScheduleSpec, moment: int) -> int | None:
    """The last tick that is not after a moment."""
    if spec.every_seconds:
        return moment - moment % (spec.every_seconds * MICROSECONDS)
    begin = moment + MICROSECONDS  # a cron line looks at whole seconds before the one it is given
    if _local(begin, spec.tz).fold:
        begin += REPEATED
    ticks = map(from_datetime, _cron(spec, begin, reverse=True))
    return next((tick for tick in ticks if tick <= moment), None)


def plan(spec: ScheduleSpec, *, since: int, now: int, is_busy: bool) -> TickPlan:
    """What to do about the ticks after `since` that are due; `is_busy`: the last run is active."""
    if spec.catch_up == "all":
        due = [tick for tick in islice(after(spec, since), BATCH) if tick <= now]
        if not due:
            return TickPlan(until=since)
        return _without_overlaps(spec, due, (), is_busy=is_busy)
    first, last = next(after(spec, since), None), newest(spec, now)
    if first is None or first > now:
        return TickPlan(until=since)
    last = first if last is None else max(first, last)
    missed: list[Skip] = []
    is_late = spec.catch_up == "none" and now - last > LATE
    if is_late:
        missed.append(Skip(first_at=first, last_at=last, why="missed"))
    elif first < last:
        before = newest(spec, last - 1)
        missed.append(Skip(first_at=first, last_at=before or first, why="missed"))
    return _without_overlaps(spec, [] if is_late else [last], tuple(missed), is_busy=is_busy)


def _without_overlaps(
    spec: ScheduleSpec, due: list[int], missed: tuple[Skip, ...], *, is_busy: bool
) -> TickPlan:
    until = max([*due, *(skip.last_at for skip in missed)])
    if spec.overlap == "allow" or not due:
        return TickPlan(until=until, start=tuple(due), skip=missed)
    if spec.overlap == "replace":
        kept, dropped = due[-1:], due[:-1]
    else:
        kept, dropped = ([], due) if is_busy else (due[:1], due[1:])
    if dropped:
        missed += (Skip(first_at=dropped[0], last_at=dropped[-1], why="overlap"),)
    replaces = is_busy and spec.overlap == "replace"
    return TickPlan(until=until, start=tuple(kept), skip=missed, replaces=replaces)


def run_id_of(name: str, tick: int) -> str:
    """Return the id of the run that a tick starts: the same on every worker."""
    return f"{name}@{to_datetime(tick):%Y-%m-%dT%H:%M:%SZ}"


def _interval(spec: ScheduleSpec, moment: int) -> Iterator[int]:
    step = spec.every_seconds * MICROSECONDS
    tick = moment - moment % step
    while True:
        tick += step
        yield tick


def _check_cron(spec: ScheduleSpec) -> None:
    try:
        _local(0, spec.tz)
    except (LookupError, ValueError, OSError, TypeError) as error:
        raise MisuseError(
            f"there is no time zone {spec.tz!r} on this machine; name one like 'Europe/Zurich' or "
            "'UTC' (on Windows, `pip install tzdata` brings them)"
        ) from error
    example = "'0 9 * * 1-5' is 9:00 on weekdays: minute, hour, day of month, month, day of week"
    if not isinstance(spec.cron, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(f"cron is a text, not {spec.cron!r}; {example}")
    try:
        first = next(_cron(spec, 0), None)
    except ValueError as error:
        raise MisuseError(f"{spec.cron!r} is no cron line: {error}; {example}") from error
    if first is None:
        raise MisuseError(f"{spec.cron!r} never comes; {example}")


def _cron(spec: ScheduleSpec, moment: int, *, reverse: bool = False) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError  # most processes have no schedule

    try:
        return iter(CronSim(spec.cron, _local(moment, spec.tz), reverse=reverse))
    except CronSimError as error:
        raise ValueError(str(error)) from error


def _local(moment: int, zone: str) -> datetime:
    """The whole second of a moment in a time zone."""
    from zoneinfo import ZoneInfo  # the same

    return to_datetime(moment).replace(microsecond=0).astimezone(ZoneInfo(zone))
