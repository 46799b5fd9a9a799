"""Where a pass gives its run away, or takes one over. `handoff/` does what is promised here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.agents.handing_over import HandoffRules, Trigger, Wish, asked_for
from holdfast.agents.tools import Tool
from holdfast.engine.leased_run import LeasedRun
from holdfast.kernel.handoffs import ANYBODY

if TYPE_CHECKING:
    from holdfast.agents.run import Run

PART: Final = "holdfast.handoff"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What the context before left: who it was, why it ended, and what it says of the work.

    `prompt` is that as a message of the user, `context_parts` are the parts of the state that were
    its own.
    """

    giver: str
    trigger: str
    note: str = ""
    context_parts: tuple[str, ...] = ()
    prompt: str = ""


class Giving(NamedTuple):
    """A context that is to end: its run, and why."""

    run: "Run"
    held: LeasedRun
    rules: HandoffRules | None
    tools: Mapping[str, Tool[..., Any]]
    trigger: Trigger
    label: str = ""


class Handover(Protocol):
    """Gives runs away and takes them over."""

    async def give(self, giving: Giving) -> None:
        """Store the last checkpoint of a context, and let somebody go on; one commit."""
        ...

    async def take(self, held: LeasedRun) -> None:
        """Acknowledge the handoff that a run is in, and begin a fresh context; one commit."""
        ...


def asked_from_outside(held: LeasedRun) -> Trigger | None:
    """What somebody who does not hold the run has asked for, as far as is known here."""
    wish = held.run.wish
    if not wish:
        return None
    to = "" if wish == ANYBODY else wish
    return asked_for(Wish(to, "it was asked for from outside", is_asked=True))
