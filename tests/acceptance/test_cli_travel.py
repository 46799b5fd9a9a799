"""`holdfast runs fork` and `rewind`, as an operator types them."""

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import EffectRequest, WaitSpec, sync
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, keys_of, run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run that has charged, is mailing, and waits for an answer; and one that has ended."""
    path = tmp_path / "store.db"
    with sync.open(str(path)) as hf:
        held = hf.runs.open("refund-7", agent="support", input={"order": 7})
        held.append("talk", "hello")
        held.set("plan", {"step": "replace"})
        held.checkpoint()
        held.append("talk", "bye")
        held.checkpoint()
        charge = EffectRequest(tool="charge", args={"cents": 1999})
        mail = EffectRequest(tool="mail", args={"to": "ann"})
        began, _ = held.begin_effects([charge, mail])
        held.finish_effect(began, "receipt")
        held.open_waits([WaitSpec(wait_id="ok", kind="person", name="sure?")], suspend=True)
        hf.runs.open("done").complete(1)
    return path


def everything(store: Path) -> Any:
    with sync.open(str(store)) as hf:
        return {run_id: hf.journal.read(run_id) for run_id in hf.journal.run_ids()}


@pytest.mark.parametrize("verb", ["fork", "rewind"])
def test_plan_writes_nothing_and_tells_what_is_not_undone(verb: str, store: Path) -> None:
    before = everything(store)
    version = "--at" if verb == "fork" else "--to"
    plan = ask("runs", verb, "refund-7", version, "1", "--plan", store=store)
    assert set(plan) == keys_of("runs", "With `--plan`:") - {
        "given_back",
        "to_be_resolved",
        "not_there",
        "then",
    }
    told = [(e["tool"], e["args"], e["status"], e["then"]) for e in plan["effects"]]
    assert told == [
        ("charge", {"cents": 1999}, "completed", "given_back"),
        ("mail", {"to": "ann"}, "issued", "to_be_resolved"),
    ]
    assert (plan["version"], plan["newest_version"]) == (1, 2)
    assert plan["outside"] == [effect["effect_id"] for effect in plan["effects"]]
    assert [wait["wait_id"] for wait in plan["open_waits"]] == ["ok"] * (verb == "rewind")
    drawn = run("runs", verb, "refund-7", version, "1", "--plan", store=store).stdout
    assert "not undone: 2 effects" in drawn
    assert '{"cents": 1999}' in drawn
    assert "given back, not sent again" in drawn
    assert ("a rewind closes these waits" in drawn) == (verb == "rewind")
    ids = run("runs", verb, "refund-7", version, "1", "--plan", "-o", "ids", store=store).stdout
    assert ids.split() == plan["outside"]
    assert everything(store) == before


def test_fork_with_an_edited_plan_has_its_author_on_record(store: Path, tmp_path: Path) -> None:
    before = everything(store)["refund-7"]
    (tmp_path / "plan.json").write_text('{"step": "refund"}')
    edits = ("--set", f"plan=@{tmp_path / 'plan.json'}", "--set", 'talk=["hi"]', "--set", "who=Ann")
    words = ("runs", "fork", "refund-7", "--at", "1", "--id", "f", "--note", "why", *edits)
    done = run(*words, "-o", "json", store=store)
    record = json.loads(done.stdout)
    assert (record["run_id"], record["forked_from"], record["forked_version"]) == (
        "f",
        "refund-7",
        1,
    )
    assert "not undone: 2 effects after version 1 of refund-7" in done.stderr
    assert f"holdfast effects resolve {record['outside'][1]}" in done.stderr
    diff = ask("checkpoints", "diff", "f", "1", "2", store=store)
    assert diff["changed"] == {"plan": {"before": {"step": "replace"}, "after": {"step": "refund"}}}
    assert diff["logs"] == {"talk": {"kept": 0, "removed": ["hello"], "added": ["hi"]}}
    assert diff["added"] == {"who": "Ann"}
    entries = ask("journal", "show", "f", store=store)
    assert {entry["actor"] for entry in entries} == {getpass.getuser()}
    assert entries[0]["facts"]["note"] == "why"
    assert everything(store)["refund-7"] == before
    labels = [c["label"] for c in ask("checkpoints", "list", "f", store=store)]
    assert labels == ["edited", "forked"]
    again = run(*words, store=store)
    assert (again.returncode, "already" in again.stderr) == (Exit.CONFLICT, True)


def test_rewind_makes_the_run_ready_and_closes_its_waits(store: Path) -> None:
    done = run("runs", "rewind", "refund-7", "--to", "1", "--by", "ops", store=store)
    assert done.returncode == 0
    assert done.stdout == "run refund-7 goes on from version 1, as its version 3: ready\n"
    assert "1 open wait" in done.stderr
    shown = ask("runs", "show", "refund-7", store=store)
    assert (shown["status"], shown["version"], shown["open_waits"]) == ("ready", 3, [])
    state = ask("checkpoints", "show", "refund-7", store=store)["state"]
    assert (state["plan"], state["talk"]) == ({"step": "replace"}, ["hello"])
    assert ask("audit", "verify", "refund-7", store=store)
    # Without a version the present turn begins anew.
    anew = ask("runs", "rewind", "refund-7", store=store)
    assert (anew["rewound_to"], anew["version"]) == (3, 4)


def test_effect_is_sent_again_only_if_it_is_named_and_known(store: Path) -> None:
    charge, mail = ask("runs", "fork", "refund-7", "--at", "1", "--plan", store=store)["outside"]
    words = ("runs", "fork", "refund-7", "--at", "1")
    plan = ask(*words, "--plan", "--resend", charge, store=store)
    assert [effect["then"] for effect in plan["effects"]] == ["sent_again", "to_be_resolved"]
    made = ask(*words, "--id", "f", "--resend", charge, store=store)
    assert made["sent_again"] == [charge]
    past = ask("checkpoints", "show", "f", store=store)["state"]["holdfast.past"]
    assert [item.get("item_id", "") for item in past] == ["", mail]
    refused = run(*words, "--resend", mail, store=store)
    assert (refused.returncode, "effects resolve" in refused.stderr) == (Exit.CONFLICT, True)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("rewind", "done", "--to", "0"), Exit.CONFLICT, "holdfast runs fork done --at"),
        (("rewind", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("fork", "refund-7", "--at", "9"), Exit.NOT_FOUND, "no version 9"),
        (("fork", "refund-7", "--set", "plan"), Exit.USAGE, "PART=VALUE"),
        (("fork", "refund-7", "--set", "a=1", "--set", "a=2"), Exit.USAGE, "twice"),
        (("fork", "refund-7", "--set", "holdfast.past=[]"), Exit.USAGE, "kept by Holdfast"),
        (("fork", "refund-7", "--set", "talk=x"), Exit.USAGE, "is a log"),
        (("fork", "refund-7", "--plan", "--resend", "x"), Exit.USAGE, "not among"),
        (("fork", "refund-7", "--resend", "x"), Exit.NOT_FOUND, "x is not among"),
    ],
)
def test_travel_that_cannot_be_says_why_and_changes_nothing(
    words: tuple[str, ...], code: Exit, told: str, store: Path
) -> None:
    before = everything(store)
    done = run("runs", *words, store=store)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert everything(store) == before
