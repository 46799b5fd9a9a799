"""The policy of an agent: when its context ends, who goes on, and how much that one is told."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import names
from holdfast.agents.handing_over import ContextNumbers, Trigger, Wish, estimate
from holdfast.errors import MisuseError
from holdfast.handoff.triggers import Limits, evaluate
from holdfast.kernel.records import Phase, Record

Count = Callable[[str], int]
"""How many tokens a text has for the model of the agent."""

Summarize = Callable[[Record, Sequence[Any]], Awaitable[str]]
"""Told the record and the transcript, writes what else whoever goes on should know."""

_LEAST_WINDOW: Final = 1000
_PROMPT_TOKENS: Final = 8_000


class Succession(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when it is chosen who goes on: the giver, why it ended, and what it left.

    `agents` are those that the choosing process knows.
    """

    run_id: str
    giver: str
    trigger: str
    record: Record
    agents: tuple[str, ...] = ()


Select = Callable[[Succession], str | Awaitable[str]]
"""Chooses the agent that goes on, by its name."""


class HandoffPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a fresh context should go on with a run.

    `context` is the share of the model's `window` of tokens that may be used. More than `errors`
    failed calls of tools end a context (None: never), and so does a finished phase if
    `phase_complete`. `count` counts the tokens of a text (an estimate unless given), where the
    model's replies do not tell their usage. Who goes on: the agent for the phase that begins, by
    `by_phase` ({"testing": "qa"}), if a phase is finished; else `to`, or the same agent if that is
    empty; `select` chooses in place of both. `agent_type` is what records say of the agent.
    `prompt_tokens` is how long the continuation prompt may be (unless given, 8,000 or a quarter of
    what may be used, whichever is less), `summarize` writes more for it.
    `context_parts` are the logs that a fresh context begins without. Whoever goes on has
    `acknowledge_seconds` to take over.
    """

    context: float = 0.7
    errors: int | None = 3
    phase_complete: bool = True
    window: int = 200_000
    count: Count | None = None
    to: str = ""
    by_phase: Mapping[str, str] = {}
    select: Select | None = None
    agent_type: str = "implementation"
    prompt_tokens: int = 0
    summarize: Summarize | None = None
    context_parts: tuple[str, ...] = ("transcript",)
    acknowledge_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.context <= 1:
            raise MisuseError(f"context is the share of the window, up to 1, not {self.context!r}")
        self._check_numbers()
        self._check_names()
        for name in ("count", "summarize", "select"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise MisuseError(f"{name} of a HandoffPolicy is a function")

    def _check_numbers(self) -> None:
        if self.errors is not None:
            names.check_count(self.errors, what="errors")
        if names.check_count(self.window, what="window") < _LEAST_WINDOW:
            raise MisuseError(f"window is {self.window}; a model's has {_LEAST_WINDOW} or more")
        if not names.check_count(self.prompt_tokens, what="prompt_tokens"):
            least = min(_PROMPT_TOKENS, self.limit_tokens // 4)
            msgspec.structs.force_setattr(self, "prompt_tokens", least)
        if self.prompt_tokens >= self.limit_tokens:
            raise MisuseError(
                f"prompt_tokens is {self.prompt_tokens}; it must leave room in the "
                f"{self.limit_tokens} tokens that a context may use"
            )
        if self.acknowledge_seconds <= 0:
            raise MisuseError("acknowledge_seconds must be above 0")

    def _check_names(self) -> None:
        if self.to:
            names.check(self.to, what="the agent to hand over to")
        for phase, agent in self.by_phase.items():
            if phase not in set(Phase) - {Phase.HANDOFF}:
                raise MisuseError(f"by_phase names phases, and {phase!r} is none")
            names.check(agent, what="the agent for a phase")
        names.check(self.agent_type, what="agent_type")
        if isinstance(self.context_parts, str):
            raise MisuseError("context_parts is a tuple of names; give (name,)")
        for part in self.context_parts:
            names.check(part, what="a part of the context")

    @property
    def limit_tokens(self) -> int:
        """How many tokens a context may use."""
        return self._limits.tokens

    def successor(self, succession: Succession) -> str | Awaitable[str]:
        """Who goes on: the same agent for a continuation, another for a change of phase."""
        if self.select is not None:
            return self.select(succession)
        phase = succession.record.execution_state.phase.value
        if succession.trigger == "phase_complete" and phase in self.by_phase:
            return self.by_phase[phase]
        return self.to or succession.giver

    def tokens_of(self, text: str) -> int:
        """How many tokens a text has; raises MisuseError if the counter gives no count."""
        if self.count is None:
            return estimate(text)
        return names.check_count(self.count(text), what="what count returned")

    def judge(
        self, numbers: ContextNumbers, *, finished_phase: str, wish: Wish | None
    ) -> Trigger | None:
        """Whether the context should end now, and why."""
        return evaluate(numbers, self._limits, finished_phase=finished_phase, wish=wish)

    @property
    def _limits(self) -> Limits:
        return Limits(
            window=self.window,
            context=self.context,
            errors=self.errors,
            phase_complete=self.phase_complete,
        )
