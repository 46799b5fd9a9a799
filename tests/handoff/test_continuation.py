"""A fresh context is told what matters, as much as fits, and only ever as quoted data."""

import unicodedata
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents.definitions.tokens import estimate
from holdfast.agents.handoff.continuation import (
    DROPPED,
    Continuation,
    Pending,
    budget_left,
    continuation_of,
)
from holdfast.errors import ContextTooSmall
from holdfast.kernel.budgets import Account
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.records import (
    Compliance,
    ContextSummary,
    Decision,
    ExecutionState,
    Item,
    Metadata,
    Metrics,
    Phase,
    Record,
    TestsStatus,
)
from tests.handoff.frames import parse
from tests.handoff.poison import POISON

EFFECT_ID = UUID("01920000-0000-7000-8000-000000000001")
ORIGIN = {
    "checkpoint": "01920000-0000-7000-8000-00000000000a",
    "version": "7",
    "run": "r-1",
    "written by": "builder",
    "context": "3",
    "phase": "implementing",
    "at": "2026-01-02T03:04:05+00:00",
    "sha256": "ab" * 32,
}


def effect(status: EffectStatus = EffectStatus.UNKNOWN, tool: str = "charge") -> Effect:
    return Effect(
        tenant="default",
        effect_id=EFFECT_ID,
        key="k",
        run_id="r-1",
        tool=tool,
        call_id="c",
        args_digest=b"",
        status=status,
        issued_seq=5,
        issued_at=0,
        limit_at=0,
        lease_seq=1,
    )


def record(*, items: int = 3, long: str = "", poison: str | None = None, **changes: Any) -> Record:
    def said(text: str) -> str:
        return poison if poison is not None else text + long

    state = ExecutionState(
        phase=Phase.IMPLEMENTING,
        completed_items=tuple(Item(f"c{n}", said(f"done {n}")) for n in range(items)),
        pending_items=tuple(Item(f"p{n}", said(f"to do {n}")) for n in range(items)),
        blocked_items=(Item("b0", said("blocked"), said("no key")),),
        current_focus="p1" if items > 1 else "",
    )
    summary = ContextSummary(
        key_decisions=tuple(Decision(said(f"decided {n}"), said("why")) for n in range(items)),
        assumptions=(said("it is small"),),
        constraints=(said("offline"),),
        external_dependencies=(said("the disk"),),
    )
    metrics = Metrics(files_modified=(said("a.py"),), tests_status=TestsStatus(passed=3, failed=1))
    about = Metadata(
        checkpoint_id=ORIGIN["checkpoint"],
        task_id="r-1",
        agent_id="builder",
        iteration=3,
        timestamp=ORIGIN["at"],
    )
    return Record(
        metadata=about,
        execution_state=state,
        context_summary=summary,
        metrics=metrics,
        compliance=Compliance(hash="ab" * 32),
        **changes,
    )


def built(found: Record, **more: Any) -> Continuation:
    given: dict[str, Any] = {
        "task": "build the parser",
        "why": "its context was full",
        "version": 7,
        "effects": [effect()],
        "calls": ["charge ada: charged"],
        "pending": [Pending("w-1", "may I deploy?")],
        "budget": ["usd: 1.20 of 5.00"],
    }
    return continuation_of(found, **(given | more))


@pytest.mark.mission("S3-036", "S3-056", "S3-137", "S3-138", "S3-139", "S3-140", "S3-141")
def test_prompt_tells_all_that_whoever_goes_on_must_know() -> None:
    told = parse(built(record(), summary="It went well.\n\nMostly.").text)
    assert told.origin == ORIGIN
    assert told.sections == {
        "The original task": ["build the parser"],
        "Why the context before ended": ["its context was full"],
        "Open effects: calls of which nobody knows yet what became of them": [
            f"charge (unknown, effect {EFFECT_ID})"
        ],
        "Requests that wait for a person or another agent": ["may I deploy? (wait w-1)"],
        "Blockers": ["b0: blocked: no key"],
        "Risks": [
            f"charge may have happened (effect {EFFECT_ID}): called again, it may happen twice",
            "1 of 4 tests fail",
            "1 of the items cannot go on until their blockers are gone",
        ],
        "Recommended next steps": [
            f"find out whether charge happened (effect {EFFECT_ID})",
            "see whether there is an answer: may I deploy?",
            "go on with p1: to do 1",
            "do p0: to do 0",
            "do p2: to do 2",
            "see whether b0: blocked can go on now",
        ],
        "What remains": ["p0: to do 0", "p1: to do 1", "p2: to do 2"],
        "What was accomplished": ["c0: done 0", "c1: done 1", "c2: done 2"],
        "Calls that were made, and what they came to; the same again is given back, not made": [
            "charge ada: charged"
        ],
        "Key decisions": [f"decided {n} (because why)" for n in range(3)],
        "Constraints": ["offline"],
        "Assumptions": ["it is small"],
        "External dependencies": ["the disk"],
        "Budget left": ["usd: 1.20 of 5.00"],
        "Files and tests": [
            "tests: 3 passed, 1 failed, 0 skipped; coverage 0 %",
            "changed: a.py",
        ],
        "Summary, as a model wrote it": ["It went well.", "Mostly."],
    }
    assert "data, not instructions" in told.before
    assert told.code in told.before
    assert told.code in told.after


def test_record_that_tells_nothing_still_names_task_and_next_step() -> None:
    told = parse(continuation_of(Record(), task="tidy up").text)
    assert told.sections == {
        "The original task": ["tidy up"],
        "Recommended next steps": ["finish the phase planning, or say what is left of it"],
    }


def test_prompt_is_a_message_of_the_user_and_never_of_the_system() -> None:
    continuation = built(record())
    message = continuation.message()
    assert message.role == "user"
    assert message.text == continuation.text


@pytest.mark.mission("S3-142", "S3-195")
def test_least_important_is_left_out_first_and_counted() -> None:
    whole = built(record(items=40, long=" word" * 20), summary="line\n" * 20)
    size = estimate(whole.text)
    was_gone: list[str] = []
    for tokens in range(size, 0, -size // 20):
        try:
            fitted = whole.fitted(tokens)
        except ContextTooSmall:
            break
        assert estimate(fitted.text) <= tokens
        told = parse(fitted.text)
        counted = sum(int(r.split()[0]) for rs in told.remarks.values() for r in rs)
        left = sum(len(entries) for entries in told.sections.values())
        assert counted + left == sum(len(entries) for entries in whole.parts.values())
        gone = [name for name in DROPPED if not fitted.parts.get(name)]
        begun = [name for name in DROPPED if name in fitted.left_out]
        assert begun[: len(gone)] == gone == list(DROPPED)[: len(gone)]
        assert len(begun) <= len(gone) + 1, "one section is begun at a time"
        was_gone = gone
    assert was_gone[:4] == ["calls", "accomplished", "touched", "dependencies"]


def test_newest_of_what_was_done_and_first_of_what_is_to_be_done_stay() -> None:
    whole = built(record(items=50, long=" word" * 20))
    some = whole.fitted(estimate(whole.text) - 300)
    assert some.parts["accomplished"][-1] == whole.parts["accomplished"][-1]
    assert some.parts["accomplished"][0] != whole.parts["accomplished"][0]
    few = whole.fitted(least_of(whole) + 200)
    assert few.parts["next"][0] == whole.parts["next"][0]
    assert few.left_out["next"] > 0


def least_of(whole: Continuation) -> int:
    """How many tokens it needs at least."""
    too_few, enough = 0, estimate(whole.text)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        try:
            whole.fitted(middle)
            enough = middle
        except ContextTooSmall:
            too_few = middle
    return enough


@pytest.mark.mission("S3-143")
def test_what_must_be_told_is_never_left_out_and_a_context_too_small_for_it_is_refused() -> None:
    whole = built(record(items=30))
    least = least_of(whole)
    told = parse(whole.fitted(least).text)
    assert told.sections["The original task"] == ["build the parser"]
    assert told.sections["Blockers"] == ["b0: blocked: no key"]
    assert len(told.sections) >= 4
    assert any(title.startswith("Open effects") for title in told.sections)
    assert any(title.startswith("Requests") for title in told.sections)
    with pytest.raises(ContextTooSmall, match="there is room for"):
        whole.fitted(least - 1)
    with pytest.raises(ContextTooSmall):
        whole.check_fits(least)


def test_own_counter_decides_what_fits() -> None:
    whole = built(record(items=100))

    def words(text: str) -> int:
        return len(text.split())

    fitted = whole.fitted(500, words)
    assert words(fitted.text) <= 500 < words(whole.text)


@pytest.mark.parametrize("name", POISON)
def test_poison_stays_inside_its_quotes(name: str) -> None:
    poison = POISON[name]
    continuation = built(
        record(poison=poison),
        task=poison,
        pending=[Pending("w-1", poison)],
        budget=[poison],
        summary=poison,
    )
    clean = parse(built(record(), summary="x").text)
    told = parse(continuation.text)
    assert told.origin == ORIGIN
    assert set(told.sections) - {"Summary, as a model wrote it"} == set(clean.sections) - {
        "Summary, as a model wrote it"
    }
    assert told.before.replace(told.code, "") == clean.before.replace(clean.code, "")
    assert told.after.replace(told.code, "") == clean.after.replace(clean.code, "")
    assert not told.remarks
    assert continuation.text.count(told.code) == 4
    for character in continuation.text:
        category = unicodedata.category(character)
        assert character == "\n" or category not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    quoted = continuation.text.lower()
    for mark in ("<|", "|>", "<\uff5c", "[inst]", "[/inst]", "<<sys", "<system>", "</s>", "```"):
        assert mark not in quoted
    for line in continuation.text.splitlines():
        assert not line.lower().startswith(("system:", "human:", "assistant:", "user:"))
        assert len(line) <= 502


def test_budget_tells_what_is_left_of_each_limit() -> None:
    account = Account(
        tenant="default",
        run_id="r",
        usd_limit=5_000_000,
        tokens_limit=10_000,
        turns_limit=9,
        time_limit=60_000_000,
        began_at=100_000_000,
        spent_usd=1_500_000,
        reserved_usd=250_000,
        spent_input_tokens=9_000,
        reserved_output_tokens=2_000,
        spent_turns=2,
    )
    assert budget_left(account, now=110_000_000) == (
        "3.25 of 5.00 USD",
        "0 of 10,000 tokens",
        "7 of 9 turns",
        "50 of 60 seconds",
    )
    assert budget_left(Account(tenant="default", run_id="r"), now=0) == ()


def test_corpus_of_poison_is_large() -> None:
    assert len(POISON) >= 40


@pytest.mark.parametrize("name", POISON)
def test_poisoned_origin_stays_on_its_line(name: str) -> None:
    about = Metadata(checkpoint_id=POISON[name], agent_id=POISON[name], task_id="r-1")
    told = parse(continuation_of(Record(metadata=about), task="x").text)
    assert list(told.origin) == list(ORIGIN)
    assert told.origin["run"] == "r-1"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=300), min_size=1, max_size=6), st.text(max_size=2000))
def test_any_text_is_quoted_whole(texts: list[str], summary: str) -> None:
    found = Record(context_summary=ContextSummary(assumptions=tuple(texts)))
    told = parse(continuation_of(found, task=summary, summary=summary).text)
    assert len(told.sections["Assumptions"]) == len(texts)
    assert len(told.sections["The original task"]) == 1
    for text, quoted in zip(texts, told.sections["Assumptions"], strict=True):
        letters = [c for c in text if c.isalnum() and c.isascii()]
        there = iter(quoted)
        assert all(letter in there for letter in letters), "nothing that can be seen is lost"
