"""`holdfast schedules`, as people use it: in a terminal, on a store that a program has made."""

import getpass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import sync
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import MOMENT, ask, keys_of, run


@holdfast.agent
async def report(run: holdfast.Run, topic: str) -> str:
    return topic


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with sync.open(str(path), agents=[report]) as hf:
        hf.schedule(report, "sales", name="morning", cron="0 9 * * 1-5", tz="Europe/Zurich")
        hf.schedule(report, "costs", name="often", every_seconds=60, overlap="allow")
    return path


def test_schedules_are_listed_and_shown(store: Path) -> None:
    found: list[dict[str, Any]] = ask("schedules", "list", store=store)
    assert [each["name"] for each in found] == ["morning", "often"]
    shown = ask("schedules", "show", "morning", store=store)
    assert shown == found[0]
    assert set(shown) == keys_of("schedules", "A schedule in JSON") - {"first_at", "last_at", "why"}
    assert (shown["input"], shown["status"]) == ({"topic": "sales"}, "ready")
    assert MOMENT.fullmatch(shown["next_at"])
    table = run("schedules", "list", store=store)
    assert "0 9 * * 1-5 (Europe/Zurich)" in table.stdout
    assert "every 60 s" in table.stdout


def test_next_ticks_are_shown(store: Path) -> None:
    found = ask("schedules", "next", "often", "--limit", "3", store=store)
    assert [set(tick) for tick in found] == [{"at"}] * 3
    assert [tick["at"] for tick in found] == sorted(tick["at"] for tick in found)
    assert {tick["at"][16:] for tick in found} == {":00.000000Z"}


def test_schedule_is_removed_by_whoever_says_so(store: Path) -> None:
    done = run("schedules", "remove", "often", store=store)
    assert (done.returncode, done.stdout) == (0, "")
    assert "starts nothing more" in done.stderr
    assert run("schedules", "list", "-o", "ids", store=store).stdout == "morning\n"
    again = run("schedules", "remove", "often", store=store)
    assert again.returncode == Exit.NOT_FOUND
    with sync.open(str(store)) as hf:
        (removal,) = hf.signals.of_run("schedule:often")
    assert removal.received_by == getpass.getuser()


def test_store_without_schedules_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sync.open(str(path)):
        pass
    assert "no schedules" in run("schedules", "list", store=path).stderr
    missing = run("schedules", "show", "nobody", store=path)
    assert missing.returncode == Exit.NOT_FOUND
    assert "schedules list" in missing.stderr
