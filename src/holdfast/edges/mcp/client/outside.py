"""Tools of other MCP servers as tools of Holdfast: on record, and never repeated blindly.

a result                           completed
a result that says it is an error  completed, and reported as an error (see `errors`)
refused before it was carried out  not done
nothing could be sent              not done
no answer to what was sent         nobody knows: verify, or a person
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args, overload

import mcp_types as types
import msgspec
from mcp.client.stdio import StdioServerParameters

from holdfast.agents.definitions.tool_arguments import JsonSchemaArguments, Key
from holdfast.agents.definitions.tool_policy import EffectClass
from holdfast.agents.definitions.tools import Tool, make_tool
from holdfast.edges.mcp.client.connection import (
    ConnectionOptions,
    Lost,
    McpConnections,
    ServerRefused,
    Unsent,
)
from holdfast.edges.mcp.client.wires import server_of
from holdfast.edges.mcp.meta import CALL_ID, KEY, RUN_ID
from holdfast.errors import McpUnavailable, MisuseError, NotDone

Errors = Literal["answer", "not_done", "unknown"]

_FAILED: Final = "the server answered with an error: "
_MOST_DATA: Final = 64 * 1024
_LONGEST_ERROR: Final = 10_000


class McpTools(Sequence[Tool[..., Any]]):
    """The tools of one MCP server, by number and by name.

    They hold no connection: the first call makes one, and calls of an event loop share it.
    """

    def __init__(self, tools: Iterable[Tool[..., Any]], connections: McpConnections) -> None:
        self._tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in self._tools}
        self._connections = connections

    @overload
    def __getitem__(self, which: int | str) -> Tool[..., Any]: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Tool[..., Any]]: ...
    def __getitem__(self, which: int | str | slice) -> Any:
        return self._by_name[which] if isinstance(which, str) else self._tools[which]

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"<{len(self)} tools of {self._connections.server.name}>"

    async def close(self) -> None:
        """Close the connection of this event loop, if there is one. Calls still work after that.

        A call that is under way is cut off: whether it happened is not known then.
        """
        await self._connections.close()


async def mcp_tools(
    target: str | Sequence[str] | StdioServerParameters,
    *,
    names: Iterable[str] | None = None,
    prefix: str = "",
    effects: Mapping[str, EffectClass] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    trust_annotations: bool = True,
    errors: Errors = "answer",
    timeout: float = 60.0,
    retries: int = 2,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    connect_seconds: float = 20.0,
    idle_seconds: float = 60.0,
    mode: str = "auto",
) -> McpTools:
    """The tools of an MCP server, for agents, workflows and registries; raises McpUnavailable.

    `target` is a URL (streamable HTTP) or a command that speaks MCP on its pipes. `names` chooses
    tools. `effects` says what repeating a tool would do, over what the server's annotations say,
    and `options` gives single tools any option of `holdfast.tool`. `errors` says what an error that
    a mutating tool answers with means. `retries` is for tools that are safe to repeat.
    """
    if errors not in get_args(Errors):
        raise MisuseError(f"errors must be one of {', '.join(get_args(Errors))}, not {errors!r}")
    if timeout <= 0 or connect_seconds <= 0 or idle_seconds <= 0:
        raise MisuseError("timeout, connect_seconds and idle_seconds must be above 0")
    server = server_of(target, headers=headers, env=env)
    # Of the time for a call most is left when the connection is there: else it was not begun.
    limits = ConnectionOptions(connect_seconds, idle_seconds, mode)
    connections = McpConnections(server, limits)
    try:
        listed = {tool.name: tool for tool in await connections.tools()}
    finally:
        await connections.close()
    chosen = list(listed) if names is None else list(dict.fromkeys(names))
    _check_names(server.name, listed, [*chosen, *(effects or {}), *(options or {})])
    shorter = ConnectionOptions(min(connect_seconds, timeout / 3), idle_seconds, mode)
    using = McpConnections(server, shorter)
    making = _Making(using, errors=errors, timeout=timeout, retries=retries, prefix=prefix)
    made: list[Tool[..., Any]] = []
    for name in chosen:
        effect = (effects or {}).get(name) or _effect_of(listed[name], trust=trust_annotations)
        made.append(making.tool(listed[name], effect, (options or {}).get(name, {})))
    return McpTools(made, using)


def _check_names(server: str, listed: Mapping[str, Any], wanted: Iterable[str]) -> None:
    missing = [name for name in wanted if name not in listed]
    if missing:
        known = ", ".join(sorted(listed)) or "none"
        raise MisuseError(f"{server} has no tool {missing[0]!r}; its tools are: {known}")


def _effect_of(listed: types.Tool, *, trust: bool) -> EffectClass:
    hints = listed.annotations
    if not trust or hints is None:
        return "mutate"
    if hints.read_only_hint:
        return "read"
    return "idempotent" if hints.idempotent_hint else "mutate"


class _Making:
    """Makes tools of what a server lists."""

    def __init__(
        self,
        connections: McpConnections,
        *,
        errors: Errors,
        timeout: float,
        retries: int,
        prefix: str,
    ) -> None:
        self._connections = connections
        self._errors: Errors = errors
        self._timeout = timeout
        self._retries = retries
        self._prefix = prefix

    def tool(
        self, listed: types.Tool, effect: EffectClass, options: Mapping[str, Any]
    ) -> Tool[..., Any]:
        effect = options.get("effect", effect)
        name = options.get("name", self._prefix + listed.name)
        call = _OutsideCall(self._connections, listed.name, effect, self._errors)
        try:
            takes = JsonSchemaArguments(listed.input_schema, name, key_parameter=KEY)
        except MisuseError as error:
            raise MisuseError(
                f"{listed.name} of {self._connections.server.name} cannot be used: {error}. Choose "
                "others with names"
            ) from error

        async def call_outside(**given: Any) -> Any:
            return await call.make(given)

        usual: dict[str, Any] = {
            "name": name,
            "effect": effect,
            "description": listed.description or listed.title or listed.name,
            "limit_seconds": self._timeout,
            "retries": 0 if effect == "mutate" else self._retries,
            "is_failure": is_answered_error if effect == "mutate" else None,
        }
        return make_tool(call_outside, takes=takes, **{**usual, **options})


class _OutsideCall:
    """Calls one tool, and reports each outcome as its effect class needs it."""

    def __init__(
        self, connections: McpConnections, name: str, effect: EffectClass, errors: Errors
    ) -> None:
        self._connections = connections
        self._name = name
        self._is_mutating = effect == "mutate"
        self._errors = errors

    async def make(self, given: dict[str, Any]) -> Any:
        key = cast(Key, given.pop(KEY, Key()))
        meta = {KEY: str(key), RUN_ID: key.run_id, CALL_ID: key.call_id}
        fields = {name: value for name, value in meta.items() if value}
        try:
            answer = await self._connections.call(self._name, given, fields)
        except Unsent as error:
            raise (NotDone if self._is_mutating else McpUnavailable)(str(error)) from error
        except ServerRefused as error:
            raise NotDone(str(error)) from error
        if isinstance(answer, types.InputRequiredResult):
            raise Lost(f"{self._name} asks for input, which a tool of Holdfast cannot give")
        if answer.is_error:
            return self._failed(answer)
        return value_of(answer)

    def _failed(self, answer: types.CallToolResult) -> str:
        said = _error_text(answer)
        if not self._is_mutating or self._errors == "not_done":
            raise NotDone(said)
        if self._errors == "unknown":
            raise Lost(_FAILED + said)
        return _FAILED + said


def is_answered_error(result: object) -> bool:
    """Whether a result is an error that a server answered with."""
    return isinstance(result, str) and result.startswith(_FAILED)


def value_of(answer: types.CallToolResult) -> Any:
    """What a tool answered with, as plain data."""
    if answer.structured_content is not None:
        return answer.structured_content
    texts = [part.text for part in answer.content if isinstance(part, types.TextContent)]
    if len(texts) == len(answer.content):
        return "\n".join(texts)
    return [_part(part) for part in answer.content]


def _error_text(answer: types.CallToolResult) -> str:
    value = value_of(answer)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return (text or "it does not say which")[:_LONGEST_ERROR]


def _part(part: types.ContentBlock) -> dict[str, Any]:
    """Return a part of an answer without unreadable data: large data is only mentioned."""
    if isinstance(part, types.EmbeddedResource):
        held = part.resource
        about = {"type": "resource", "uri": str(held.uri), "mimeType": held.mime_type}
        if isinstance(held, types.TextResourceContents):
            return {**about, "text": held.text}
        return {**about, **_data(held.blob)}
    if isinstance(part, types.ImageContent | types.AudioContent):
        return {"type": part.type, "mimeType": part.mime_type, **_data(part.data)}
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def _data(base64: str) -> dict[str, Any]:
    if len(base64) <= _MOST_DATA:
        return {"data": base64}
    return {"bytes": len(base64) * 3 // 4, "data": f"(left out: over {_MOST_DATA:,} characters)"}
