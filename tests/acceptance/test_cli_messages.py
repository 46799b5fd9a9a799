"""`holdfast messages`: what runs owe their peers, seen and sent again from the command line."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.messages.queues import Queues
from holdfast.kernel.messages import OUTGOING
from holdfast.settings import Settings
from holdfast.terminal.exits import Exit
from holdfast.testing.clocks import ManualClock
from tests.acceptance.test_cli import ask, keys_of, run
from tests.agents.crashing import advance, start


@holdfast.agent
async def caller(run: holdfast.Run) -> str:
    return await run.peer("research", "gold")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a request that waits for its transport."""
    path = tmp_path / "store.db"

    async def make() -> None:
        settings = Settings(transport=f"sqlite:///{tmp_path}/between.db")
        async with holdfast.Holdfast(str(path), agents=[caller], settings=settings) as hf:
            await start(hf, caller)
            await advance(hf, "r")

    asyncio.run(make())
    return path


def bury(path: Path) -> None:
    async def work() -> None:
        async with holdfast.open(str(path)) as hf:
            queues = Queues(hf._context)  # pyright: ignore[reportPrivateUsage] - what a relay does
            (message,) = await queues.take(OUTGOING, lease=60)
            await queues.dead(message, "nobody takes it")

    asyncio.run(work())


def test_message_is_listed_and_a_dead_one_is_sent_again(store: Path) -> None:
    found: list[dict[str, Any]] = ask("messages", "list", store=store)
    (message,) = found
    assert set(message) == keys_of("messages", "A message in JSON") - {
        *("request", "join", "cancel", "reply", "asks", "answer", "alive"),
        *("taken", "working", "progress"),
    }
    assert (message["kind"], message["run_id"], message["status"]) == ("request", "r", "ready")
    assert message["address"] == "queue:agents.research"
    assert message["message_id"] == f"{message['subject']}/request"
    assert ask("messages", "list", "--dead", store=store) == []
    bury(store)
    assert ask("messages", "list", store=store) == []
    (dead,) = ask("messages", "list", "--dead", store=store)
    assert dead["note"] == "nobody takes it"
    assert "nobody takes it" in run("messages", "list", "--dead", store=store).stdout
    again = ask("messages", "requeue", dead["message_id"], store=store)
    assert again == {"message_id": dead["message_id"], "status": "ready"}
    assert len(ask("messages", "list", store=store)) == 1


def test_message_that_is_not_dead_is_said(store: Path) -> None:
    told = run("messages", "requeue", "nothing", store=store)
    assert told.returncode == Exit.NOT_FOUND
    assert "no dead message has the id 'nothing'" in told.stderr
    assert "holdfast messages list --dead" in told.stderr


def test_run_that_no_worker_serves_is_told_of(store: Path) -> None:
    async def start_long_ago() -> None:
        async with holdfast.Holdfast(str(store), agents=[caller], clock=ManualClock(1)) as hf:
            await hf.start(caller, run_id="idle")

    asyncio.run(start_long_ago())
    for command in (("runs", "list"), ("runs", "show", "idle")):
        done = run(*command, store=store)
        assert "no live worker serves 'caller'; served now: nothing" in done.stderr
        assert done.returncode == Exit.OK
