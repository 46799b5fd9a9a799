"""When a context should end and another go on: what is counted for that, and who asked for it.

A context is what a model sees of a run: its numbers are the part `holdfast.context` of the state,
for agents with a policy only; a wish to hand over is the part `holdfast.wish`. Both change in
memory at once and are stored with the next checkpoint, so a turn that is repeated counts the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from holdfast import codec, names
from holdfast.agents.messages import Message, Usage
from holdfast.agents.progress import Progress
from holdfast.agents.views import Log, Value
from holdfast.engine.leased_run import LeasedRun
from holdfast.errors import MisuseError, UnsupportedValue

CONTEXT: Final = "holdfast.context"
WISH: Final = "holdfast.wish"
_BYTES_PER_TOKEN: Final = 3

TriggerKind = Literal["context", "context_hard", "phase_complete", "errors", "explicit"]


class Trigger(msgspec.Struct, frozen=True):
    """Why a context should end; `text` says it to people. `to` is whoever shall go on, if told."""

    kind: TriggerKind
    text: str
    to: str = ""


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody asks for a handoff: to an agent, or to whoever the selector finds."""

    to: str = ""
    note: str = ""
    is_asked: bool = False


class ContextNumbers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a context has used, in tokens. `turn_began_at` is `used` at the end of the last turn.

    `largest_turn` is the most that a turn has added: a reply, and what its tools answered.
    `turn_replies` are those of the turn that is not over yet.
    """

    used: int = 0
    largest_turn: int = 0
    turn_began_at: int = 0
    turns: int = 0
    replies: int = 0
    turn_replies: int = 0
    errors: int = 0
    max_utilization: float = 0.0


class HandoffRules(Protocol):
    """What a policy of handoffs must offer; `holdfast.HandoffPolicy` does."""

    @property
    def window(self) -> int: ...
    @property
    def to(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def context_parts(self) -> tuple[str, ...]: ...
    @property
    def acknowledge_seconds(self) -> float: ...
    def tokens_of(self, text: str) -> int:
        """How many tokens a text has, or a little more."""
        ...

    def judge(
        self, numbers: ContextNumbers, *, finished_phase: str, wish: Wish | None
    ) -> Trigger | None:
        """Whether the context should end now, and why."""
        ...


def check_rules(given: HandoffRules | None) -> HandoffRules | None:
    """A policy as it can be used; a forgotten call of the class would be found too late."""
    if given is None or (callable(getattr(given, "judge", None)) and not isinstance(given, type)):
        return given
    raise MisuseError(f"handoff is a holdfast.HandoffPolicy, not {given!r}")


def estimate(text: str) -> int:
    """Tokens of a text, guessed from its bytes: one for every three, rounded up.

    More than tokenizers count for prose and code of most languages; a guess, not a bound.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def asked_for(wish: Wish) -> Trigger:
    """The trigger that needs no policy: somebody asks for it."""
    return Trigger("explicit", wish.note or "a handoff was asked for", wish.to)


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


class HandingOver:
    """What one pass over a run knows of handing over: numbers, wish, policy; `due` judges them."""

    def __init__(self, held: LeasedRun, rules: HandoffRules | None, progress: Progress) -> None:
        self._held = held
        self.rules = rules
        self._progress = progress
        self.wish = HandoffWish(held)
        self._numbers = Value(held, CONTEXT, ContextNumbers, ContextNumbers())

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

    def begin_context(self) -> None:
        """Count anew: a fresh context goes on from the next version."""
        self.wish.drop()
        self._progress.begin_context()
        if self.rules is not None:
            self._numbers.set(ContextNumbers())

    def count_reply(
        self, reply: object, usage: Usage | None, given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """A model has replied to what it was given."""
        told = usage.input_tokens + usage.output_tokens if usage is not None else 0
        self._progress.count(tokens=told)
        if self.rules is None:
            return
        said = usage.output_tokens if told and usage is not None else self._tokens(reply)
        used = told or said + sum(map(self._tokens, (*given, *named.values())))
        numbers = self.numbers
        # What the first reply was given is no turn: every context begins with it.
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
        added = sum(self.rules.tokens_of(result.content) for result in results)
        failed = sum(result.is_error for result in results)
        self._note(used=self.numbers.used + added, errors=self.numbers.errors + failed)

    def count_call(self, *, is_error: bool) -> None:
        """The agent's own code called a tool: what it answered is in no context yet."""
        self._progress.count(tools=1)
        if self.rules is not None and is_error:
            self._note(errors=self.numbers.errors + 1)

    def end_turn(self) -> None:
        """A turn is over: how much it has added."""
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
        share = max(changed.max_utilization, changed.used / self.rules.window)
        self._numbers.set(msgspec.structs.replace(changed, max_utilization=share))

    def _tokens(self, value: object) -> int:
        """Tokens of what a model was given or said; what is no data is not told to it."""
        assert self.rules is not None, "tokens are counted for agents with a policy"
        if isinstance(value, str):
            return self.rules.tokens_of(value)
        plain = list(cast("Log[Any]", value)) if isinstance(value, Log) else value
        try:
            stored = codec.decode(codec.encode(plain))
        except UnsupportedValue:
            return 0
        return self.rules.tokens_of(msgspec.json.encode(stored).decode())
