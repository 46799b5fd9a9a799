"""The handoff policy of an agent: when its context ends, who continues, and with what prompt."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import names
from holdfast.agents.definitions.handoff_triggers import (
    ContextLimits,
    ContextNumbers,
    Trigger,
    Wish,
    evaluate,
)
from holdfast.agents.definitions.model_windows import DEFAULT as DEFAULT_WINDOW
from holdfast.agents.definitions.model_windows import window_of
from holdfast.agents.definitions.tokens import counter_for, estimate
from holdfast.errors import MisuseError
from holdfast.kernel.records import Phase, Record

Count = Callable[[str], int]
"""How many tokens a text has for the model of the agent."""

Summarize = Callable[[Record, Sequence[Any]], Awaitable[str]]
"""From the record and the transcript, writes what else the next context should know."""

PHASE_TYPES: Final[Mapping[str, str]] = {
    "planning": "architecture",
    "implementing": "implementation",
    "testing": "qa",
    "reviewing": "qa",
    "complete": "documentation",
}
"""Which type of agent works in a phase, unless a policy says otherwise."""

_LEAST_WINDOW: Final = 1000
_PROMPT_TOKENS: Final = 8_000


class SuccessorChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The input for choosing a successor: the giver, why its context ended, and its record.

    `agents` are those that the choosing process knows, `agent_types` the types of those that have a
    policy, by name.
    """

    run_id: str
    giver: str
    trigger: str
    record: Record
    agents: tuple[str, ...] = ()
    agent_types: Mapping[str, str] = {}


class Chosen(NamedTuple):
    """The agent that is to continue, and why it was chosen."""

    to: str
    reason: str


Select = Callable[[SuccessorChoice], str | Awaitable[str]]
"""Chooses the agent that continues, by its name."""


class HandoffPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a fresh context should continue a run.

    `context` is the share of the model's `window` of tokens that may be used; a window that is not
    given is that of the agent's model, by its name. More than `errors` failed calls of tools end a
    context (None: never), and so does a finished phase if `phase_complete`. `count` counts the
    tokens of a text where the model's replies do not report usage; unless given, the model's
    tokenizer does if it is installed, else they are estimated. Successor: the agent for the phase
    that begins, by `by_phase` ({"testing": "inspector"}), if a phase is finished; else `to`; else
    for a phase that begins an agent of the type that `type_by_phase` has for it, and the same agent
    to continue.
    `select` chooses in place of all of them. `agent_type` is the type of this agent: in records,
    and for agents that choose by type.
    `prompt_tokens` is how long the continuation prompt may be (unless given, 8,000 or a quarter of
    what may be used, whichever is less), `summarize` writes more for it.
    `context_parts` are the logs that a fresh context begins without. The receiver has
    `acknowledge_seconds` to take over.
    """

    context: float = 0.7
    errors: int | None = 3
    phase_complete: bool = True
    window: int = 0
    count: Count | None = None
    to: str = ""
    by_phase: Mapping[str, str] = {}
    type_by_phase: Mapping[str, str] = msgspec.field(default_factory=lambda: PHASE_TYPES)
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
        if 0 < names.check_count(self.window, what="window") < _LEAST_WINDOW:
            raise MisuseError(f"window is {self.window}; a model's has {_LEAST_WINDOW} or more")
        names.check_count(self.prompt_tokens, what="prompt_tokens")
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
        for phase, kind in self.type_by_phase.items():
            if phase not in set(Phase) - {Phase.HANDOFF}:
                raise MisuseError(f"type_by_phase names phases, and {phase!r} is none")
            names.check(kind, what="the type for a phase")
        names.check(self.agent_type, what="agent_type")
        if isinstance(self.context_parts, str):
            raise MisuseError("context_parts is a tuple of names; give (name,)")
        for part in self.context_parts:
            names.check(part, what="a part of the context")

    def for_model(self, model: str, windows: Mapping[str, int]) -> "HandoffPolicy":
        """Return the policy with the window and the tokenizer of a model, where it names none."""
        changed = self
        if not self.window:
            window = window_of(model, windows)
            most = int(window * self.context) // 2
            prompt = min(self.prompt_tokens, most)
            changed = msgspec.structs.replace(self, window=window, prompt_tokens=prompt)
        counter = counter_for(model) if self.count is None else None
        return changed if counter is None else msgspec.structs.replace(changed, count=counter)

    @property
    def window_tokens(self) -> int:
        """How many tokens the model can be given."""
        return self.window or DEFAULT_WINDOW

    def prompt_limit(self, fixed: int = 0) -> int:
        """How long the prompt may be beside `fixed` tokens that every call has."""
        wanted = self.prompt_tokens or min(_PROMPT_TOKENS, self.limit_tokens // 4)
        return max(0, min(wanted, (self.limit_tokens - fixed) // 2)) if fixed else wanted

    @property
    def limit_tokens(self) -> int:
        """How many tokens a context may use."""
        return self._limits.tokens

    async def successor(self, succession: SuccessorChoice) -> Chosen:
        """Choose who continues: the same type for a continuation, another for a change of phase."""
        if self.select is not None:
            to = self.select(succession)
            return Chosen(await to if isawaitable(to) else to, "select chose it")
        phase = succession.record.execution_state.phase.value
        is_new_phase = succession.trigger == "phase_complete"
        if is_new_phase and phase in self.by_phase:
            return Chosen(self.by_phase[phase], f"by_phase names it for the phase {phase}")
        if self.to:
            return Chosen(self.to, "the policy names it")
        if is_new_phase and (wanted := self.type_by_phase.get(phase)):
            return self._of_type(wanted, phase, succession)
        return Chosen(succession.giver, f"the same agent of type {self.agent_type} continues")

    def _of_type(self, wanted: str, phase: str, succession: SuccessorChoice) -> Chosen:
        """Choose an agent of a type: the giver if it is one, else the first by name."""
        if wanted == self.agent_type:
            reason = f"the phase {phase} is for the type {wanted}, which the giver is"
            return Chosen(succession.giver, reason)
        fit = sorted(name for name, kind in succession.agent_types.items() if kind == wanted)
        if not fit:
            reason = (
                f"no agent of type {wanted} is known for the phase {phase}: the giver continues"
            )
            return Chosen(succession.giver, reason)
        return Chosen(fit[0], f"the phase {phase} is for the type {wanted}")

    def tokens_of(self, text: str) -> int:
        """How many tokens a text has; raises MisuseError if the counter gives no count."""
        if self.count is None:
            return estimate(text)
        return names.check_count(self.count(text), what="what count returned")

    def judge(
        self, numbers: ContextNumbers, *, finished_phase: str, wish: Wish | None
    ) -> Trigger | None:
        """Return why the context should end now; None if it should not."""
        return evaluate(numbers, self._limits, finished_phase=finished_phase, wish=wish)

    @property
    def _limits(self) -> ContextLimits:
        return ContextLimits(
            window=self.window_tokens,
            context=self.context,
            errors=self.errors,
            phase_complete=self.phase_complete,
        )


def check_handoff(given: HandoffPolicy | None) -> HandoffPolicy | None:
    """Return a policy that can be used: a class in place of a policy would be found too late."""
    if given is None or isinstance(given, HandoffPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        return given
    raise MisuseError(f"handoff is a holdfast.HandoffPolicy, not {given!r}")
