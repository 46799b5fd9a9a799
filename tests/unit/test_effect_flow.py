"""The protocol of a call with consequences: each transition, without a tool or a store."""

from typing import Any
from uuid import UUID

import pytest

from holdfast.agents.definitions.tool_policy import ToolPolicy
from holdfast.agents.definitions.tools import Happened
from holdfast.agents.effects.doubt import CannotTell
from holdfast.agents.effects.effect_flow import (
    AskPerson,
    AskVerify,
    AskVerifyLater,
    BeginEffect,
    CallTool,
    EffectFlow,
    EffectStep,
    EffectSteps,
    Interrupted,
    Postpone,
    Raised,
    ReplayOutcome,
    ReportUnknown,
    Returned,
    Settle,
    TooLate,
    VerifyAnswer,
    WaitForTwin,
)
from holdfast.engine.effects import Begun
from holdfast.errors import NotDone
from holdfast.kernel.effects import Effect, EffectStatus

REPLY = "what the caller gets"
MUTATE = ToolPolicy()
FAIL = ToolPolicy(in_doubt="fail")
RETRY = ToolPolicy(in_doubt="retry", retries=2)
IDEMPOTENT = ToolPolicy(effect="idempotent")
BROKEN = ValueError("boom")
RAISED = Raised(BROKEN, "pay raised ValueError: boom")
CANCELLED = KeyboardInterrupt()
DOWN = CannotTell("the vendor is down")


def begun_as(answer: Any, status: EffectStatus = EffectStatus.ISSUED) -> Begun:
    effect = Effect(
        tenant="",
        effect_id=UUID(int=1),
        key="k",
        run_id="r",
        tool="pay",
        call_id="c",
        args_digest=b"",
        status=status,
        issued_seq=1,
        issued_at=0,
        limit_at=60,
        lease_seq=1,
    )
    return Begun(answer, effect)


FRESH = begun_as("fresh")
IN_FLIGHT = begun_as("in_flight")
UNKNOWN = begun_as("unknown", EffectStatus.UNKNOWN)
DONE = begun_as("done", EffectStatus.COMPLETED)


def not_done(begun: Begun, note: str) -> Settle:
    """The step that frees a key to begin the same operation again."""
    return Settle(begun, EffectStatus.NOT_DONE, note=note, retry=True)


def drive(steps: EffectSteps, *expected: tuple[EffectStep, Any]) -> Any:
    """Check each step, and send its answer; the reply, or None if the flow has not ended."""
    answer: Any = None
    try:
        for step, next_answer in expected:
            assert steps.send(answer) == step
            answer = next_answer
        steps.send(answer)
    except StopIteration as end:
        return end.value
    return None


def in_doubt(policy: ToolPolicy, **options: Any) -> EffectSteps:
    """A flow whose tool has just raised."""
    steps = EffectFlow(policy, **options).steps(FRESH)
    assert next(steps) == CallTool(FRESH)
    return steps


def test_fresh_call_is_made_and_completed() -> None:
    completed = Settle(FRESH, EffectStatus.COMPLETED, "paid")
    steps = EffectFlow(MUTATE).steps(FRESH)
    assert drive(steps, (CallTool(FRESH), Returned("paid")), (completed, REPLY)) == REPLY
    assert next(steps, "ended") == "ended"


def test_call_of_which_nothing_is_known_is_begun_before_it_is_made() -> None:
    completed = Settle(FRESH, EffectStatus.COMPLETED, 1)
    expected = (BeginEffect(), FRESH), (CallTool(FRESH), Returned(1)), (completed, REPLY)
    assert drive(EffectFlow(MUTATE).steps(), *expected) == REPLY


def test_completed_call_is_looked_at_again_if_the_driver_has_no_reply() -> None:
    completed = Settle(FRESH, EffectStatus.COMPLETED, 1)
    expected = (CallTool(FRESH), Returned(1)), (completed, None), (BeginEffect(), DONE)
    assert drive(EffectFlow(MUTATE).steps(FRESH), *expected, (ReplayOutcome(DONE), REPLY)) == REPLY


@pytest.mark.parametrize("is_recorded", [False, True])
def test_recorded_outcome_is_replayed_and_the_tool_is_not_called(is_recorded: bool) -> None:
    steps = EffectFlow(MUTATE, reuses_intent=True).steps(DONE, is_recorded=is_recorded)
    assert drive(steps, (ReplayOutcome(DONE), REPLY)) == REPLY


def test_twin_is_waited_for_and_its_outcome_replayed() -> None:
    expected = (WaitForTwin(IN_FLIGHT), DONE), (ReplayOutcome(DONE), REPLY)
    assert drive(EffectFlow(MUTATE).steps(IN_FLIGHT), *expected) == REPLY


def test_key_that_a_twin_freed_is_taken_anew() -> None:
    steps = EffectFlow(MUTATE).steps(IN_FLIGHT)
    assert next(steps) == WaitForTwin(IN_FLIGHT)
    assert steps.send(None) == BeginEffect()
    assert steps.send(FRESH) == CallTool(FRESH)


@pytest.mark.parametrize("begun", [IN_FLIGHT, UNKNOWN])
def test_open_call_that_nobody_makes_is_verified(begun: Begun) -> None:
    steps = EffectFlow(MUTATE).steps(begun)
    assert next(steps) == WaitForTwin(begun)
    assert steps.send(begun) == AskVerify(begun)


@pytest.mark.parametrize("begun", [IN_FLIGHT, UNKNOWN])
def test_call_of_this_turn_is_verified_without_waiting_for_a_twin(begun: Begun) -> None:
    steps = EffectFlow(MUTATE).steps(begun, error="boom", is_recorded=True)
    assert next(steps) == AskVerify(begun, "boom")


@pytest.mark.parametrize("begun", [IN_FLIGHT, UNKNOWN])
def test_idempotent_call_of_this_turn_is_made_under_its_own_intent(begun: Begun) -> None:
    steps = EffectFlow(IDEMPOTENT).steps(begun, is_recorded=True)
    assert next(steps) == CallTool(begun)


def test_idempotent_call_is_made_under_an_open_intent_where_the_driver_says_so() -> None:
    steps = EffectFlow(IDEMPOTENT, reuses_intent=True).steps(UNKNOWN)
    assert next(steps) == WaitForTwin(UNKNOWN)
    assert steps.send(UNKNOWN) == CallTool(UNKNOWN)


def test_idempotent_call_is_else_begun_anew() -> None:
    steps = EffectFlow(IDEMPOTENT).steps(UNKNOWN)
    assert next(steps) == WaitForTwin(UNKNOWN)
    assert steps.send(UNKNOWN) == not_done(UNKNOWN, "it is safe to repeat")
    assert steps.send(REPLY) == BeginEffect()
    assert steps.send(FRESH) == CallTool(FRESH)


def test_doubt_that_was_reported_in_this_turn_is_reported_again_without_asking() -> None:
    steps = EffectFlow(FAIL).steps(UNKNOWN, error="boom", is_recorded=True)
    assert drive(steps, (ReportUnknown(UNKNOWN, "boom"), REPLY)) == REPLY
    assert next(EffectFlow(FAIL).steps(IN_FLIGHT, is_recorded=True)) == AskVerify(IN_FLIGHT)


def test_call_that_comes_too_late_is_begun_anew() -> None:
    steps = EffectFlow(MUTATE).steps(FRESH)
    expected = (CallTool(FRESH), TooLate("late")), (not_done(FRESH, "late"), REPLY)
    drive(steps, *expected)
    again = begun_as("fresh")
    assert steps.send(again) == CallTool(again)


def test_call_that_is_always_too_late_is_postponed() -> None:
    expected = (CallTool(FRESH), TooLate("late", 99)), (not_done(FRESH, "late"), REPLY)
    steps = EffectFlow(MUTATE).steps(FRESH)
    assert drive(steps, *expected, (Postpone(FRESH, "late", 99), None)) is None


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        (MUTATE, Raised(NotDone("no"), "no")),
        (ToolPolicy(not_done_on=(ValueError,)), RAISED),
        (ToolPolicy(not_done_on=(KeyboardInterrupt,)), Raised(CANCELLED, "stopped")),
        (MUTATE, Raised(BROKEN, "refused", is_not_done=True)),
        (MUTATE, Raised(None, "refused", is_not_done=True)),
        (IDEMPOTENT, RAISED),
    ],
)
def test_error_that_shows_that_nothing_happened_ends_the_call(
    policy: ToolPolicy, seen: Raised
) -> None:
    settled = Settle(FRESH, EffectStatus.NOT_DONE, seen.text, error=seen.error)
    expected = (CallTool(FRESH), seen), (settled, REPLY)
    assert drive(EffectFlow(policy).steps(FRESH), *expected) == REPLY


def test_error_of_a_tool_with_consequences_is_verified_before_anything_is_recorded() -> None:
    assert in_doubt(MUTATE).send(RAISED) == AskVerify(FRESH, RAISED.text, BROKEN)


def test_doubt_is_recorded_before_verify_where_the_driver_says_so() -> None:
    steps = in_doubt(MUTATE, records_doubt_first=True)
    assert steps.send(RAISED) == Settle(FRESH, EffectStatus.UNKNOWN, error=BROKEN)
    assert steps.send(True) == AskVerify(FRESH, RAISED.text, BROKEN)
    assert steps.send(VerifyAnswer(None)) == AskPerson(FRESH, RAISED.text, "")


def test_call_that_another_settled_while_it_raised_is_looked_at_again() -> None:
    steps = in_doubt(MUTATE, records_doubt_first=True)
    steps.send(RAISED)
    assert steps.send(None) == BeginEffect()


ENDED = Raised(BROKEN, "boom")
REFUSED = Raised(NotDone("no"), "no")


@pytest.mark.parametrize(
    ("policy", "ended", "status", "result", "note"),
    [
        (MUTATE, Returned("paid"), EffectStatus.COMPLETED, "paid", ""),
        (MUTATE, REFUSED, EffectStatus.NOT_DONE, "no", "it raised"),
        (MUTATE, ENDED, EffectStatus.UNKNOWN, "boom", "it raised"),
        (MUTATE, None, EffectStatus.UNKNOWN, None, "the call was cancelled"),
        (IDEMPOTENT, None, EffectStatus.NOT_DONE, None, "the call was cancelled"),
        (
            ToolPolicy(not_done_on=(KeyboardInterrupt,)),
            None,
            EffectStatus.NOT_DONE,
            None,
            "the call was cancelled",
        ),
    ],
)
def test_interrupted_call_is_settled_by_what_was_seen_and_the_interruption_continues(
    policy: ToolPolicy,
    ended: Returned | Raised | None,
    status: EffectStatus,
    result: Any,
    note: str,
) -> None:
    steps = in_doubt(policy)
    error = REFUSED.error if ended is REFUSED else None
    assert steps.send(Interrupted(CANCELLED, ended)) == Settle(
        FRESH, status, result, note, error=error, is_interrupted=True
    )
    with pytest.raises(KeyboardInterrupt):
        steps.send(REPLY)


def test_nothing_is_recorded_of_an_idempotent_call_that_raised_while_it_was_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        in_doubt(IDEMPOTENT).send(Interrupted(CANCELLED, ENDED))


def test_interrupted_idempotent_call_is_unknown_where_the_driver_says_so() -> None:
    settled = in_doubt(IDEMPOTENT, doubts_interrupted=True).send(Interrupted(CANCELLED))
    assert isinstance(settled, Settle)
    assert settled.status is EffectStatus.UNKNOWN


def test_verdict_that_it_happened_completes_the_call() -> None:
    steps = in_doubt(MUTATE)
    steps.send(RAISED)
    settled = steps.send(VerifyAnswer(Happened("paid"), is_over=False))
    assert settled == Settle(FRESH, EffectStatus.COMPLETED, "paid", "verified")
    assert drive_on(steps, REPLY) == REPLY


def test_verdict_that_it_did_not_happen_reports_the_error_that_was_seen() -> None:
    steps = in_doubt(MUTATE)
    steps.send(RAISED)
    settled = Settle(FRESH, EffectStatus.NOT_DONE, RAISED.text, "verified")
    assert steps.send(VerifyAnswer(NotDone())) == settled
    assert drive_on(steps, REPLY) == REPLY


def test_verdict_that_an_interrupted_call_did_not_happen_makes_it_again() -> None:
    steps = EffectFlow(MUTATE).steps(UNKNOWN, is_recorded=True)
    next(steps)
    assert steps.send(VerifyAnswer(NotDone())) == not_done(UNKNOWN, "verified")
    assert steps.send(REPLY) == BeginEffect()
    assert steps.send(FRESH) == CallTool(FRESH)


def test_call_that_may_be_running_is_postponed_and_then_begun_again() -> None:
    steps = EffectFlow(MUTATE).steps(IN_FLIGHT, is_recorded=True)
    next(steps)
    postponed = steps.send(VerifyAnswer(NotDone(), is_over=False))
    assert isinstance(postponed, Postpone)
    assert (postponed.begun, postponed.until) == (IN_FLIGHT, None)
    assert "may still be running" in postponed.note
    assert steps.send(None) == BeginEffect()


def test_policy_to_retry_makes_the_call_again_as_often_as_it_says() -> None:
    steps = in_doubt(RETRY)
    steps.send(RAISED)
    retried = steps.send(VerifyAnswer(None, attempts=2))
    assert retried == not_done(FRESH, "the tool's policy is to retry")
    steps = in_doubt(RETRY)
    steps.send(RAISED)
    unknown = steps.send(VerifyAnswer(None, attempts=3))
    assert unknown == Settle(FRESH, EffectStatus.UNKNOWN, RAISED.text, "it raised")


def test_policy_to_fail_records_the_doubt_and_reports_it() -> None:
    steps = in_doubt(FAIL)
    steps.send(RAISED)
    unknown = Settle(FRESH, EffectStatus.UNKNOWN, RAISED.text, "it raised")
    assert steps.send(VerifyAnswer(DOWN)) == unknown
    assert steps.send(REPLY) == ReportUnknown(FRESH, RAISED.text, DOWN.reason)
    assert drive_on(steps, REPLY) == REPLY


@pytest.mark.parametrize(
    ("begun", "recorded"),
    [
        (IN_FLIGHT, [Settle(IN_FLIGHT, EffectStatus.UNKNOWN, None, "its worker was lost")]),
        (UNKNOWN, []),
    ],
)
def test_person_is_asked_once_the_doubt_is_recorded(begun: Begun, recorded: list[Settle]) -> None:
    steps = EffectFlow(MUTATE).steps(begun, is_recorded=True)
    expected = [(AskVerify(begun), VerifyAnswer(None)), *((step, REPLY) for step in recorded)]
    expected += [(AskPerson(begun, None, ""), None), (ReportUnknown(begun, None), REPLY)]
    assert drive(steps, *expected) == REPLY


def test_word_of_a_person_that_it_happened_is_recorded() -> None:
    steps = asking_a_person()
    note = "a person said that it happened"
    assert steps.send(Happened("paid")) == Settle(UNKNOWN, EffectStatus.COMPLETED, "paid", note)
    assert drive_on(steps, REPLY) == REPLY


def test_word_of_a_person_that_it_did_not_happen_makes_the_call_again() -> None:
    steps = asking_a_person()
    assert steps.send(NotDone()) == not_done(UNKNOWN, "a person said that it did not happen")
    assert steps.send(REPLY) == BeginEffect()


def test_verify_that_cannot_tell_yet_is_asked_later() -> None:
    steps = EffectFlow(MUTATE).steps(IN_FLIGHT, is_recorded=True)
    next(steps)
    assert steps.send(VerifyAnswer(DOWN)) == AskVerifyLater(IN_FLIGHT, DOWN.reason)
    assert steps.send(99) == Settle(IN_FLIGHT, EffectStatus.UNKNOWN, None, "its worker was lost")
    note = "the vendor is down; it is asked again about pay"
    assert steps.send(REPLY) == Postpone(IN_FLIGHT, note, 99)


def test_verify_that_was_asked_long_enough_is_not_asked_again() -> None:
    steps = EffectFlow(MUTATE).steps(UNKNOWN, is_recorded=True)
    next(steps)
    assert steps.send(VerifyAnswer(DOWN)) == AskVerifyLater(UNKNOWN, DOWN.reason)
    assert steps.send(None) == AskPerson(UNKNOWN, None, DOWN.reason)


def test_verify_that_can_never_tell_is_not_asked_again() -> None:
    steps = EffectFlow(MUTATE).steps(UNKNOWN, is_recorded=True)
    next(steps)
    broken = VerifyAnswer(CannotTell("it returned a string", may_pass=False))
    assert steps.send(broken) == AskPerson(UNKNOWN, None, "it returned a string")


def test_doubt_is_recorded_when_verify_is_interrupted_after_the_tool_raised() -> None:
    steps = in_doubt(MUTATE)
    steps.send(RAISED)
    unknown = Settle(FRESH, EffectStatus.UNKNOWN, RAISED.text, "it raised")
    assert steps.send(Interrupted(CANCELLED)) == unknown
    with pytest.raises(KeyboardInterrupt):
        steps.send(REPLY)


def test_nothing_is_recorded_when_verify_of_a_lost_call_is_interrupted() -> None:
    steps = EffectFlow(MUTATE).steps(IN_FLIGHT, is_recorded=True)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.send(Interrupted(CANCELLED))


def asking_a_person() -> EffectSteps:
    """A flow that waits for the word of a person."""
    steps = EffectFlow(MUTATE).steps(UNKNOWN, is_recorded=True)
    next(steps)
    assert steps.send(VerifyAnswer(None)) == AskPerson(UNKNOWN, None, "")
    return steps


def drive_on(steps: EffectSteps, answer: Any) -> Any:
    """Send the answer to the last step; the reply."""
    with pytest.raises(StopIteration) as end:
        steps.send(answer)
    return end.value.value
