"""Tools that never fire twice: `create_agent(model, tools, middleware=[durable_tools(saver)])`.

Put it last in the list of middlewares: it then sees the tool that is really called, and what others
retry is not made again. Without LangChain, `durable_tools(saver).node(tools)` is a ToolNode.
"""

import asyncio
import functools
import importlib.util
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest

from holdfast import faults
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tool_policy import EffectClass
from holdfast.agents.definitions.tools import Happened
from holdfast.agents.effects import doubt
from holdfast.agents.exits.threads import call_in_thread
from holdfast.agents.turn.calls import usable_id
from holdfast.errors import MisuseError, NotDone
from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.thread import Thread
from holdfast.integrations.langgraph.tools import call_watch
from holdfast.integrations.langgraph.tools.call_watch import CallWatch
from holdfast.integrations.langgraph.tools.replies import GraphToolCall, Reply
from holdfast.integrations.langgraph.tools.tool_calls import (
    Calling,
    Flow,
    GraphToolPolicy,
    Made,
    Make,
    PersonVerdict,
    Step,
    StoreStep,
    Unknown,
    asked_in,
    ordinal_of,
)
from holdfast.kernel.effects import Effect

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

    Middleware = AgentMiddleware[Any, Any, Any]
else:
    Middleware = object

Verify = Callable[[Key, str, dict[str, Any]], Any]
Named = Collection[str | BaseTool]

METADATA: Final = "holdfast"
"""The key in a tool's `metadata` that may hold its policy."""

_key: ContextVar[str] = ContextVar("holdfast_key")


def holdfast_key() -> Key:
    """The idempotency key of the call that runs now: pass it on to the vendor.

    It is the same when the call is made again after a crash.
    """
    try:
        return Key(_key.get())
    except LookupError:
        raise MisuseError(
            "no durable call runs here; holdfast_key() is for tools that `durable_tools` wraps"
        ) from None


def durable_tools(
    saver: HoldfastSaver,
    *,
    read: Named = (),
    idempotent: Named = (),
    repeat: Named = (),
    not_done_on: tuple[type[BaseException], ...] = (),
    verify: Verify | None = None,
    limit_seconds: float = 300,
    unknown: Unknown = "ask",
) -> "DurableTools":
    """A middleware that puts each call of a tool on record before it is made, and its reply after.

    A tool is taken to have consequences unless it is named in `read` (none, so not recorded) or
    `idempotent` (safe to repeat), or its own `metadata["holdfast"]` says so. A call is made once,
    whatever ids the model gives it when it is asked again; one that the model makes after it has
    seen the reply is another call. Calls of tools in `repeat` differ by their ids alone.
    After a crash `verify(key, tool, args)` says whether a call
    happened (Happened, NotDone, or None); without an answer a person is asked by an interrupt, or
    the model gets a report (`unknown="report"`).
    """
    if not isinstance(saver, HoldfastSaver):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(
            f"durable_tools needs the HoldfastSaver that the graph is compiled with, not {saver!r}"
        )
    options = _ToolOptions(
        effects={
            **dict.fromkeys(_names(read), "read"),
            **dict.fromkeys(_names(idempotent), "idempotent"),
        },
        repeat=frozenset(_names(repeat)),
        verify=verify,
        default=GraphToolPolicy(
            limit_seconds=limit_seconds, unknown=unknown, not_done_on=not_done_on
        ),
    )
    _check(options)
    return _kind()(saver, options)


class _ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    effects: dict[str, Any]
    repeat: frozenset[str]
    verify: Verify | None
    default: GraphToolPolicy

    def policy_for(self, name: str, tool: BaseTool | None) -> GraphToolPolicy:
        """Return a tool's policy.

        The lists here override the tool's metadata for `effect` and `repeat`. Otherwise the
        metadata overrides the defaults here, also for `limit_seconds` and `unknown`.
        """
        policy = _own_policy(tool, self.default)
        if name in self.effects:
            policy = msgspec.structs.replace(policy, effect=self.effects[name])
        if name in self.repeat:
            policy = msgspec.structs.replace(policy, repeat=True)
        return policy


class DurableTools(Middleware):
    """What `durable_tools` gives: a middleware of LangChain, or the wrappers of a ToolNode."""

    tools: Sequence[BaseTool] = ()

    def __init__(self, saver: HoldfastSaver, options: _ToolOptions) -> None:
        super().__init__()
        self._saver = saver
        self._options = options
        self._said: dict[str, PersonVerdict] = {}

    @property
    def name(self) -> str:
        return "durable_tools"

    def node(self, tools: Sequence[Any], **options: Any) -> ToolNode:
        """A ToolNode whose calls are durable."""
        return ToolNode(
            tools,
            wrap_tool_call=self.wrap_tool_call,
            awrap_tool_call=self.awrap_tool_call,
            **options,
        )

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Reply]
    ) -> Reply:
        """Make a call of a tool, unless it was made before."""
        prepared = self._prepare(request)
        if prepared is None:
            return handler(request)
        calling, watched = prepared
        driver = _Blocking(self._saver, calling, self._options.verify)
        return driver.drive(calling.steps(), lambda: handler(watched))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Reply]]
    ) -> Reply:
        """Make a call of a tool, unless it was made before."""
        prepared = self._prepare(request)
        if prepared is None:
            return await handler(request)
        calling, watched = prepared
        driver = _Async(self._saver, calling, self._options.verify, tool=request.tool)
        return await driver.drive(calling.steps(), lambda: handler(watched))

    def _prepare(self, request: ToolCallRequest) -> tuple[Calling, ToolCallRequest] | None:
        """The call, and the request that makes it; None if it is not to be recorded."""
        tool, asked = request.tool, request.tool_call
        policy = self._options.policy_for(asked["name"], tool)
        if tool is None or policy.effect == "read":
            return None
        call = GraphToolCall(asked["name"], dict(asked["args"]), usable_id(asked.get("id") or ""))
        config = cast("dict[str, Any]", cast(Any, request).runtime.config)
        conf = config.get("configurable", {})
        if not conf.get("thread_id"):
            raise MisuseError(
                f"{call.tool} has consequences, and needs a thread to be recorded in: give "
                'config={"configurable": {"thread_id": "..."}}'
            )
        watch = CallWatch()
        messages = _messages_in(request.state, asked.get("id") or "")
        calling = Calling(
            call=call,
            policy=policy,
            watch=watch,
            said=self._said,
            serde=self._saver.serde,
            config=config,
            thread=Thread(self._saver.host, str(conf["thread_id"])),
            ordinal=ordinal_of(messages, call),
            asked=asked_in(messages, call),
            is_alone=_is_alone(config, messages),
        )
        return calling, request.override(tool=watch.over(tool))


class _Driver:
    """Does what a flow asks for."""

    def __init__(self, saver: HoldfastSaver, calling: Calling, verify: Verify | None) -> None:
        self._saver = saver
        self._calling = calling
        self._verify = verify

    def _question(self, key: str) -> tuple[Key, str, dict[str, Any]]:
        call = self._calling.call
        return Key(key), call.tool, dict(call.args)

    def _judged(self, verdict: object) -> Happened[Any] | NotDone | None:
        if verdict is None or isinstance(verdict, Happened | NotDone):
            return cast("Happened[Any] | NotDone | None", verdict)
        raise MisuseError(
            f"verify returned {type(verdict).__name__} for {self._calling.call.tool}; it must "
            "return holdfast.Happened(result), holdfast.NotDone(), or None if it cannot tell"
        )

    def _cannot_tell(self, effect: Effect, error: Exception) -> None:
        reason = f"verify raised {type(error).__name__}: {error}"
        then = "It is asked again when the graph goes on"
        doubt.log_cannot_tell(effect.run_id, effect, reason, then=then)


class _Blocking(_Driver):
    def drive(self, flow: Flow, make: Callable[[], Reply]) -> Reply:
        try:
            step = next(flow)
            while True:
                try:
                    outcome = self._do(step, make)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            return end.value

    def _do(self, step: Step, make: Callable[[], Reply]) -> Any:
        if isinstance(step, StoreStep):
            return self._saver.call(step.function, *step.args, **step.kwargs)
        if isinstance(step, Make):
            return self._make(step, make)
        return self._ask(step.effect)

    def _make(self, step: Make, make: Callable[[], Reply]) -> Made:
        reset = _key.set(step.key)
        try:
            faults.point("tool.before_call")
            reply = make()
            faults.point("tool.after_call")
            return Made(reply)
        except BaseException as error:
            return Made(error=error)
        finally:
            _key.reset(reset)

    def _ask(self, effect: Effect) -> Happened[Any] | NotDone | None:
        verify = self._verify
        if verify is None:
            return None
        faults.point("tool.before_verify")
        try:
            verdict = verify(*self._question(effect.key))
            if inspect.isawaitable(verdict):
                verdict = self._saver.call(_awaited, verdict)
        except NotDone as not_done:
            return not_done
        except Exception as error:
            return self._cannot_tell(effect, error)
        return self._judged(verdict)


class _Async(_Driver):
    def __init__(
        self,
        saver: HoldfastSaver,
        calling: Calling,
        verify: Verify | None,
        *,
        tool: BaseTool | None,
    ) -> None:
        super().__init__(saver, calling, verify)
        can_end = tool is not None and call_watch.is_async(tool)
        self._limit = calling.policy.limit_seconds if can_end else None

    async def drive(self, flow: Flow, make: Callable[[], Awaitable[Reply]]) -> Reply:
        try:
            step = next(flow)
            while True:
                try:
                    outcome = await self._do(step, make)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            return end.value

    async def _do(self, step: Step, make: Callable[[], Awaitable[Reply]]) -> Any:
        if isinstance(step, StoreStep):
            return await self._saver.acall(step.function, *step.args, **step.kwargs)
        if isinstance(step, Make):
            return await self._make(step, make)
        return await self._ask(step.effect)

    async def _make(self, step: Make, make: Callable[[], Awaitable[Reply]]) -> Made:
        reset = _key.set(step.key)
        try:
            faults.point("tool.before_call")
            async with asyncio.timeout(self._limit):
                reply = await make()
            faults.point("tool.after_call")
            return Made(reply)
        except BaseException as error:
            return Made(error=error)
        finally:
            _key.reset(reset)

    async def _ask(self, effect: Effect) -> Happened[Any] | NotDone | None:
        verify = self._verify
        if verify is None:
            return None
        faults.point("tool.before_verify")
        try:
            if type_conversion.is_async(verify):
                verdict = await verify(*self._question(effect.key))
            else:
                verdict = await call_in_thread(verify, *self._question(effect.key))
        except NotDone as not_done:
            return not_done
        except Exception as error:
            return self._cannot_tell(effect, error)
        return self._judged(verdict)


async def _awaited(verdict: Awaitable[Any]) -> Any:
    return await verdict


@functools.cache
def _kind() -> type[DurableTools]:
    """The class to make: one of LangChain's middlewares too, if LangChain is installed."""
    if importlib.util.find_spec("langchain") is None:
        return DurableTools
    from langchain.agents.middleware import AgentMiddleware

    return cast("type[DurableTools]", type("DurableTools", (DurableTools, AgentMiddleware), {}))


def _names(given: Named) -> Iterable[str]:
    if isinstance(given, str):
        raise MisuseError(f"give a list of tools or of their names, not the text {given!r}")
    return [each if isinstance(each, str) else each.name for each in given]


def _own_policy(tool: BaseTool | None, default: GraphToolPolicy) -> GraphToolPolicy:
    """Return the default policy, changed by the tool's metadata."""
    own = ((tool and tool.metadata) or {}).get(METADATA)
    if own is None:
        return default
    try:
        parsed = msgspec.convert(own, _OwnPolicy, strict=True)
    except msgspec.ValidationError as error:
        raise MisuseError(
            f'metadata["{METADATA}"] of tool {tool and tool.name} cannot be used: {error}. It is '
            'a dict such as {"effect": "read"}, with effect, repeat, limit_seconds and unknown'
        ) from error
    given = {
        name: value for name, value in msgspec.structs.asdict(parsed).items() if value is not None
    }
    policy = msgspec.structs.replace(default, **given)
    _check_policy(policy, f"tool {tool and tool.name}")
    return policy


class _OwnPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effect: EffectClass | None = None
    repeat: bool | None = None
    limit_seconds: float | None = None
    unknown: Unknown | None = None


def _check(options: _ToolOptions) -> None:
    _check_policy(options.default, "durable_tools")
    reading = {name for name, effect in options.effects.items() if effect == "read"}
    if both := sorted(reading & options.repeat):
        raise MisuseError(f"{both[0]} only reads: it may be called again anyway")


def _check_policy(policy: GraphToolPolicy, what: str) -> None:
    if policy.unknown not in get_args(Unknown):
        raise MisuseError(f"unknown of {what} must be ask or report, not {policy.unknown!r}")
    if policy.limit_seconds <= 0:
        raise MisuseError(f"limit_seconds of {what} must be above 0")


def _messages_in(state: Any, call_id: str) -> Sequence[Any]:
    """The messages of a state, wherever they lie in it: those in which the call is asked for."""
    parts: list[Any] = [state]
    if isinstance(state, dict):
        parts = list(cast("dict[str, Any]", state).values())
    elif hasattr(state, "__dict__"):
        parts = list(cast("dict[str, Any]", vars(state)).values())
    for part in parts:
        if isinstance(part, list) and _asks_for(cast("list[Any]", part), call_id):
            return cast("list[Any]", part)
    return ()


def _asks_for(messages: list[Any], call_id: str) -> bool:
    asked = (getattr(message, "tool_calls", None) or () for message in reversed(messages))
    return any(call.get("id") == call_id for calls in asked for call in calls)


def _is_alone(config: dict[str, Any], messages: Sequence[Any]) -> bool:
    """Whether the task of this call makes no other one: agents send each call to its own task."""
    path = config.get("metadata", {}).get("langgraph_path") or ("",)
    if path[0] == "__pregel_push":
        return True
    asked: list[Any] = [m.tool_calls for m in messages if getattr(m, "tool_calls", None)]
    return not asked or len(asked[-1]) <= 1
