"""The contract of the MCP server's tools: an async function and its description.

A tool takes its name and description from the function, and its schemas from the structs of the
arguments and the result. It returns the result's struct, or a `FollowedRun`: the reply then depends
on the run's status and on what the client supports.
"""

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Protocol, cast, get_type_hints

import mcp_types as types
import msgspec
from jsonschema import Draft202012Validator

from holdfast import names
from holdfast.agents.conversion import type_conversion
from holdfast.app import Holdfast
from holdfast.edges.mcp.access.principals import Principal
from holdfast.edges.mcp.catalogue import Catalogue
from holdfast.edges.mcp.shutdown import Shutdown
from holdfast.edges.mcp.views import RunView
from holdfast.errors import NotFoundError, RunNotFound
from holdfast.kernel.runs import RunRow

WAIT_SECONDS: Final = 20.0
MOST_WAIT_SECONDS: Final = 300.0
MOST_DEPTH: Final = 100
MOST_PROBLEMS: Final = 20

Tasks = Literal["optional", "required", "never", "after_input"]
"""Whether a run is a task for clients that know tasks; `required` refuses all others, and with
`after_input` the first questions are asked before a task is made."""

RunId = Annotated[str, msgspec.Meta(description="The id of a run.", min_length=1, max_length=255)]
Limit = Annotated[int, msgspec.Meta(description="At most so many.", ge=1, le=1000)]
Note = Annotated[str, msgspec.Meta(description="Why, for the record.", max_length=4000)]
WaitSeconds = Annotated[
    float,
    msgspec.Meta(
        description="How long to wait at most for an end or a question, 20 unless the schema has "
        "another default. The run goes on without the caller; ask again with get_run.",
        ge=0,
        le=MOST_WAIT_SECONDS,
    ),
]


class FollowedRun(msgspec.Struct, frozen=True):
    """A run that a tool has started or resumed, to be followed for a while.

    If it `is_new`, it cannot have asked before: answers that came with the call are for it.
    """

    run_id: str
    is_new: bool = False


class BadArguments(Exception):
    """The arguments do not fit the tool. Nothing was done; call it again with those it takes."""

    def __init__(self, message: str, *, problems: list[str]) -> None:
        super().__init__(message)
        self.problems = problems


class ClientProgress(Protocol):
    """Report progress to the client, if it asked for progress."""

    async def __call__(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None: ...


@dataclass(frozen=True)
class ClientRequest:
    """What a client asks: of whom, and who asks."""

    hf: Holdfast
    catalogue: Catalogue
    principal: Principal

    async def run(self, run_id: str) -> RunRow:
        """Return a run that the caller may see; a run of another owner counts as not found."""
        try:
            run = await self.hf.runs.get(run_id)
        except RunNotFound:
            run = None
        if run is None or not self.principal.may_see(run.owner):
            raise RunNotFound(f"there is no run {run_id!r}; list_runs tells those that are")
        return run

    async def check_visible(self, run_id: str, otherwise: NotFoundError) -> None:
        """Raise `otherwise` if the run belongs to another owner, without naming that owner."""
        try:
            await self.run(run_id)
        except RunNotFound:
            raise otherwise from None


@dataclass(frozen=True)
class McpCall(ClientRequest):
    """One call of a tool: who calls, what the client can do, and what it brings along."""

    client: str
    progress: ClientProgress
    is_modern: bool = True
    capabilities: types.ClientCapabilities = field(default_factory=types.ClientCapabilities)
    request_state: str | None = None
    responses: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stopping: Shutdown = field(default_factory=Shutdown)
    tool: str = ""
    key: str = ""
    """What the client calls this operation, however often it asks for it."""

    @property
    def by(self) -> str:
        """Who does what this call does, for the record. Clients call themselves what they like."""
        printable = "".join(each if each.isprintable() else "?" for each in self.client)
        return self.principal.name or f"mcp:{printable}"[: names.MAX_LENGTH]

    def begun(self, run_id: str, wanted: str | None) -> "FollowedRun":
        """A run that this call has begun, under the id that was `wanted` for it if any was."""
        return FollowedRun(run_id, is_new=wanted is None and not self.key)

    def run_id_for(self, wanted: str | None) -> str | None:
        """The id of the run that this call begins: the one wanted, else that of its key.

        A client that asks again with the same key gets the run that is there. What others call
        their operations does not matter.
        """
        if wanted is not None or not self.key:
            return wanted
        text = json.dumps([self.principal.name, self.tool, self.key])
        return f"mcp-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


Handler = Callable[[McpCall, Any], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class ServedTool:
    """A tool that clients list and call. `read` converts plain arguments to its own type."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    handle: Handler
    read: Callable[[dict[str, Any]], Any]
    title: str = ""
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False
    is_open_world: bool = False
    begins_runs: bool = False
    """Whether it returns `FollowedRun`, so that a client may continue a call of it."""
    shows_result: bool = False
    """Whether it returns only the result of the run that it began, as if there were no run."""
    tasks: Tasks = "optional"

    @property
    def listed(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            title=self.title or None,
            description=self.description,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            annotations=types.ToolAnnotations(
                title=self.title or None,
                read_only_hint=self.is_read_only,
                destructive_hint=self.is_destructive,
                idempotent_hint=self.is_idempotent or self.is_read_only,
                open_world_hint=self.is_open_world,
            ),
        )

    def arguments_of(self, given: Mapping[str, Any]) -> Any:
        """The arguments of a call; raises BadArguments with every problem of them."""
        problems = json_violations(given) or problems_of(given, self.input_schema)
        if problems:
            raise BadArguments(f"{self.name} takes other arguments", problems=problems)
        try:
            return self.read(dict(given))
        except msgspec.ValidationError as error:
            raise BadArguments(
                f"{self.name} takes other arguments", problems=[str(error)]
            ) from error


def json_violations(given: Any) -> list[str]:
    """List what JSON cannot represent, or nests too deeply. Check this before anything else."""
    left: list[tuple[Any, int]] = [(given, 0)]
    while left:
        value, depth = left.pop()
        if depth > MOST_DEPTH:
            return [f"arguments: they are nested deeper than {MOST_DEPTH}"]
        if isinstance(value, float) and not math.isfinite(value):
            return [f"arguments: {value} is no number of JSON"]
        if isinstance(value, str) and not _is_text(value):
            return [f"arguments: {value!a:.80} has a lone surrogate, which is no text"]
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value).items()
            left += ((each, depth + 1) for pair in pairs for each in pair)
        elif isinstance(value, list):
            left += ((each, depth + 1) for each in cast("list[Any]", value))
    return []


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)


def problems_of(given: Any, schema: Mapping[str, Any]) -> list[str]:
    """List why a value does not fit a schema, each with its path; only the first of very many."""
    validator: Any = Draft202012Validator(schema)
    first = itertools.islice(validator.iter_errors(given), MOST_PROBLEMS)
    found = sorted(first, key=lambda error: list(map(str, error.path)))
    return [
        f"{'.'.join(map(str, error.absolute_path)) or 'arguments'}: {error.message:.300}"
        for error in found
    ]


def served(
    *,
    title: str,
    is_read_only: bool = False,
    is_destructive: bool = False,
    is_idempotent: bool = False,
    is_open_world: bool = False,
    begins_runs: bool = False,
) -> Callable[[Callable[..., Awaitable[Any]]], ServedTool]:
    """Make a tool of `async def name(call: McpCall, given: Arguments) -> Result`."""

    def make(function: Callable[..., Awaitable[Any]]) -> ServedTool:
        hints = get_type_hints(function, include_extras=True)
        arguments = hints["given"]
        return ServedTool(
            name=function.__name__,
            title=title,
            description=inspect.getdoc(function) or "",
            input_schema=type_conversion.schema(arguments),
            output_schema=type_conversion.schema(RunView if begins_runs else hints["return"]),
            handle=function,
            read=lambda given: msgspec.convert(given, arguments),
            is_read_only=is_read_only,
            is_destructive=is_destructive,
            is_idempotent=is_idempotent,
            is_open_world=is_open_world,
            begins_runs=begins_runs,
        )

    return make
