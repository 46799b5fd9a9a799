"""The ready loop: an agent for people who do not write one.

A turn is the model's reply, the tools it asks for, and a checkpoint. The agent ends with the text
of the first reply that asks for no tool.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent, rules_of
from holdfast.agents.definitions.cadence import Cadence
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.messages import Message, Text
from holdfast.agents.definitions.peer_tools import KnownAgent, Peer
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy
from holdfast.agents.definitions.rules import Permission
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.definitions.versions import OnChange
from holdfast.agents.run import Run, make_room
from holdfast.engine.budgets.costs import Budget, Cost
from holdfast.errors import MisuseError, RunFailed


class Model(Protocol):
    """From a transcript to the reply to it."""

    def __call__(self, transcript: list[Message], /) -> Awaitable[Message]: ...


class ModelWithTools(Protocol):
    """The same for a model that gets the list of tools."""

    def __call__(
        self, transcript: list[Message], /, *, tools: list[Tool[..., Any]]
    ) -> Awaitable[Message]: ...


class AgentLoop(Agent[[str], str]):
    """An agent made of a model and tools. Its transcript is the log "transcript".

    `description` says what it is for, to agents and clients that may call it. `system` is put
    before the transcript whenever the model is asked, and is not stored. A run that has no budget
    gets `budget`, and is blocked when it is spent; `reserve` is what a reply may cost. `handoff`
    says when a fresh context continues. An input without an answer after `max_turns` turns fails.
    """

    def __init__(
        self,
        model: Model | ModelWithTools,
        *,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        peers: Iterable[str | Peer | KnownAgent] = (),
        system: str = "",
        name: str = "agent",
        description: str = "",
        max_turns: int = 50,
        budget: Budget | None = None,
        reserve: Cost | None = None,
        permission: Permission | None = None,
        loop_limit: int = 5,
        cadence: Cadence = "turn",
        version: str = "",
        model_name: str = "",
        on_change: OnChange = "continue",
        handoff: HandoffPolicy | None = None,
        recovery: RecoveryPolicy | None = None,
    ) -> None:
        if not type_conversion.is_async(model):
            raise MisuseError(
                "the model of an AgentLoop must be async: async def model(transcript)"
            )
        if max_turns < 1:
            raise MisuseError(f"max_turns must be 1 or more, not {max_turns}")
        rules = rules_of(
            tools=tools,
            peers=peers,
            permission=permission,
            loop_limit=loop_limit,
            cadence=cadence,
            version=version,
            model=model_name,
            prompt=system,
            on_change=on_change,
            budget=budget,
            reserve=reserve,
            handoff=handoff,
            recovery=recovery,
        )
        super().__init__(self.play, name=name, rules=rules)
        self._description = description
        self.system = system
        self.max_turns = max_turns
        self._model = cast("Callable[..., Awaitable[Message]]", model)
        self._options = {"tools": list(rules.tools.values())} if _takes_tools(model) else {}

    @property
    def description(self) -> str:
        """What it is for, as shown to agents that may call it, and to clients."""
        return self._description

    async def play(self, run: Run, request: str) -> str:
        """Answer a request; resume it if its turns are on record."""
        talk = run.log("transcript", Message)
        if run.is_fresh:
            talk.append(Message.user(request) if talk else _first_message(run, request))
        while _turns_since_user(talk) < self.max_turns:
            await make_room(run, talk)
            # The step's name is the same for every model: a reply on record is used after a change.
            reply = await run.model(self.reply, talk)
            talk.append(reply)
            if not reply.tool_calls:
                return reply.text
            talk.extend(await run.tools(reply.tool_calls))
            await run.checkpoint()
        raise RunFailed(f"{self.name} has not answered within {self.max_turns} turns (max_turns)")

    async def reply(self, transcript: Sequence[Message]) -> Message:
        """Ask the model."""
        first = [Message.system(self.system)] if self.system else []
        reply = await self._model([*first, *transcript], **self._options)
        if isinstance(reply, Message) and reply.role == "assistant":  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            return reply
        raise MisuseError(
            f"the model of {self.name} returned {str(reply)[:200]!r}; it must return a "
            "holdfast.Message of the role assistant, such as Message.assistant(text)"
        )


def _first_message(run: Run, request: str) -> Message:
    """Return the request, followed by the continuation prompt of the previous context if any."""
    left = run.continuation
    continuation = [Text(f"\n\n{left.prompt}")] if left is not None and left.prompt else []
    return Message(role="user", blocks=[Text(request), *continuation])


def _takes_tools(model: Callable[..., Any]) -> bool:
    parameters = inspect.signature(model).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        p.kind is p.VAR_KEYWORD or (p.name == "tools" and p.kind in by_name) for p in parameters
    )


def _turns_since_user(talk: Sequence[Message]) -> int:
    """Count the replies since the last message of the user, so that no counter is stored."""
    count = 0
    for message in reversed(talk):
        if message.role == "user":
            break
        count += message.role == "assistant"
    return count
