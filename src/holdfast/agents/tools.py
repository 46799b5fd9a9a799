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
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast import codec, names
from holdfast.agents import shapes
from holdfast.agents.containing import contained
from holdfast.agents.threads import call_in_thread
from holdfast.engine.costs import Cost
from holdfast.errors import MisuseError, NotDone, UnsupportedValue
from holdfast.kernel import effects

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

EffectClass = Literal["read", "idempotent", "mutate"]
CostPolicy = Cost | Callable[..., Cost]
InDoubt = Literal["ask", "fail", "retry"]
KeyPolicy = Literal["args", "call", "tenant"] | Callable[..., str]

_EFFECTS: Final = ("read", "idempotent", "mutate")
_MUTATING: Final = frozenset({"mutate", "write"})


class Key(str):
    """The idempotency key of a call. Pass it on to the vendor: that closes the last window."""

    __slots__ = ()


class Happened(msgspec.Struct, Generic[R], frozen=True):
    """What `verify` returns when the effect is there: the result the tool would have returned."""

    result: R


Verdict = Happened[Any] | NotDone


class Arguments(msgspec.Struct, frozen=True):
    """Arguments that fit a tool's signature: as its function takes them, and their digest.

    Whoever asks for the values gets a copy of its own: what was approved and recorded is what the
    tool is given, whatever others do to theirs.
    """

    given: dict[str, Any]
    digest: bytes

    @property
    def values(self) -> dict[str, Any]:
        return copy.deepcopy(self.given)


class Place(msgspec.Struct, frozen=True):
    """Where in a run a call stands: the same place again after a crash."""

    root_id: str
    run_id: str
    version: int
    call_id: str
    number: str


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """When a person must permit a call, and for how long a verdict counts.

    `when` is a rule over the arguments, by name; without one every call is asked for. `prompt`
    makes the question of the arguments. A request that nobody answers in `expires_seconds` is
    rejected; a verdict that was not used in `valid_seconds` is asked for again. `name` names the
    request for whoever answers it, instead of the tool.
    """

    when: Callable[..., Any] | None = None
    prompt: Callable[..., str] | None = None
    expires_seconds: float | None = 7 * 86_400.0
    valid_seconds: float = 86_400.0
    name: str = ""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls of a tool are made safe."""

    effect: EffectClass = "mutate"
    key: KeyPolicy | None = None
    verify: Callable[..., Any] | None = None
    not_done_on: tuple[type[BaseException], ...] = ()
    in_doubt: InDoubt = "ask"
    repeat: bool = False
    retries: int = 0
    limit_seconds: float = 60.0
    max_result_chars: int = 50_000
    approval: Approval | None = None
    cost: CostPolicy | None = None


class Tool(Generic[P, R]):
    """A function with a name, a schema, and a policy. Calling it calls the function, nothing else;
    `run.tools` and `run.call` make calls that are on the record."""

    def __init__(
        self, function: Callable[P, R], *, name: str, description: str, policy: Policy
    ) -> None:
        self.function = function
        self.name = names.check(name, what="the name of a tool")
        self.description = description
        self.policy = policy
        self.is_blocking = not shapes.is_async(function)
        self._key_parameter, self._shape = _read_signature(function, name)
        _check(self, policy)
        functools.update_wrapper(self, function, updated=())
        self.input_schema = _schema(self._shape, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.policy.effect})>"

    @functools.cached_property
    def returns(self) -> Any:
        """The type of its result; Any if it is not declared."""
        return self._hints.get("return", Any)

    @functools.cached_property
    def digest(self) -> bytes:
        """The digest of what a caller must know of it: name, arguments, what repeating it does."""
        return codec.canonical_digest([self.name, self.input_schema, self.policy.effect])

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return self._shape.__struct_fields__

    def parse(self, args: Mapping[str, object] | str) -> Arguments:
        """Check arguments against the signature; raises msgspec.ValidationError saying what."""
        given = msgspec.json.decode(args) if isinstance(args, str) else dict(args)
        made = shapes.parse(given, self._shape)
        return self._arguments({name: getattr(made, name) for name in made.__struct_fields__})

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Arguments as they are given in Python."""
        if self._key_parameter in kwargs:
            raise MisuseError(f"{self._key_parameter} of {self.name} is given by Holdfast")
        whole = self._signature
        visible = [p for p in whole.parameters.values() if p.name != self._key_parameter]
        try:
            bound = whole.replace(parameters=visible).bind(*args, **kwargs)
        except TypeError as error:
            raise MisuseError(f"{self.name}() cannot be called like this: {error}") from error
        bound.apply_defaults()
        return self._arguments({name: self._typed(name, v) for name, v in bound.arguments.items()})

    def _typed(self, name: str, value: object) -> Any:
        """A value as its parameter declares it: 5 is 5.0 for a float, as it is for a model."""
        kind = self._hints.get(name, Any)
        if kind is Any:
            return value
        what = f"{name} of {self.name}"
        try:
            return shapes.convert(shapes.plain(value, what=what), kind, what=what)
        except UnsupportedValue as error:
            raise MisuseError(f"{self.name}() cannot be called like this: {error}") from error

    def _arguments(self, values: dict[str, Any]) -> Arguments:
        """A parameter that has its default is not told: one that is added later changes no key."""
        own = copy.deepcopy(values)
        told = {name: value for name, value in own.items() if not self._is_default(name, value)}
        return Arguments(own, codec.canonical_digest(told, name=f"arguments of {self.name}"))

    def _is_default(self, name: str, value: object) -> bool:
        parameter = self._signature.parameters[name]
        if parameter.default is parameter.empty:
            return False
        what = f"{name} of {self.name}"
        return codec.encode(value, name=what) == codec.encode(parameter.default, name=what)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return shapes.hints_of(self.function, what=f"tool {self.name}")

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def key_for(self, arguments: Arguments, place: Place) -> str:
        """The key that names the operation: nothing else with this key is ever done."""
        policy = self.policy.key or ("call" if self.policy.effect == "idempotent" else "args")
        if callable(policy):
            own = policy(**arguments.values)
            return names.check(f"{self.name}:{own}", what=f"the key of {self.name}")
        if self.policy.repeat or (policy == "call" and not place.call_id):
            return _digest(place.run_id, place.version, self.name, arguments.digest, place.number)
        if policy == "tenant":
            return _digest(self.name, arguments.digest)
        if policy == "args":
            return effects.key_of(place.root_id, self.name, arguments.digest)
        where = (place.root_id,)
        if self.policy.effect == "idempotent":
            # Some models number their calls from 1 in every reply.
            where = (place.run_id, place.version, place.number)
        return _digest(*where, self.name, arguments.digest, place.call_id)

    async def invoke(self, arguments: Arguments, key: str) -> Any:
        """Call the function; one that blocks runs in a thread, and is waited for."""
        values = arguments.values
        if self._key_parameter:
            values = values | {self._key_parameter: Key(key)}
        return await _call(self.function, values, is_blocking=self.is_blocking)

    async def verify(self, arguments: Arguments, key: str) -> Verdict | None:
        """Ask outside whether the effect is there; None if nobody can tell."""
        function = self.policy.verify
        if function is None:
            return None
        given = arguments.values | {"key": Key(key)}
        wanted = inspect.signature(function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
        values = given if takes_all else {n: v for n, v in given.items() if n in wanted}
        try:
            verdict = await _call(function, values, is_blocking=not shapes.is_async(function))
        except NotDone as not_done:
            return not_done
        if not isinstance(verdict, Happened | NotDone):
            raise MisuseError(
                f"verify of {self.name} returned {type(verdict).__name__}; it must return "
                "holdfast.Happened(result) or holdfast.NotDone(), or raise if it cannot tell"
            )
        return cast(Verdict, verdict)


async def _call(function: Callable[..., Any], values: dict[str, Any], *, is_blocking: bool) -> Any:
    with contained():
        if not is_blocking:
            return await cast("Awaitable[Any]", function(**values))
        return await call_in_thread(function, **values)


def _digest(*material: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(material)).hexdigest()


def _read_signature(function: Callable[..., Any], name: str) -> tuple[str, type[msgspec.Struct]]:
    """The parameter that takes the key, if any, and the struct of all others."""
    hints = shapes.hints_of(function, what=f"tool {name}")
    key_parameter = ""
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name, Any)
        if kind is Key:
            key_parameter = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise MisuseError(f"tool {name} takes {parameter}; a model needs named parameters")
        elif parameter.name == "self" and parameter.name not in hints:
            raise MisuseError(
                f"tool {name} is a method; make a tool of a bound one: holdfast.tool(object.{name})"
            )
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise MisuseError(f"{parameter.name} of tool {name} cannot be given by name")
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            default = msgspec.field(default_factory=lambda d=parameter.default: d)
            fields.append((parameter.name, kind, default))
    return key_parameter, msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _schema(shape: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments, for a model."""
    try:
        found = shapes.schema(shape)
    except TypeError as error:
        raise MisuseError(
            f"a parameter of tool {name} has a type that a model cannot give: {error}. Use plain "
            "types, dataclasses, enums, dates or Pydantic models"
        ) from error
    return {key: value for key, value in found.items() if key != "title"}


def _check_verify(tool: Tool[..., Any], verify: Callable[..., Any], known: Collection[str]) -> None:
    """A misnamed parameter would otherwise be found after a crash, when `verify` is needed."""
    for parameter in inspect.signature(verify).parameters.values():
        is_optional = parameter.default is not parameter.empty
        is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if not (is_optional or is_open) and parameter.name not in known:
            raise MisuseError(
                f"verify of {tool.name} takes {parameter.name!r}; it can be given: "
                f"{', '.join(sorted(known))}"
            )


def _check_takes_arguments(tool: Tool[..., Any], rule: Callable[..., Any], what: str) -> None:
    """A misnamed parameter would otherwise be found when the tool is called."""
    try:
        inspect.signature(rule).bind(**dict.fromkeys(tool.parameters))
    except TypeError as error:
        raise MisuseError(
            f"{what} of {tool.name} must take its arguments by name "
            f"({', '.join(tool.parameters)}): {error}"
        ) from error


def _check_cost(tool: Tool[..., Any], cost: CostPolicy | None) -> None:
    if cost is None or isinstance(cost, Cost):
        return
    if not callable(cost):
        raise MisuseError(f"cost of tool {tool.name} must be a holdfast.Cost or a function")
    _check_takes_arguments(tool, cost, "cost")


def _check_approval(tool: Tool[..., Any], approval: Approval) -> None:
    for name, rule in {"when": approval.when, "prompt": approval.prompt}.items():
        if rule is not None:
            _check_takes_arguments(tool, rule, f"{name} of the approval")
    for seconds in (approval.expires_seconds, approval.valid_seconds):
        if seconds is not None and seconds <= 0:
            raise MisuseError(f"the seconds of the approval of {tool.name} must be above 0")


def _check(tool: Tool[..., Any], policy: Policy) -> None:
    function = tool.function
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise MisuseError(f"tool {tool.name} yields; a tool returns its result")
    if policy.verify is not None:
        _check_verify(tool, policy.verify, {*tool.parameters, "key"})
    if policy.effect not in _EFFECTS:
        raise MisuseError(f"effect of tool {tool.name} must be one of {', '.join(_EFFECTS)}")
    if policy.in_doubt not in ("ask", "fail", "retry"):
        raise MisuseError(f"in_doubt of tool {tool.name} must be ask, fail or retry")
    if not callable(policy.key) and policy.key not in (None, "args", "call", "tenant"):
        raise MisuseError(f"key of tool {tool.name} must be args, call, tenant or a function")
    if policy.effect == "read" and (policy.verify or policy.key or policy.repeat):
        raise MisuseError(f"tool {tool.name} only reads: it needs no key, verify or repeat")
    if policy.approval is not None:
        _check_approval(tool, policy.approval)
    _check_cost(tool, policy.cost)
    if policy.limit_seconds <= 0 or policy.retries < 0 or policy.max_result_chars <= 0:
        raise MisuseError(f"the limits of tool {tool.name} must be above 0")


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
    max_result_chars: int = 50_000,
    approval: bool | Callable[..., Any] | Approval = False,
    cost: CostPolicy | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a function a tool.

    `effect` says what repeating it would do (`mutate` unless declared); `verify` finds out whether
    a call happened; `not_done_on` are errors that mean it did not; `in_doubt` is what happens when
    nobody can tell; `key` and `repeat` say which calls are the same operation; `approval` (True, a
    rule over the arguments, or an Approval) lets a person permit each call first; `cost` is drawn
    on the run's budgets before each call, a function of the arguments if it depends on them.
    """
    if function is None:
        return functools.partial(_make, **options)
    return _make(function, **options)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectClass | None = None,
    side_effects: Collection[str] | None = None,
    approval: bool | Callable[..., Any] | Approval = False,
    **policy: Any,
) -> Tool[..., Any]:
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
        policy=Policy(effect=effect or "mutate", approval=_approval(approval), **policy),
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
    """A result as a model reads it: a string as it is, anything else as JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""
    plain = codec.decode(codec.encode(result, name="result"))
    return msgspec.json.encode(plain).decode()
