"""Agents: async functions that advance a run, known by name to the workers of their runs."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from holdfast import names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions import cadence as cadences
from holdfast.agents.definitions.cadence import Cadence
from holdfast.agents.definitions.handoff_policy import HandoffPolicy, check_handoff
from holdfast.agents.definitions.peer_tools import KnownAgent, Peer, peers_by_tool
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy, check_policy
from holdfast.agents.definitions.rules import Permission, Rules
from holdfast.agents.definitions.tools import Tool, tool
from holdfast.agents.definitions.versions import OnChange, check_on_change, versions_of
from holdfast.engine.budgets.costs import Budget, Cost
from holdfast.errors import AgentNotFound, MisuseError, UnsupportedValue

if TYPE_CHECKING:
    from holdfast.agents.run import Run

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
A = TypeVar("A", contravariant=True)
B = TypeVar("B", contravariant=True)
C = TypeVar("C", contravariant=True)


class Taking0(Protocol[R]):
    """An agent that is started with no input. Agents with defaults fit several of these."""

    @property
    def rules(self) -> Rules: ...
    def __call__(self, run: "Run", /) -> Awaitable[R]: ...


class Taking1(Protocol[A, R]):
    """An agent that is started with one input."""

    @property
    def rules(self) -> Rules: ...
    def __call__(self, run: "Run", a: A, /) -> Awaitable[R]: ...


class Taking2(Protocol[A, B, R]):
    """An agent that is started with two inputs."""

    @property
    def rules(self) -> Rules: ...
    def __call__(self, run: "Run", a: A, b: B, /) -> Awaitable[R]: ...


class Taking3(Protocol[A, B, C, R]):
    """An agent that is started with three inputs."""

    @property
    def rules(self) -> Rules: ...
    def __call__(self, run: "Run", a: A, b: B, c: C, /) -> Awaitable[R]: ...


def _itself(given: Any) -> Any:
    return given


class Agent(Generic[P, R]):
    """A function of a run and its input, with the tools it may use."""

    def __init__(
        self,
        function: Callable[Concatenate["Run", P], Awaitable[R]],
        *,
        name: str,
        rules: Rules,
    ) -> None:
        self.function = function
        self.name = names.check(name, what="the name of an agent")
        self.rules = rules
        self.alike: Callable[[Any], Any] = _itself
        """What of an input makes two calls of this agent the same."""
        self._signature = _check_signature(function, name)
        functools.update_wrapper(self, function, updated=())

    def __call__(self, run: "Run", *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function itself: an agent may continue as another one."""
        return self.function(run, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    @functools.cached_property
    def parameters(self) -> list[str]:
        """What its input consists of."""
        return list(self._signature.parameters)[1:]

    @property
    def description(self) -> str:
        """What it says of itself."""
        return inspect.getdoc(self.function) or ""

    @property
    def input_types(self) -> dict[str, tuple[Any, Any]]:
        """The type and the default of each part of its input."""
        given = list(self._signature.parameters.values())[1:]
        return {p.name: (self._hints.get(p.name, Any), p.default) for p in given}

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return type_conversion.hints_of(self.function, what=f"agent {self.name}")

    def input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input of a run in its stored form: its arguments by name."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise MisuseError(f"agent {self.name} cannot be started like this: {error}") from error
        first = next(iter(self._signature.parameters))
        return {name: value for name, value in bound.arguments.items() if name != first}

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments, and the defaults of those that were left out."""
        defaults = {
            name: parameter.default
            for name, parameter in list(self._signature.parameters.items())[1:]
            if parameter.default is not parameter.empty
        }
        return defaults | dict(arguments)

    def arguments_of(self, stored: Any, *, from_other_agent: bool = False) -> dict[str, Any]:
        """The arguments of the function from a stored input; raises UnsupportedValue.

        If it was given to another agent, its one value may have another name here.
        """
        wanted = self.parameters
        if from_other_agent and self.takes_one_input and isinstance(stored, dict):
            named = cast("dict[str, Any]", stored)
            if len(named) == 1 and not set(named) <= set(wanted):
                (stored,) = named.values()
        given: dict[str, Any]
        if isinstance(stored, dict) and set(cast("dict[str, Any]", stored)) <= set(wanted):
            given = cast("dict[str, Any]", stored)
        elif self.takes_one_input and stored is not None and not self._is_misnamed(stored):
            given = {wanted[0]: stored}
        elif stored is None:
            given = {}
        else:
            raise UnsupportedValue(
                f"agent {self.name} takes: {', '.join(wanted) or 'no input'}. This is no such "
                f"input: {str(cast(object, stored))[:200]}"
            )
        missing = [n for n in wanted if n not in given and self._is_required(n)]
        if missing:
            raise UnsupportedValue(f"agent {self.name} needs {', '.join(missing)} as well")
        return {
            name: type_conversion.convert(
                value, self._hints.get(name, Any), what=f"{name} of {self.name}"
            )
            for name, value in given.items()
        }

    def named_input(self, given: object) -> Any:
        """An input that is one value under the name of its parameter, whatever it looks like."""
        keys = set(cast("dict[str, Any]", given)) if isinstance(given, dict) else set[str]()
        is_named = bool(keys) and keys <= set(self.parameters)
        needs_one = any(map(self._is_required, self.parameters))
        is_whole = is_named or not self.takes_one_input or (given is None and not needs_one)
        return cast(Any, given) if is_whole else {self.parameters[0]: cast(Any, given)}

    def arguments_for(self, message: Any) -> dict[str, Any]:
        """The arguments of the function for one message, whatever that looks like."""
        name = self.parameters[0]
        kind = self._hints.get(name, Any)
        return {name: type_conversion.convert(message, kind, what=f"{name} of {self.name}")}

    def result_of(self, stored: object) -> R:
        """A stored result as the type that the function returns."""
        kind = self._hints.get("return", Any)
        return type_conversion.convert(stored, kind, what=f"the result of {self.name}")

    def _is_misnamed(self, stored: Any) -> bool:
        """Whether an input is a dict of names, and the one parameter is not for a dict."""
        kind = self._hints.get(self.parameters[0], Any)
        return isinstance(stored, dict) and kind in (str, int, float, bool, bytes)

    @functools.cached_property
    def takes_one_input(self) -> bool:
        """Whether it can be started with one input, as a session does for each message."""
        required = [name for name in self.parameters if self._is_required(name)]
        return bool(self.parameters) and len(required) <= 1

    def _is_required(self, name: str) -> bool:
        return self._signature.parameters[name].default is inspect.Parameter.empty


def _check_signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    if not type_conversion.is_async(function):
        raise MisuseError(f"agent {name} must be an async function: async def {name}(run, ...)")
    signature = inspect.signature(function)
    if not signature.parameters:
        raise MisuseError(f"agent {name} needs the run as its first parameter")
    first, *rest = signature.parameters.values()
    is_typed = isinstance(first.annotation, type) and first.annotation is not first.empty
    if is_typed and cast("type[Any]", first.annotation).__name__ != "Run":
        raise MisuseError(
            f"the first parameter of agent {name} is {first}; it must be the run: holdfast.Run"
        )
    for parameter in rest:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise MisuseError(
                f"agent {name} takes {parameter}; its input needs named parameters that can be "
                "given by position"
            )
    return signature


def tools_by_name(tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> dict[str, Any]:
    """Tools under their names; a plain function is a tool that mutates."""
    if isinstance(tools, Tool):
        raise MisuseError("tools is a list of tools; give [tool]")
    found: dict[str, Tool[..., Any]] = {}
    for given in tools:
        made: Tool[..., Any] = cast(Any, given) if isinstance(given, Tool) else tool(given)
        if made.name in found:
            raise MisuseError(f"there are two tools named {made.name!r}")
        found[made.name] = made
    return found


class Agents:
    """The agents that are known here, by name."""

    def __init__(
        self,
        agents: Iterable[Agent[..., Any]] = (),
        *,
        built_in: Iterable[Agent[..., Any]] = (),
    ) -> None:
        if isinstance(agents, Agent):
            raise MisuseError("agents is a list of agents; give [agent]")
        self._by_name: dict[str, Agent[..., Any]] = {}
        self.built_in = {agent.name: agent for agent in built_in}
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent[..., Any]) -> None:
        """Know an agent; two different ones cannot have one name."""
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"{agent!r} is not an agent; make it one with @holdfast.agent")
        if agent.name in self.built_in:
            raise MisuseError(f"{agent.name!r} is an agent of Holdfast; choose another name")
        if self._by_name.setdefault(agent.name, agent) is not agent:
            raise MisuseError(f"there are two agents named {agent.name!r}; give one another name")

    def get(self, name: str) -> Agent[..., Any]:
        found = self._by_name.get(name) or self.built_in.get(name)
        if found is None:
            known = ", ".join(self.names) or "none"
            raise AgentNotFound(f"no agent {name!r} is known here; known are: {known}")
        return found

    @property
    def names(self) -> list[str]:
        """Those that users gave; the ones Holdfast has itself are beside them."""
        return sorted(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self.built_in


@overload
def agent(function: Callable[Concatenate["Run", P], Awaitable[R]], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    peers: Iterable[str | Peer | KnownAgent] = (),
    permission: Permission | None = None,
    loop_limit: int = 5,
    cadence: Cadence = "turn",
    version: str = "",
    model: str = "",
    prompt: str = "",
    on_change: OnChange = "continue",
    budget: Budget | None = None,
    reserve: Cost | None = None,
    handoff: HandoffPolicy | None = None,
    recovery: RecoveryPolicy | None = None,
) -> Callable[[Callable[Concatenate["Run", P], Awaitable[R]]], Agent[P, R]]: ...
def agent(function: Any = None, /, **options: Any) -> Any:
    """Make an async function of a run and its input an agent.

    `tools` are those that `run.tools` may call, `peers` other agents that it may call as tools
    named peer_NAME; `permission` may refuse a call; the same call more
    than `loop_limit` times in a row is refused (0: never). `cadence` says which ends of turns are
    stored. `version`, `model` and the digest of `prompt` are on record with each turn, and
    `on_change` says what happens to a run under which they or the tools have changed. A run that
    has no budget gets `budget`; `reserve` is what each call of a model may cost, by default the
    most that one has cost so far. `handoff`, a HandoffPolicy, says when a fresh context continues.
    """
    if function is None:
        return functools.partial(_make, **options)
    return _make(function, **options)


def _make(
    function: Callable[..., Any], *, name: str | None = None, **options: Any
) -> Agent[..., Any]:
    return Agent(function, name=name or function.__name__, rules=rules_of(**options))


def rules_of(
    *,
    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
    peers: Iterable[str | Peer | KnownAgent] = (),
    permission: Permission | None = None,
    loop_limit: int = 5,
    cadence: Cadence = "turn",
    version: str = "",
    model: str = "",
    prompt: str = "",
    on_change: OnChange = "continue",
    budget: Budget | None = None,
    reserve: Cost | None = None,
    handoff: HandoffPolicy | None = None,
    recovery: RecoveryPolicy | None = None,
) -> Rules:
    """What the options of an agent make."""
    callable_peers = peers_by_tool(peers)
    found = tools_by_name(tools)
    for name, each in callable_peers.items():
        if name in found:
            raise MisuseError(f"there is a tool named {name!r} and a peer of that name")
        found[name] = each.tool
    return Rules(
        tools=found,
        peers={name: each.peer for name, each in callable_peers.items()},
        permission=permission,
        loop_limit=loop_limit,
        cadence=cadences.check(cadence),
        versions=versions_of(found, version=version, model=model, prompt=prompt),
        on_change=check_on_change(on_change),
        budget=budget,
        reserve=reserve,
        handoff=check_handoff(handoff),
        prompt=prompt,
        recovery=check_policy(recovery),
    )
