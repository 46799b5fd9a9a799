"""Tools: functions that a model may call, and what Holdfast must know to never repeat one blindly.

    read         no consequences: it is simply called again after a crash
    idempotent   calling it twice is the same as once: its intent and result are on record
    mutate       consequences outside: after a crash nobody knows, so `verify` or a person is asked

A tool without a declared effect is `mutate`: the one that is safe to forget.
"""

import copy
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast import codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.tool_arguments import Key, SignatureArguments, ToolArguments
from holdfast.agents.definitions.tool_policy import (
    Approval,
    CostPolicy,
    EffectClass,
    InDoubt,
    KeyPolicy,
    ToolPolicy,
    UndoPolicy,
    check_policy,
)
from holdfast.agents.exits.containment import exits_as_errors, raise_exit_as_error
from holdfast.agents.exits.threads import call_in_thread
from holdfast.errors import MisuseError, NotDone
from holdfast.kernel import effects
from holdfast.telemetry import log

_MUTATING: Final = frozenset({"mutate", "write"})

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Happened(msgspec.Struct, Generic[R], frozen=True):
    """What `verify` returns when the effect is there: the result the tool would have returned."""

    result: R


Verdict = Happened[Any] | NotDone


class Arguments(msgspec.Struct, frozen=True):
    """Arguments that fit a tool's signature: as its function takes them, and their digest.

    Each reader of the values gets a separate copy: what was approved and recorded is what the
    tool is given, whatever others do to theirs.
    """

    given: dict[str, Any]
    digest: bytes

    @property
    def values(self) -> dict[str, Any]:
        return copy.deepcopy(self.given)


class CallPosition(msgspec.Struct, frozen=True):
    """Where in its lineage a call is: the same place again after a crash, and in every run that
    goes back to before it."""

    root_id: str
    turn: int
    call_id: str
    number: str


class Tool(Generic[P, R]):
    """A function with a name, a schema, and a policy. Calling it calls the function, nothing else;
    `run.tools` and `run.call` make calls that are on the record."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        description: str,
        policy: ToolPolicy,
        takes: ToolArguments | None = None,
    ) -> None:
        self.function = function
        self.name = names.check(name, what="the name of a tool")
        self.description = description
        self.policy = policy
        self.is_blocking = not type_conversion.is_async(function)
        self.takes: ToolArguments = takes or SignatureArguments(function, name)
        check_policy(self, policy)
        functools.update_wrapper(self, function, updated=())
        self.input_schema = self.takes.schema

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.policy.effect})>"

    @functools.cached_property
    def returns(self) -> Any:
        """The type of its result; Any if it is not declared."""
        hints = type_conversion.hints_of(self.function, what=f"tool {self.name}")
        return hints.get("return", Any)

    @functools.cached_property
    def digest(self) -> bytes:
        """The digest of what a caller must know of it: name, arguments, what repeating it does."""
        return codec.canonical_digest([self.name, self.input_schema, self.policy.effect])

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return self.takes.parameters

    def parse(self, args: Mapping[str, object] | str) -> Arguments:
        """Check arguments of a model; raises msgspec.ValidationError saying what is wrong."""
        given = msgspec.json.decode(args) if isinstance(args, str) else dict(args)
        return self._arguments(self.takes.parse(given))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Arguments as they are given in Python."""
        return self._arguments(self.takes.bind(args, kwargs))

    def _arguments(self, values: dict[str, Any]) -> Arguments:
        """Leave defaults out of the digest: a parameter that is added later changes no key."""
        own = copy.deepcopy(values)
        explicit = {name: v for name, v in own.items() if not self.takes.is_default(name, v)}
        return Arguments(own, codec.canonical_digest(explicit, name=f"arguments of {self.name}"))

    def key_for(self, arguments: Arguments, place: CallPosition) -> str:
        """The key that names the operation: nothing else with this key is ever done."""
        policy = self.policy.key or ("call" if self.policy.effect == "idempotent" else "args")
        if callable(policy):
            own = policy(**arguments.values)
            return names.check(f"{self.name}:{own}", what=f"the key of {self.name}")
        if self.policy.repeat or (policy == "call" and not place.call_id):
            return _digest(place.root_id, place.turn, self.name, arguments.digest, place.number)
        if policy == "tenant":
            return _digest(self.name, arguments.digest)
        if policy == "args":
            return effects.key_of(place.root_id, self.name, arguments.digest)
        # Some models number their calls from 1 in every reply: the id alone does not name a call.
        # But equal ids in one turn are one call of a model, which the agent's code may try again.
        where = (place.root_id, place.turn)
        if self.policy.effect == "idempotent":
            where = (place.root_id, place.turn, place.number)
        return _digest(*where, self.name, arguments.digest, place.call_id)

    async def invoke(self, arguments: Arguments, key: str) -> Any:
        """Call the function; one that blocks runs in a thread, and is waited for."""
        values = arguments.values
        if self.takes.key_parameter:
            values[self.takes.key_parameter] = key if isinstance(key, Key) else Key(key)
        return await _call(self.function, values, is_blocking=self.is_blocking)

    async def verify(self, arguments: Arguments, key: str) -> Verdict | None:
        """Ask outside whether the effect is there; None if nobody can tell."""
        function = self.policy.verify
        if function is None:
            return None
        given = arguments.values | {"key": Key(key)}
        try:
            verdict = await _call(
                function,
                _wanted(function, given),
                is_blocking=not type_conversion.is_async(function),
            )
        except NotDone as not_done:
            return not_done
        if not isinstance(verdict, Happened | NotDone):
            raise MisuseError(
                f"verify of {self.name} returned {type(verdict).__name__}; it must return "
                "holdfast.Happened(result) or holdfast.NotDone(), or raise if it cannot tell"
            )
        return cast(Verdict, verdict)

    def undo_of(self, arguments: object, result: object = None) -> str:
        """Return how to undo a call, according to its tool; empty if that is unknown.

        `arguments` and `result` are as the record has them. A hint that fails is ignored: it must
        not keep anybody from continuing.
        """
        undo = self.policy.undo
        if isinstance(undo, str):
            return undo
        given = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
        try:
            with exits_as_errors():
                return str(undo(**_wanted(undo, given | {"result": result})))
        except Exception as error:
            log.warning("undo of tool %s failed: %r", self.name, error)
            return ""


def _wanted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes."""
    wanted = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
    return given if takes_all else {n: v for n, v in given.items() if n in wanted}


async def _call(function: Callable[..., Any], values: dict[str, Any], *, is_blocking: bool) -> Any:
    try:
        if not is_blocking:
            return await cast("Awaitable[Any]", function(**values))
        return await call_in_thread(function, **values)
    except BaseException as error:
        raise_exit_as_error(error)
        raise


def _digest(*material: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(material)).hexdigest()


def effect_of(side_effects: Collection[str]) -> EffectClass:
    """The class of a tool that is described by a set of side effects."""
    return "mutate" if _MUTATING & set(side_effects) else "read"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectClass | None = None,
    side_effects: Collection[str] | None = None,
    key: KeyPolicy | None = None,
    verify: Callable[..., Any] | None = None,
    not_done_on: tuple[type[BaseException], ...] = (),
    in_doubt: InDoubt = "ask",
    repeat: bool = False,
    retries: int = 0,
    limit_seconds: float = 60.0,
    verify_seconds: float = 300.0,
    max_result_chars: int = 50_000,
    approval: bool | Callable[..., Any] | Approval = False,
    cost: CostPolicy | None = None,
    undo: UndoPolicy = "",
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a function a tool.

    `effect` says what repeating it would do (`mutate` unless declared); `verify` finds out whether
    a call happened, and is asked again for `verify_seconds` while it cannot tell; `not_done_on` are
    errors that mean it did not; `in_doubt` is what happens when nobody can tell; `key` and `repeat`
    say which calls are the same operation; `approval` (True, a rule over the arguments, or an
    Approval) lets a person permit each call first; `cost` is drawn on the run's budgets before each
    call, a function of the arguments if it depends on them; `undo` tells people how to undo a call,
    a text or a function of the arguments and the `result`.
    """
    if function is None:
        return functools.partial(make_tool, **options)
    return make_tool(function, **options)


def make_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectClass | None = None,
    side_effects: Collection[str] | None = None,
    approval: bool | Callable[..., Any] | Approval = False,
    takes: ToolArguments | None = None,
    **policy: Any,
) -> Tool[..., Any]:
    """A tool of a function; what it takes is its signature unless that is given."""
    if not callable(function):
        raise MisuseError(f"{function!r} is not a function; write @holdfast.tool(effect=...)")
    if side_effects is not None:
        if effect is not None:
            raise MisuseError("give either effect or side_effects")
        effect = effect_of(side_effects)
    return Tool(
        function,
        name=name or function.__name__,
        description=inspect.cleandoc(description or function.__doc__ or ""),
        policy=ToolPolicy(effect=effect or "mutate", approval=_approval(approval), **policy),
        takes=takes,
    )


def _approval(given: object) -> Approval | None:
    if isinstance(given, Approval) or given is None:
        return given
    if isinstance(given, bool):
        return Approval() if given else None
    if callable(given):
        return Approval(when=given)
    raise MisuseError(f"approval is True, a rule over the arguments or an Approval, not {given!r}")


def text_of(result: object) -> str:
    """Return a result as a model reads it: a string unchanged, anything else as JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""
    plain = codec.decode(codec.encode(result, name="result"))
    return msgspec.json.encode(plain).decode()
