"""How calls of a tool are made safe, and whether a tool can have such a policy."""

import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.engine.budgets.costs import Cost
from holdfast.errors import MisuseError

EffectClass = Literal["read", "idempotent", "mutate"]
CostPolicy = Cost | Callable[..., Cost]
InDoubt = Literal["ask", "fail", "retry"]
UndoPolicy = str | Callable[..., str]
KeyPolicy = Literal["args", "call", "tenant"] | Callable[..., str]

_EFFECTS: Final = ("read", "idempotent", "mutate")
_MAX_VERIFY_SECONDS: Final = 30 * 86_400.0


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """When a person must permit a call, and for how long a verdict counts.

    `when` is a rule over the arguments, by name; without one every call is asked for. `prompt`
    makes the question of the arguments. A request that nobody answers in `expires_seconds` is
    rejected; a verdict that was not used in `valid_seconds` is asked for again. `name` names the
    request for those who answer it, instead of the tool.
    """

    when: Callable[..., Any] | None = None
    prompt: Callable[..., str] | None = None
    expires_seconds: float | None = 7 * 86_400.0
    valid_seconds: float = 86_400.0
    name: str = ""


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls of a tool are made safe."""

    effect: EffectClass = "mutate"
    key: KeyPolicy | None = None
    verify: Callable[..., Any] | None = None
    not_done_on: tuple[type[BaseException], ...] = ()
    in_doubt: InDoubt = "ask"
    repeat: bool = False
    retries: int = 0
    limit_seconds: float = 60.0
    verify_seconds: float = 300.0
    """How long a `verify` that cannot tell is asked again before a person is asked."""
    max_result_chars: int = 50_000
    approval: Approval | None = None
    cost: CostPolicy | None = None
    undo: UndoPolicy = ""
    is_failure: Callable[[Any], bool] | None = None
    """Whether a result, or the text of one, is the tool's own word that it failed: it is on record
    as any other, and never asked for again, but reported as an error."""


class CheckedTool(Protocol):
    """What a policy is checked against."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...


def _check_known(
    tool: CheckedTool, rule: Callable[..., Any], what: str, known: Collection[str]
) -> None:
    """A misnamed parameter would otherwise be found after a crash, when the function is needed."""
    for parameter in inspect.signature(rule).parameters.values():
        is_optional = parameter.default is not parameter.empty
        is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if not (is_optional or is_open) and parameter.name not in known:
            raise MisuseError(
                f"{what} of {tool.name} takes {parameter.name!r}; it can be given: "
                f"{', '.join(sorted(known))}"
            )


def _check_takes_arguments(tool: CheckedTool, rule: Callable[..., Any], what: str) -> None:
    """A misnamed parameter would otherwise be found when the tool is called."""
    try:
        inspect.signature(rule).bind(**dict.fromkeys(tool.parameters))
    except TypeError as error:
        raise MisuseError(
            f"{what} of {tool.name} must take its arguments by name "
            f"({', '.join(tool.parameters)}): {error}"
        ) from error


def _check_cost(tool: CheckedTool, cost: CostPolicy | None) -> None:
    if cost is None or isinstance(cost, Cost):
        return
    if not callable(cost):
        raise MisuseError(f"cost of tool {tool.name} must be a holdfast.Cost or a function")
    _check_takes_arguments(tool, cost, "cost")


def _check_undo(tool: CheckedTool, undo: UndoPolicy) -> None:
    if isinstance(undo, str):
        return
    if not callable(undo):
        raise MisuseError(f"undo of tool {tool.name} must be a text or a function")
    _check_known(tool, undo, "undo", {*tool.parameters, "result"})


def _check_approval(tool: CheckedTool, approval: Approval) -> None:
    for name, rule in {"when": approval.when, "prompt": approval.prompt}.items():
        if rule is not None:
            _check_takes_arguments(tool, rule, f"{name} of the approval")
    for seconds in (approval.expires_seconds, approval.valid_seconds):
        if seconds is not None and seconds <= 0:
            raise MisuseError(f"the seconds of the approval of {tool.name} must be above 0")


def check_policy(tool: CheckedTool, policy: ToolPolicy) -> None:
    """Raise MisuseError if a tool cannot have this policy."""
    function = tool.function
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise MisuseError(f"tool {tool.name} yields; a tool returns its result")
    if policy.verify is not None:
        _check_known(tool, policy.verify, "verify", {*tool.parameters, "key"})
    if policy.effect not in _EFFECTS:
        listed = ", ".join(_EFFECTS)
        raise MisuseError(
            f"effect of tool {tool.name} must be one of {listed}, not {policy.effect!r}"
        )
    if policy.in_doubt not in ("ask", "fail", "retry"):
        raise MisuseError(f"in_doubt of tool {tool.name} must be ask, fail or retry")
    if not callable(policy.key) and policy.key not in (None, "args", "call", "tenant"):
        raise MisuseError(f"key of tool {tool.name} must be args, call, tenant or a function")
    if policy.effect == "read" and (policy.verify or policy.key or policy.repeat):
        raise MisuseError(f"tool {tool.name} only reads: it needs no key, verify or repeat")
    if policy.approval is not None:
        _check_approval(tool, policy.approval)
    _check_cost(tool, policy.cost)
    _check_undo(tool, policy.undo)
    if policy.limit_seconds <= 0 or policy.retries < 0 or policy.max_result_chars <= 0:
        raise MisuseError(f"the limits of tool {tool.name} must be above 0")
    if not 0 <= policy.verify_seconds <= _MAX_VERIFY_SECONDS:
        raise MisuseError(
            f"verify_seconds of tool {tool.name} must be 0 to {_MAX_VERIFY_SECONDS:,.0f}, not "
            f"{policy.verify_seconds}"
        )
