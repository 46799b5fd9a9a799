"""What a handoff policy must offer, and what it judges: numbers of a context, wishes, triggers."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from holdfast.errors import MisuseError

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
    def window_tokens(self) -> int: ...
    @property
    def limit_tokens(self) -> int: ...
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

    def for_model(self, model: str, windows: Mapping[str, int]) -> "HandoffRules":
        """The same rules with the window and the tokenizer of a model, where they leave it open."""
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


def asked_for(wish: Wish) -> Trigger:
    """The trigger that needs no policy: somebody asks for it."""
    return Trigger("explicit", wish.note or "a handoff was asked for", wish.to)
