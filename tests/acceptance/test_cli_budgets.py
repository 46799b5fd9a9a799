"""`holdfast runs budget`, `runs costs` and what `runs start` says about budgets."""

import getpass
from pathlib import Path

import pytest

import holdfast
from holdfast import Budget, Cost, Message, Usage, sync
from holdfast.errors import RunBlocked
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, run


async def model(n: int) -> Message:
    return Message.assistant("ok", usage=Usage(usd=0.25, input_tokens=3, output_tokens=4))


@holdfast.tool(effect="idempotent", cost=Cost(usd=0.05))
async def search(n: int) -> str:
    return "found"


@holdfast.agent(reserve=Cost(usd=0.25))
async def spender(run: holdfast.Run, turns: int) -> int:
    done = run.value("done", int, 0)
    while done.get() < turns:
        await run.model(model, done.get())
        await run.call(search, done.get())
        done.set(done.get() + 1)
        await run.checkpoint()
    return done.get()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run that has spent its budget."""
    path = tmp_path / "store.db"
    with sync.open(str(path), agents=[spender]) as hf, pytest.raises(RunBlocked):
        hf.run(spender, 3, run_id="r", budget=Budget(usd=0.7))
    return path


def test_budget_is_shown_raised_and_then_goes_on(store: Path) -> None:
    shown = ask("runs", "budget", "r", store=store)
    assert shown["status"] == "blocked"
    (budget,) = shown["budgets"]
    usd, tokens, *_ = budget["limits"]
    assert usd == {
        "limit": "usd",
        "allowed": "0.70",
        "spent": "0.60",
        "reserved": "0.00",
        "left": "0.10",
        "warned": True,
    }
    assert (tokens["allowed"], tokens["spent"], tokens["left"]) == (None, 14, None)
    drawn = run("runs", "budget", "r", store=store)
    assert "0.70     0.60" in drawn.stdout
    raised = ask("runs", "budget", "r", "--add", "5usd", "--note", "worth it", store=store)
    assert raised["status"] == "ready"
    assert raised["budgets"][0]["limits"][0]["allowed"] == "5.70"
    with sync.open(str(store), agents=[spender]) as hf:
        (*_, last) = [e for e in hf.journal.read("r") if e.kind == "BUDGET_SET"]
        assert last.actor == getpass.getuser()
        assert hf.run(spender, 3, run_id="r") == 3


def test_set_leaves_limits_that_are_not_named(store: Path) -> None:
    asked = ("runs", "budget", "r", "--set", "9turns", "--set", "2h", "--soft", "0.5")
    (budget,) = ask(*asked, store=store)["budgets"]
    allowed = {limit["limit"]: limit["allowed"] for limit in budget["limits"]}
    assert allowed == {"usd": "0.70", "tokens": None, "turns": 9, "seconds": 7200}
    assert budget["soft"] == 0.5
    (budget,) = ask("runs", "budget", "r", "--set", "1_000tokens", store=store)["budgets"]
    assert budget["soft"] == 0.5, "only what is named changes"


def test_costs_are_told_by_turn_call_agent_and_run(store: Path) -> None:
    costs = ask("runs", "costs", "r", store=store)
    assert costs["total"] == {"usd": "0.60", "input_tokens": 6, "output_tokens": 8, "turns": 2}
    assert costs["lost"]["usd"] == "0.00"
    assert {turn: of["usd"] for turn, of in costs["by_turn"].items()} == {"1": "0.30", "2": "0.30"}
    assert {call: of["usd"] for call, of in costs["by_call"].items()} == {
        "model:model": "0.50",
        "tool:search": "0.10",
    }
    assert list(costs["by_agent"]) == ["spender"]
    assert list(costs["by_run"]) == ["r"]
    (segment,) = costs["segments"]
    assert (segment["number"], segment["agent"], segment["last_version"]) == (1, "spender", 2)
    assert (segment["usd"], segment["model_calls"], segment["effects"]) == ("0.60", 2, 2)
    assert segment["busy_seconds"] <= segment["wall_seconds"]
    assert costs["by_phase"][""]["usd"] == costs["effort"]["usd"] == "0.60"
    assert "segment" in run("runs", "costs", "r", store=store).stdout
    assert "tool   " in run("runs", "costs", "r", store=store).stdout.replace("call", "tool")


def test_started_run_has_a_budget_and_a_parent(store: Path) -> None:
    asked = ("runs", "start", "spender", "3", "--id", "kid", "--budget", "$2", "--parent", "r")
    assert ask(*asked, store=store)["parent_id"] == "r"
    shown = ask("runs", "budget", "kid", store=store)
    assert [budget["run_id"] for budget in shown["budgets"]] == ["kid", "r"]
    lost = run("runs", "start", "spender", "3", "--parent", "nobody", store=store)
    assert lost.returncode == Exit.NOT_FOUND
    assert "nobody" in lost.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--add", "5"), "is not an amount; write money as 5usd"),
        (("--add", "5eur"), "is not an amount"),
        (("--add", "1.5turns"), "whole number of turns"),
        (("--add", "5usd", "--add", "1usd"), "usd is given twice"),
        (("--add", "5usd", "--set", "1usd"), "not both"),
        (("--soft", "0.5"), "--soft needs --set"),
    ],
)
def test_amount_that_cannot_be_read_is_explained(
    store: Path, words: tuple[str, ...], told: str
) -> None:
    done = run("runs", "budget", "r", *words, store=store)
    assert done.returncode == Exit.USAGE
    assert told in done.stderr


def test_run_without_a_budget_says_how_to_get_one(store: Path) -> None:
    with sync.open(str(store)) as hf:
        hf.runs.create("free")
    done = run("runs", "budget", "free", store=store)
    assert "holdfast runs budget free --set 5usd" in done.stderr
    missing = run("runs", "budget", "nobody", store=store)
    assert missing.returncode == Exit.NOT_FOUND
