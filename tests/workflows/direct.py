"""What small random workflows come to, worked out directly: no code of Holdfast's is used here.

A `Flow` is a list of `Step`s; `outcome_of` says what must become of each, what is done outside, and
what is asked. How it looks as a workflow is told by test_random.
"""

from collections import Counter
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, Literal

Status = Literal["completed", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One block. A tool is called with a number; those in `bad` are refused."""

    id: str
    kind: Literal["tool", "prompt", "nested"]
    needs: dict[str, bool] = field(default_factory=dict[str, bool])  # and whether it is required
    at_least: int | None = None  # a condition on the flow's input
    if_done: str | None = None  # a condition on another step
    uses: str | None = None  # whose result is added to what it is given
    add: int = 0
    rounds: int | None = None
    in_turn: bool = False
    is_pardoned: bool = False


@dataclass(frozen=True)
class Flow:
    steps: list[Step]
    given: int
    bad: frozenset[int]


@dataclass
class Made:
    """What became of a step; of a loop, what became of each round."""

    status: Status
    value: Any = None
    rounds: list["Made"] | None = None
    gives: str = ""  # what each round's value is called


@dataclass
class Whole:
    """What became of a flow."""

    status: str
    steps: dict[str, Made]
    done: Counter[int]

    @property
    def statuses(self) -> dict[str, Any]:
        return {
            name: (made.status, made.rounds and [each.status for each in made.rounds])
            for name, made in self.steps.items()
        }

    @property
    def outputs(self) -> dict[str, Any] | None:
        return {name: told(made) for name, made in self.steps.items()}


def told(made: Made) -> Any:
    """What a step gives, or else how it ended; of a loop, what each round gives."""
    if made.rounds is not None:
        return [{made.gives: each.value} if each.value is not None else {} for each in made.rounds]
    return made.value if made.status == "completed" else made.status


def answer_to(path: str) -> int:
    """What people answer: so many hundreds as the path has letters."""
    return 100 * len(path)


def outcome_of(flow: Flow) -> Whole:
    by_id = {step.id: step for step in flow.steps}
    order = TopologicalSorter({step.id: list(step.needs) for step in flow.steps}).static_order()
    steps: dict[str, Made] = {}
    done = Counter[int]()
    for name in order:
        steps[name] = _make(flow, by_id, by_id[name], steps, done)
    is_failed = any(
        made.status == "failed" and not by_id[name].is_pardoned for name, made in steps.items()
    )
    return Whole("failed" if is_failed else "completed", steps, done)


def _make(
    flow: Flow, by_id: dict[str, Step], step: Step, steps: dict[str, Made], done: Counter[int]
) -> Made:
    for name, is_required in step.needs.items():
        before = steps[name].status
        if is_required and (
            before == "skipped" or (before == "failed" and not by_id[name].is_pardoned)
        ):
            return Made("skipped")
    if step.rounds is None:
        return _make_one(flow, step, steps, done, step.id, 0)
    made: list[Made] = []
    for at in range(step.rounds):
        if step.in_turn and not step.is_pardoned and any(m.status == "failed" for m in made):
            made.append(Made("skipped"))
        else:
            made.append(_make_one(flow, step, steps, done, f"{step.id}[{at}]", at))
    gives = "response" if step.kind == "prompt" else "result"
    is_failed = any(each.status == "failed" for each in made)
    return Made("failed" if is_failed else "completed", None, made, gives)


def _make_one(
    flow: Flow, step: Step, steps: dict[str, Made], done: Counter[int], path: str, at: int
) -> Made:
    if step.at_least is not None and flow.given < step.at_least:
        return Made("skipped")
    if step.if_done is not None and steps[step.if_done].status != "completed":
        return Made("skipped")
    number = flow.given + step.add + at
    if step.uses is not None:
        before = steps[step.uses]
        if before.status != "completed" or before.rounds is not None:
            return Made("failed")
        number += before.value
    if step.kind == "prompt":
        return Made("completed", answer_to(path))
    if number in flow.bad:
        return Made("failed")
    done[number] += 1
    value = number + 1
    return Made("completed", value + answer_to(f"{path}/ok") if step.kind == "nested" else value)
