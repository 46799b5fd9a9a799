"""What is checked before a tool is called: that it exists, its arguments, permission, repetition.

A call that is refused is answered with a text the model can act on; nothing is recorded for it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast import codec
from holdfast.agents.definitions.cadence import Cadence
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.peer_tools import Peer
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy
from holdfast.agents.definitions.tools import Arguments, Tool
from holdfast.agents.definitions.versions import OnChange
from holdfast.engine.budgets.costs import Budget, Cost
from holdfast.errors import UnsupportedValue
from holdfast.kernel.versions import Versions

Permission = Callable[[Tool[..., Any], Mapping[str, Any]], Any]
"""Gets the tool and its arguments; returns False or a text (the reason) to refuse the call."""


class CallRefused(Exception):
    """The call is not made; the message tells the model why."""


class Repeats(msgspec.Struct, frozen=True):
    """How often in a row the same call was made, to notice a model that goes in circles."""

    tool: str = ""
    digest: bytes = b""
    times: int = 0

    def after(self, tool: str, digest: bytes) -> "Repeats":
        is_same = (tool, digest) == (self.tool, self.digest)
        return Repeats(tool, digest, self.times + 1 if is_same else 1)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of an agent must pass, and how its runs are kept.

    `peers` are those of its tools that are other agents. `loop_limit` 0 lets the same call be made
    for ever. A run without a budget gets `budget`; `reserve` is what a call of the model reserves.
    `handoff` says when a context should end; without it, only when somebody asks for it.
    `versions_part` are the `versions` as the state of a run has them, encoded.
    """

    tools: Mapping[str, Tool[..., Any]]
    peers: Mapping[str, Peer] = {}
    permission: Permission | None = None
    loop_limit: int = 5
    cadence: Cadence = "turn"
    versions: Versions = Versions()
    versions_part: Raw = Raw(codec.encode({}))
    on_change: OnChange = "continue"
    budget: Budget | None = None
    reserve: Cost | None = None
    recovery: RecoveryPolicy | None = None
    handoff: HandoffPolicy | None = None
    prompt: str = ""

    @property
    def fixed_text(self) -> str:
        """What every call sends to the model: the prompt, and the schemas of the tools."""
        tools = [[t.name, t.description, t.input_schema] for t in self.tools.values()]
        return f"{self.prompt}\n{msgspec.json.encode(tools).decode()}" if tools else self.prompt

    def find(self, name: str) -> Tool[..., Any]:
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            raise CallRefused(f"there is no tool {name!r}; the tools are: {known}")
        return tool

    def parse(self, tool: Tool[..., Any], args: Mapping[str, Any] | str) -> Arguments:
        try:
            return tool.parse(args)
        except (msgspec.MsgspecError, UnsupportedValue, TypeError) as error:
            raise CallRefused(
                f"{tool.name} was not called: its arguments are not valid: {error}"
            ) from error

    async def permit(self, tool: Tool[..., Any], arguments: Arguments) -> None:
        if self.permission is None:
            return
        answer = self.permission(tool, arguments.values)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is False or isinstance(answer, str):
            raise CallRefused(f"{tool.name} was not called: {answer or 'it is not permitted'}")

    def check_repeats(self, repeats: Repeats) -> None:
        if self.loop_limit and repeats.times > self.loop_limit:
            raise CallRefused(
                f"{repeats.tool} was not called: the same call was made {self.loop_limit} times in "
                "a row, and its result does not change. Do something else"
            )
