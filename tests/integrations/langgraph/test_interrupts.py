"""Interrupts as questions: what people read, under which id, and when a question is over."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Interrupt

from holdfast.integrations.langgraph import interrupts
from holdfast.kernel.waits import Wait, WaitStatus

AT = ("", "c1", "task")


def asked(value: Any, interrupt_id: str = "i", **options: Any) -> interrupts.StoredInterrupt:
    found = Interrupt(value=value, id=interrupt_id, **options)
    (question,) = interrupts.questions_of("t", *AT, [found])
    return question


def wait_for(question: interrupts.StoredInterrupt, status: WaitStatus = WaitStatus.OPEN) -> Wait:
    return Wait(
        tenant="default",
        wait_id=question.wait_id,
        run_id="t",
        group_id="g",
        kind="question",
        name=question.name,
        deadline=0,
        status=status,
        opened_seq=1,
        opened_at=1,
    )


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("How many?", "How many?"),
        ({"question": "How many?", "most": 3}, "How many?"),
        ({"message": "Look"}, "Look"),
        ({"most": 3}, '{"most":3}'),
        ([1, 2], "[1,2]"),
        (None, "null"),
        ("a\0b", "a�b"),
        ("", "The graph waits for an answer."),
        (
            {"action_requests": [{"name": "pay", "args": {"cents": 5}}], "review_configs": []},
            'May pay({"cents":5}) be called?',
        ),
    ],
)
def test_prompt_is_what_the_graph_asks(value: Any, prompt: str) -> None:
    assert asked(value).prompt == prompt


@dataclass
class Order:
    number: int


class Opaque:
    def __str__(self) -> str:
        return "(opaque)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({1: "a"}, {"1": "a"}),
        ((1, {2}), [1, [2]]),
        (datetime(2026, 11, 16, tzinfo=UTC), "2026-11-16T00:00:00Z"),
        (float("inf"), None),
        ({"at": Order(7)}, {"at": {"number": 7}}),
        ({"at": Opaque()}, {"at": "(opaque)"}),
        (2**80, str(2**80)),
    ],
)
def test_anything_can_be_shown(value: Any, shown: Any) -> None:
    found = interrupts.plain(value)
    assert found == shown or (shown is None and found in (None, "inf"))


def test_messages_are_shown_with_their_fields() -> None:
    assert interrupts.plain([HumanMessage("hi")])[0]["content"] == "hi"


def test_deep_values_are_cut_off() -> None:
    value: Any = "end"
    for _ in range(2000):
        value = [value]
    assert isinstance(interrupts.plain(value), list)


def test_question_is_told_apart_by_thread_interrupt_and_what_is_asked() -> None:
    one = asked("How many?")
    assert one == asked("How many?")
    (elsewhere,) = interrupts.questions_of("u", *AT, [Interrupt(value="How many?", id="i")])
    others = [asked("How much?"), asked("How many?", "j"), elsewhere]
    assert len({question.wait_id for question in [one, *others]}) == 4


def test_interrupt_of_a_subgraph_has_one_id_wherever_it_is_written() -> None:
    found = [Interrupt(value="How many?", id="i")]
    (inner,) = interrupts.questions_of("t", "sub:1", "c2", "inner", found)
    (outer,) = interrupts.questions_of("t", "", "c1", "outer", found)
    assert inner.wait_id == outer.wait_id


def test_schema_of_the_answer_is_the_interrupts_or_takes_anything() -> None:
    assert asked("?", response_schema={"type": "integer"}).payload["schema"] == {"type": "integer"}
    assert asked("?").payload["schema"] == {}
    assert asked("?", response_schema={"type": "nonsense"}).payload["schema"] == {}


def test_writes_of_a_task_settle_what_it_asked_before() -> None:
    first = asked("First?")
    writes = [
        ("__interrupt__", [Interrupt(value="Second?", id="k")]),
        ("__resume__", [1]),
    ]
    taken = interrupts.taken_from("t", *AT, writes)
    (second,) = taken.asked
    waits = [wait_for(first), wait_for(second)]
    settled = interrupts.settled_by_task(waits, *AT, taken)
    assert settled == interrupts.SettledQuestions({first.wait_id: 1}, [])
    done = interrupts.taken_from("t", *AT, [("log", "x"), ("__resume__", [1, 2])])
    assert interrupts.settled_by_task(waits, *AT, done).answered == {
        first.wait_id: 1,
        second.wait_id: 2,
    }
    assert interrupts.settled_by_task(waits, "", "c1", "other", done).answered == {}


def test_task_that_failed_keeps_its_question_open() -> None:
    waits = [wait_for(asked("First?"))]
    failed = interrupts.taken_from("t", *AT, [("__error__", "broken"), ("__resume__", [1])])
    assert interrupts.settled_by_task(waits, *AT, failed) == interrupts.SettledQuestions({}, [])


def test_question_that_a_task_asks_otherwise_is_withdrawn() -> None:
    first = asked("How many at 10:00?")
    writes = [("__interrupt__", [Interrupt(value="How many at 10:05?", id="i")])]
    taken = interrupts.taken_from("t", *AT, writes)
    settled = interrupts.settled_by_task([wait_for(first)], *AT, taken)
    assert settled == interrupts.SettledQuestions({}, [first.wait_id])


def test_checkpoint_withdraws_what_the_step_before_it_asked() -> None:
    question = asked("First?")
    waits = [wait_for(question), wait_for(asked("Old?", "o"), WaitStatus.RESOLVED)]
    after = interrupts.withdrawn_by_checkpoint
    assert after(waits, "", "c1", "loop") == [question.wait_id]
    assert after(waits, "", "c9", "loop") == []
    assert after(waits, "sub", "c1", "input") == []
    assert after(waits, "", "c9", "input") == [question.wait_id]
