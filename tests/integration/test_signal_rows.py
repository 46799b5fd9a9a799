"""Rows of signals are changed behind Holdfast's back: no message is lost or taken twice for it."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

import holdfast
from holdfast.errors import IntegrityError, RunBlocked
from holdfast.kernel.signals import Signal
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.recovery.test_index_attacks import columns

IDS = ("taken", "untaken")


async def outcome(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except IntegrityError:
        return "error"


def reads(hf: holdfast.Holdfast) -> dict[str, Callable[[], Awaitable[Any]]]:
    found: dict[str, Callable[[], Awaitable[Any]]] = {
        "of run": lambda: hf.signals.of_run("r"),
        "untaken": lambda: hf.signals.untaken("r", "go"),
        "of another name": lambda: hf.signals.untaken("r", "forged"),
    }
    for signal_id in IDS:
        found[f"get {signal_id}"] = lambda id=signal_id: hf.signals.get("r", id)
        found[f"value {signal_id}"] = lambda id=signal_id: hf.signals.value("r", id)
        found[f"again {signal_id}"] = lambda id=signal_id: hf.signal("r", "go", 1, id=id)
    return found


@async_test
async def test_no_column_of_a_signal_is_believed(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        for signal_id in IDS:
            await hf.signal("r", "go", signal_id, id=signal_id)
        await run.inbox.answer("taken", "done")
        asked = reads(hf)
        truth = {name: await outcome(ask) for name, ask in asked.items()}
        assert "error" not in truth.values()
        end, tried = await hf.journal.head("r"), 0
        with backend.raw() as raw:
            raw.execute("CREATE TEMP TABLE saved AS SELECT * FROM signals")
            for change in [*changes_of(columns(raw, backend)), ""]:
                for signal_id in IDS:
                    what = f"UPDATE signals SET {change}" if change else "DELETE FROM signals"
                    raw.execute(f"{what} WHERE signal_id = ?", signal_id)
                    changed = raw.rows("SELECT * FROM signals ORDER BY signal_id")
                    if changed == raw.rows("SELECT * FROM saved ORDER BY signal_id"):
                        continue
                    for name, ask in asked.items():
                        # A search may be made to hide a row.
                        is_search = change in ("", "signal_id = 'forged'") and "get" not in name
                        is_search = is_search or name in ("untaken", "of another name")
                        found = await outcome(ask)
                        assert found in (truth[name], "error") or (
                            is_search and not mixed(found)
                        ), (
                            change,
                            name,
                            found,
                        )
                    assert await hf.journal.head("r") == end, change
                    tried += 1
                    raw.execute("DELETE FROM signals")
                    raw.execute("INSERT INTO signals SELECT * FROM saved")
        assert tried > 12


def changes_of(found: list[tuple[str, str, bool]]) -> list[str]:
    wanted = [(name, is_number) for table, name, is_number in found if table == "signals"]
    changes = [
        f"{name} = {name} + 7" if is_number else f"{name} = 'forged'"
        for name, is_number in wanted
        if name not in ("tenant", "run_id")
    ]
    return [*changes, "taken_seq = 0, taken_at = 0", "taken_seq = seq"]


def mixed(found: Any) -> bool:
    """Whether something forged was given back."""
    rows = cast("list[Signal]", found) if isinstance(found, list) else []
    return any("forged" in (row.name, row.signal_id, row.received_by) for row in rows)


@async_test
async def test_message_whose_row_says_untaken_is_not_answered_twice(backend: Backend) -> None:
    answered: list[str] = []

    @holdfast.agent
    async def echo(run: holdfast.Run, text: str) -> str:
        answered.append(text)
        return text

    async with holdfast.Holdfast(backend.url, agents=[echo]) as hf:
        chat = hf.session(echo, "chat")
        assert await chat.send("one", id="m1") == "one"
        with backend.raw() as raw:
            assert raw.execute("UPDATE signals SET taken_seq = 0, taken_at = 0") == 1
        with pytest.raises(RunBlocked, match="store reindex chat"):
            await chat.send("two", id="m2", timeout=30)
        assert answered == ["one"]
        await hf.reindex("chat")
        await hf.runs.unblock("chat")
        assert await chat.send("two", id="m2") == "two"
        assert answered == ["one", "two"]
