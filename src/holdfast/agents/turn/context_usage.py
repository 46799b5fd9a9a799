"""When a context should end and another continue: what counts for that, and who asked for it.

A context is what a model sees of a run: its numbers are the part `holdfast.context` of the state,
for agents with a policy only; a wish to hand over is the part `holdfast.wish`. Both change in
memory at once and are stored with the next checkpoint, so a turn that is repeated counts the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, cast

import msgspec

from holdfast import codec, names
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.handoff_triggers import ContextNumbers, Trigger, Wish, asked_for
from holdfast.agents.definitions.messages import Message, Usage
from holdfast.agents.definitions.rules import Rules
from holdfast.agents.definitions.tokens import PER_MESSAGE, estimate, text_of_message
from holdfast.agents.turn.progress import Progress
from holdfast.agents.turn.views import Log, Value
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import UnsupportedValue

CONTEXT: Final = "holdfast.context"
WISH: Final = "holdfast.wish"
_IMPLAUSIBLE: Final = 3
"""A usage below this part of what was counted is not believed: caches are left out of some."""
_LEAST_RESULTS: Final = 256


class HandoffWish:
    """Whether somebody has asked for a handoff that has not happened yet."""

    def __init__(self, held: LeasedRun) -> None:
        self._value = Value(held, WISH, Wish, Wish())

    @property
    def current(self) -> Wish | None:
        wish = self._value.get()
        return wish if wish.is_asked else None

    def ask(self, to: str = "", note: str = "") -> None:
        """Ask for it; the newest request counts."""
        if to:
            names.check(to, what="the agent to hand over to")
        names.check_text(note, what="the note of a handoff")
        self._value.set(Wish(to, note, is_asked=True))

    def drop(self) -> None:
        """It has happened, or is not wanted any more."""
        if self.current is not None:
            self._value.set(Wish())


class ContextUsage:
    """How much of its window a context has used, and who asked to end it; `due` judges both."""

    def __init__(
        self,
        held: LeasedRun,
        rules: HandoffPolicy | None,
        progress: Progress,
        *,
        fixed: Callable[[], str] = str,
    ) -> None:
        """`fixed` returns what every call sends to the model: system prompt and tool schemas."""
        self._held = held
        self.rules = rules
        self._progress = progress
        self._fixed_text = fixed
        self._fixed: int | None = None
        self._counted: dict[str, list[tuple[object, int]]] = {}
        self.wish = HandoffWish(held)
        self._numbers = Value(held, CONTEXT, ContextNumbers, ContextNumbers())

    @classmethod
    def of(
        cls, rules: Rules, held: LeasedRun, progress: Progress, windows: Mapping[str, int]
    ) -> Self:
        """What a context of an agent's run counts, in the window of the agent's model."""
        policy = rules.handoff
        if policy is not None:
            policy = policy.for_model(rules.versions.model, windows)
        return cls(held, policy, progress, fixed=lambda: rules.fixed_text)

    @property
    def numbers(self) -> ContextNumbers:
        """What the context has used so far."""
        return self._numbers.get()

    def due(self) -> Trigger | None:
        """Why the context should end before another turn; None if it should not."""
        wish = self.wish.current
        if self.rules is None:
            return asked_for(wish) if wish is not None else None
        finished = self._progress.state.finished_phase
        return self.rules.judge(self.numbers, finished_phase=finished, wish=wish)

    @property
    def fixed(self) -> int:
        """How many tokens of each call are the system prompt and the tools."""
        if self._fixed is None:
            self._fixed = self._count(self._fixed_text())
        return self._fixed

    def projected(self, *given: object) -> int:
        """Return how many tokens a model sees that is given this."""
        return self.fixed + sum(map(self._tokens, given))

    def used(self, talk: Sequence[object]) -> int:
        """What the context uses: as it was counted, or if it was not, what `talk` has."""
        return self.numbers.used or self.projected(talk)

    def room_for_results(self) -> int | None:
        """How many tokens tools may answer; None without a policy.

        So many that the next call of the model, and another turn as large, stay below the limit;
        if that is next to nothing the context ends, and only the limit counts.
        """
        if self.rules is None:
            return None
        numbers, limit = self.numbers, self.rules.limit_tokens
        began_at = numbers.turn_began_at if numbers.replies else self.fixed
        said = max(0, numbers.used - began_at)
        room = (limit - began_at - 1) // 2 - said
        return room if room >= _LEAST_RESULTS else max(0, limit - began_at - said)

    def tokens_of(self, text: str) -> int:
        """How many tokens a text of this context has."""
        return self._count(text)

    def begin_context(self) -> None:
        """Reset the counts: a fresh context continues from the next version."""
        self.wish.drop()
        self._progress.begin_context()
        if self.rules is not None:
            self._numbers.set(ContextNumbers())

    def count_reply(
        self, reply: object, usage: Usage | None, given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """Count the reply of a model to what it was given."""
        reported = usage.input_tokens + usage.output_tokens if usage is not None else 0
        self._progress.count(tokens=reported)
        if self.rules is None:
            return
        said = usage.output_tokens if reported and usage is not None else self._tokens(reply)
        counted = self.projected(*given, *named.values()) + said
        used = reported if reported * _IMPLAUSIBLE >= counted else counted
        numbers = self.numbers
        # What the first reply was given is not a turn: every context begins with it.
        began_at = numbers.turn_began_at if numbers.replies else max(0, used - said)
        # Of several replies in a turn the largest counts: some may be about something small.
        most = max(used, numbers.used) if numbers.turn_replies else used
        self._note(
            used=most,
            turn_began_at=began_at,
            replies=numbers.replies + 1,
            turn_replies=numbers.turn_replies + 1,
        )

    def count_calls(self, made: int, answers: Sequence[Message]) -> None:
        """Tools were called, and have answered; what was refused is answered too."""
        self._progress.count(tools=made)
        if self.rules is None or not answers:
            return
        results = [result for answer in answers for result in answer.results]
        added = sum(map(self._tokens, answers))
        failed = sum(result.is_error for result in results)
        self._note(used=self.numbers.used + added, errors=self.numbers.errors + failed)

    def count_call(self, *, is_error: bool) -> None:
        """The agent's own code called a tool: what it answered is in no context yet."""
        self._progress.count(tools=1)
        if self.rules is not None and is_error:
            self._note(errors=self.numbers.errors + 1)

    def end_turn(self) -> None:
        """Record how much the turn that has ended added."""
        if self.rules is None:
            return
        numbers = self.numbers
        grown = max(0, numbers.used - numbers.turn_began_at) if numbers.replies else 0
        self._note(
            largest_turn=max(numbers.largest_turn, grown),
            turn_began_at=numbers.used,
            turns=numbers.turns + 1,
            turn_replies=0,
        )

    def _note(self, **changes: int) -> None:
        assert self.rules is not None, "numbers are kept for agents with a policy"
        changed: ContextNumbers = msgspec.structs.replace(self.numbers, **changes)
        share = max(changed.max_utilization, changed.used / self.rules.window_tokens)
        self._numbers.set(msgspec.structs.replace(changed, max_utilization=share))

    def _count(self, text: str) -> int:
        return estimate(text) if self.rules is None else self.rules.tokens_of(text)

    def _tokens(self, value: object) -> int:
        """Count the tokens of what a model was given or said; what is not data counts 0."""
        if isinstance(value, str):
            return self._count(value)
        if isinstance(value, Message):
            return PER_MESSAGE + self._count(text_of_message(value))
        if isinstance(value, Log):
            log = cast("Log[object]", value)
            return self._tokens_of_items(log.name, list(log))
        if isinstance(value, list | tuple):
            return sum(map(self._tokens, cast("Sequence[object]", value)))
        try:
            stored = codec.decode(codec.encode(value))
        except UnsupportedValue:
            return 0
        return self._count(msgspec.json.encode(stored).decode())

    def _tokens_of_items(self, name: str, items: list[object]) -> int:
        """Count the items of a log: each once, as long as it is the same immutable message."""
        known = self._counted.get(name, [])
        counted: list[tuple[object, int]] = []
        for at, item in enumerate(items):
            is_known = at < len(known) and known[at][0] is item and isinstance(item, Message)
            counted.append(known[at] if is_known else (item, self._tokens(item)))
        self._counted[name] = counted
        return sum(tokens for _, tokens in counted)
