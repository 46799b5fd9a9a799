"""What people answer from a terminal: lists, words, exit codes, and who was first."""

import asyncio
import getpass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import ToolCall, sync
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, keys_of, run
from tests.agents.crashing import advance, start

ASKED = [field.name for field in msgspec.structs.fields(holdfast.Asked)]


@holdfast.tool(approval=True)
async def charge(cents: int) -> str:
    return "charged"


@holdfast.agent(tools=[charge])
async def asker(run: holdfast.Run) -> list[Any]:
    answers = await run.gather(
        run.ask("A number?", schema=int),
        run.ask("A text?", schema=str),
        run.ask("A choice?", choices=["1", "2"]),
        run.ask("Anything?"),
    )
    (told,) = await run.tools([ToolCall("1", "charge", {"cents": 5})])
    return [*answers, told.results[0].content, await run.signal("go")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    go_on(path, is_first=True)
    return path


def go_on(path: Path, *, is_first: bool = False) -> None:
    async def advance_once() -> None:
        async with holdfast.open(str(path), agents=[asker]) as hf:
            if is_first:
                await start(hf, asker)
            await advance(hf, "r")

    asyncio.run(advance_once())


def by_prompt(path: Path) -> dict[str, str]:
    return {found["prompt"]: found["wait_id"] for found in ask("approvals", "list", store=path)}


def test_questions_are_answered_as_what_they_ask_for(store: Path) -> None:
    listed = run("approvals", "list", store=store)
    assert "A number?" in listed.stdout
    assert "approvals show" in listed.stderr
    (first, *_) = ask("approvals", "list", "--run", "r", store=store)
    told_of = keys_of("approvals", "One in JSON") - {"question", "approval"}
    assert set(first) == set(ASKED) == told_of
    ids = by_prompt(store)
    refused = run("approvals", "answer", ids["A number?"], "many", store=store)
    assert refused.returncode == Exit.USAGE
    assert '"many" is not a whole number' in refused.stderr
    no_choice = run("approvals", "answer", ids["A choice?"], "3", store=store)
    assert '3 is not one of the choices: "1", "2"' in no_choice.stderr
    for prompt, value in {
        "A number?": "7",
        "A text?": "7",
        "A choice?": "1",
        "Anything?": "",
    }.items():
        told = ask("approvals", "answer", ids[prompt], value, store=store)
        assert set(told) == {*ASKED, "run_status"}
        assert told["answered_by"] == getpass.getuser()
    shown = ask("approvals", "show", ids["A text?"], store=store)
    assert (shown["answer"], shown["status"]) == ("7", "resolved")
    late = run("approvals", "answer", ids["A text?"], "8", "--by", "bob", store=store)
    assert late.returncode == Exit.CONFLICT
    assert f"{getpass.getuser()} was first" in late.stderr

    go_on(store)
    (request,) = by_prompt(store).values()
    assert "approvals approve" in run("approvals", "show", request, store=store).stderr
    wrong = run("approvals", "approve", request, "--digest", "00", store=store)
    assert wrong.returncode == Exit.USAGE
    assert run("approvals", "approve", request, "--by", "boss", store=store).returncode == Exit.OK

    go_on(store)
    sent = ask("runs", "signal", "r", "go", '{"n": 1}', "--id", "x", store=store)
    assert (sent["accepted"], sent["run_status"]) == (True, "ready")
    again = run("runs", "signal", "r", "go", '{"n": 2}', "--id", "x", store=store)
    assert "was sent before" in again.stdout
    go_on(store)
    with sync.open(str(store)) as hf:
        assert hf.runs.result("r") == [7, "7", "1", "", "charged", {"n": 1}]
    ended = run("runs", "signal", "r", "go", store=store)
    assert ended.returncode == Exit.CONFLICT


def test_what_is_not_there_is_said(store: Path) -> None:
    assert run("approvals", "show", "nothing", store=store).returncode == Exit.NOT_FOUND
    assert run("approvals", "list", "--run", "nothing", store=store).returncode == Exit.NOT_FOUND
    assert run("runs", "signal", "nothing", "go", store=store).returncode == Exit.NOT_FOUND
    shown = run("runs", "show", "r", store=store)
    assert "holdfast approvals show" in shown.stderr


def test_commands_that_are_to_be_typed_name_the_store_but_no_password(store: Path) -> None:
    shown = run("runs", "show", "r", store=store)
    assert f" --store {store}`" in shown.stderr
    secret = "postgresql://me:hunter2@127.0.0.1:1/x"
    refused = run("runs", "list", "--store", secret)
    assert refused.returncode != Exit.OK
    assert "hunter2" not in refused.stderr + refused.stdout
