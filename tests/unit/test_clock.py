"""The steady clock, on a machine whose clocks the tests hold in their hands."""

import logging
import os
import time
from collections.abc import Iterator
from itertools import cycle

import pytest

from holdfast import clock
from holdfast.clock import JUMP, MICROSECONDS, SteadyClock, SystemClock

DAY = 86_400 * MICROSECONDS
BOOTED = 1_800_000_000 * MICROSECONDS


class Machine:
    """A wall clock that anybody may set, and one that only goes on."""

    def __init__(self) -> None:
        self.passed = 0
        self.set_by = 0
        self.stands_still: Iterator[int] = cycle([0])

    def wall(self) -> int:
        return BOOTED + self.passed + self.set_by

    def steady(self) -> int:
        self.passed += next(self.stands_still)
        return self.passed


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def steady(machine: Machine) -> SteadyClock:
    return SteadyClock(
        wall_ns=lambda: machine.wall() * 1000, steady_ns=lambda: machine.steady() * 1000
    )


@pytest.mark.parametrize("jump", [DAY, -DAY, JUMP + 1, -JUMP - 1])
def test_jump_of_the_machines_clock_is_not_followed(
    machine: Machine, steady: SteadyClock, jump: int
) -> None:
    machine.set_by = jump
    machine.passed = 5 * MICROSECONDS
    assert steady.now() == BOOTED + 5 * MICROSECONDS
    assert machine.wall() == BOOTED + 5 * MICROSECONDS + jump, "a plain clock would have jumped"


def test_jump_is_told_once_however_often_the_time_is_asked(
    machine: Machine, steady: SteadyClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        for jump in (DAY, -DAY):
            machine.set_by = jump
            for _ in range(3):
                machine.passed += MICROSECONDS
                steady.now()
    assert [record.args for record in caplog.records] == [(86_400.0,), (-86_400.0,)]


def test_second_jump_is_told_again_after_the_first_was_taken_back(
    machine: Machine, steady: SteadyClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        for jump in (DAY, 0, DAY):
            machine.set_by = jump
            assert steady.now() == BOOTED
    assert len(caplog.records) == 2


def test_small_corrections_are_followed_quietly(
    machine: Machine, steady: SteadyClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        machine.set_by += JUMP
        assert steady.now() == machine.wall()
    assert caplog.records == []


def test_time_never_goes_back(machine: Machine, steady: SteadyClock) -> None:
    before = steady.now()
    machine.set_by = -JUMP
    assert steady.now() == before
    machine.passed = JUMP + 1
    assert steady.now() == before + 1, "a correction is followed when time has caught up"


def test_suspended_time_counts(machine: Machine, steady: SteadyClock) -> None:
    machine.passed = DAY  # both clocks go on while the machine sleeps
    assert steady.now() == BOOTED + DAY


def test_standing_still_between_two_looks_at_clocks_is_no_jump(
    machine: Machine, steady: SteadyClock, caplog: pytest.LogCaptureFixture
) -> None:
    machine.stands_still = cycle([0, 3600 * MICROSECONDS])
    assert steady.now() == BOOTED + 3600 * MICROSECONDS
    machine.stands_still = cycle([0])
    assert steady.now() == BOOTED + 3600 * MICROSECONDS
    assert caplog.records == []


def test_stores_of_a_process_share_its_time() -> None:
    here, there = SystemClock(), SystemClock()
    first, second, third = here.now(), there.now(), here.now()
    assert first <= second <= third
    assert abs(first - clock.wall()) < JUMP


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_steady_clock_is_the_one_that_counts_while_suspended() -> None:
    assert os.name == "posix"
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    assert before <= clock.steady() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
