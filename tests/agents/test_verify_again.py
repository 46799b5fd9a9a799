"""A `verify` that cannot tell is asked again for a while, and then a person is asked."""

import logging
from typing import Any

import pytest

import holdfast
from holdfast import Happened, NotDone, faults
from holdfast.agents.definitions.tool_policy import ToolPolicy
from holdfast.agents.effects import doubt
from holdfast.clock import MICROSECONDS
from holdfast.errors import MisuseError, RunBlocked
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start
from tests.agents.test_tools import CHARGE, Bank, results, shop


class Vendor(Bank):
    """Takes a charge and loses the answer; it cannot be asked while it is `down`."""

    def __init__(self, down: list[BaseException]) -> None:
        super().__init__()
        self.breaks = [ConnectionError("lost the answer")]
        self.down = down
        self.asked = 0

    async def find(self, key: str) -> Happened[str] | NotDone:
        self.asked += 1
        if self.down:
            raise self.down.pop()
        return await super().find(key)


async def first_failures(hf: holdfast.Holdfast) -> list[int]:
    """The seqs of the entries that tell since when `verify` could not tell."""
    entries = await hf.journal.read("r")
    steps = [entry for entry in entries if entry.kind == "STEP_RECORDED"]
    return [entry.seq for entry in steps if b"holdfast.verify" in bytes(entry.facts)]


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if "nobody knows whether" in each.getMessage()]


@async_test
async def test_vendor_that_is_down_for_a_moment_needs_no_person(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    vendor = Vendor([ConnectionError("down"), TimeoutError(), ConnectionError("down")])
    agent = shop(vendor, verify=vendor.find)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        await advance(hf, "r")
        run = await hf.runs.get("r")
        (effect,) = await hf.effects.of_run("r")
        assert (run.status, effect.status, run.lease_seq) == ("ready", "unknown", 0)
        assert run.ready_at > effect.settled_at
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
        assert len(await first_failures(hf)) == 1
    assert (len(vendor.charges), vendor.asked) == (1, 4)
    (line,) = told(caplog)
    raised, asked = "charge raised ConnectionError: lost the answer", "verify raised Connection"
    named = (str(effect.effect_id), effect.key, "`holdfast effects resolve ")
    for part in ("run r", *named, raised, asked):
        assert part in line.getMessage()
    assert [each for each in caplog.records if each.exc_info] == []
    assert [each for each in caplog.records if "charge raised" in each.getMessage()] == [line]


@async_test
async def test_person_is_asked_when_the_vendor_is_down_for_too_long(store: str) -> None:
    vendor = Vendor([ConnectionError("down")] * 100)
    agent = shop(vendor, verify=vendor.find, verify_seconds=1.5)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match=r"verify raised ConnectionError: down.*resolve"):
            await hf.run(agent, CHARGE, run_id="r")
        assert (await hf.runs.get("r")).blocked_reason == "unknown_effect"
        assert vendor.asked >= 2
        (effect,) = await hf.effects.unsettled()
        await hf.effects.settle(effect.effect_id, "completed", result="receipt 1", by="ann")
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
    assert len(vendor.charges) == 1


@async_test
async def test_crash_of_the_worker_does_not_begin_the_time_anew(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(point: str) -> None:
        if point == "tool.before_verify":
            raise Crash

    vendor = Vendor([ConnectionError("down")] * 100_000)
    agent = shop(vendor, verify=vendor.find, verify_seconds=0.5)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "ready"
        since = await first_failures(hf)
        assert len(since) == 1
        monkeypatch.setattr(faults, "point", crash)
        assert await advance(hf, "r") is None  # the worker dies before it asks again
        monkeypatch.undo()
        while (await hf.runs.get("r")).status != "blocked":
            await advance(hf, "r")
        assert await first_failures(hf) == since
    assert len(vendor.charges) == 1


@async_test
async def test_lost_worker_and_verify_that_cannot_tell_are_followed_by_the_answer(
    store: str,
) -> None:
    vendor = Vendor([ConnectionError("down")])
    vendor.breaks = [Crash()]
    agent = shop(vendor, verify=vendor.find, limit_seconds=0.5)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
    assert len(vendor.charges) == 1


@async_test
async def test_call_that_raised_and_is_found_not_done_later_is_told_as_it_raised(
    store: str,
) -> None:
    vendor = Vendor([ConnectionError("down")])
    vendor.breaks, vendor.breaks_before = [], [ConnectionError("no route")]
    agent = shop(vendor, verify=vendor.find)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        found = results(await hf.run(agent, CHARGE, run_id="r"))
    assert found == [("charge raised ConnectionError: no route", True)]
    assert vendor.charges == []


@pytest.mark.parametrize("options", [{"verify_seconds": 0}, {"in_doubt": "fail"}])
@async_test
async def test_tool_that_says_so_is_asked_once(store: str, options: dict[str, Any]) -> None:
    vendor = Vendor([ConnectionError("down")] * 100)
    agent = shop(vendor, verify=vendor.find, **options)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        if "in_doubt" in options:
            ((text, _),) = results(await hf.run(agent, CHARGE, run_id="r"))
            assert text.endswith("(whether it happened is not known)")
        else:
            with pytest.raises(RunBlocked):
                await hf.run(agent, CHARGE, run_id="r")
    assert vendor.asked == 1


def test_pauses_double_and_end_with_the_time() -> None:
    policy, now, pauses = ToolPolicy(verify_seconds=300.0), 0, list[float]()
    while (at := doubt.ask_again_at(policy, since=0, now=now)) is not None:
        pauses.append((at - now) / MICROSECONDS)
        now = at
    assert pauses[:6] == [1, 1, 2, 4, 8, 16]
    assert max(pauses) == 30
    assert sum(pauses) == 300


def test_impossible_times_are_refused() -> None:
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(MisuseError, match="verify_seconds"):
            holdfast.tool(verify_seconds=seconds)(_pay)


async def _pay(cents: int) -> None:
    """Does nothing."""
