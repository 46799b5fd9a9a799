"""What the blocks of workflows may use, in the processes that work on them."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from holdfast.agents.definitions.agent import Agent, agent, tools_by_name
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.run import Run, turn_of
from holdfast.engine.context import Context
from holdfast.engine.reading import turns
from holdfast.errors import BlockFailed, MisuseError, WorkflowFailed
from holdfast.stores.contract import Store
from holdfast.telemetry import log
from holdfast.workflows.access.files import Folder
from holdfast.workflows.access.networks import Networks
from holdfast.workflows.access.secrets import Source, no_secrets
from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.definitions import definition
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.definitions.expressions import has_expression
from holdfast.workflows.execution.events import Event, Observer
from holdfast.workflows.execution.executor import Execution
from holdfast.workflows.execution.state import Start

AGENT: Final = "workflow"
"""The agent that works on the runs of all workflows."""

_MOST_KNOWN: Final = 64

Place = tuple[Store, str, str]
"""Where a run is: one kit may be that of several open stores, and of several tenants in each."""


class Kit:
    """What blocks may use: tools by name, custom types, secrets, other workflows, a folder, hosts.

    `definitions` are those that `Workflow` blocks may name, beside the files next to a
    workflow's own. `secrets` is a mapping, or a function from a name to a value or None. `root`
    is the folder of files and commands; without one it is that in which a run was started.
    `networks` are those that requests may reach beside public addresses, as in `127.0.0.0/8`;
    "any" checks nothing.
    """

    def __init__(
        self,
        *,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        types: Iterable[BlockType] = (),
        definitions: Iterable[Workflow] = (),
        secrets: Mapping[str, str] | Source | None = None,
        root: str | Path | None = None,
        networks: Iterable[str] | str = (),
        prunes: bool = False,
    ) -> None:
        self.tools: dict[str, Tool[..., Any]] = tools_by_name(tools)
        self.types = _by_name([*BUILT_IN, *types])
        self.definitions = {each.name: each for each in definitions}
        self.secrets = _source(secrets)
        self.folder = Folder(Path.cwd() if root is None else Path(root))
        self._has_root = root is not None
        self.networks = Networks(networks)
        self.prunes = prunes
        """Whether outputs that nothing to come refers to are taken out of the state."""
        self._observers: dict[Place, Observer] = {}
        self._starts: dict[Place, Start] = {}
        self.agent: Agent[..., Any] = agent(name=AGENT, loop_limit=0)(self._work)
        self.agent.alike = _without_root

    def definition(self, root: Start, name: str) -> Workflow:
        """A definition as it was when the first run of its tree was started."""
        if name not in root.library:
            raise BlockFailed(f"no workflow {name!r} was there when this one was started")
        return definition.of_plain(root.library[name])

    def folder_of(self, root: Start) -> Folder:
        """Where the files of a tree of runs are."""
        return self.folder if self._has_root or not root.folder else Folder(Path(root.folder))

    def lacks(self, root: Start) -> list[str]:
        """Return what the blocks of a tree of runs need and this process lacks."""
        found: dict[str, None] = {}
        for name in root.library:
            for block in self.definition(root, name).blocks:
                tool = block.inputs.get("tool") if block.type == "Tool" else None
                if block.type not in self.types:
                    found[f"block type {block.type!r}"] = None
                if isinstance(tool, str) and not has_expression(tool) and tool not in self.tools:
                    found[f"tool {tool!r}"] = None
        return list(found)

    def observe(self, context: Context, run_id: str, observer: Observer) -> Callable[[], None]:
        """Send the events of a tree of runs in this process to `observer`; return how to stop."""
        place = _place(context, run_id)
        self._observers[place] = observer
        return lambda: cast(None, self._observers.pop(place, None))

    def tell(self, context: Context, root_id: str, event: Event) -> None:
        observer = self._observers.get(_place(context, root_id))
        if observer is None:
            return
        try:
            observer(event)
        except Exception:
            log.warning("an observer of run %s broke", root_id, exc_info=True)

    @staticmethod
    def limit(most: int) -> asyncio.Semaphore:
        """How many rounds of a loop are made at once."""
        return asyncio.Semaphore(max(1, most))

    async def _work(self, run: Run, start: dict[str, Any]) -> Any:
        """Carry out a workflow, or a loop of one."""
        own = _start_of(start)
        root = await self._root(turn_of(run).context, run.run_id, own)
        return await Execution(self, run, own, root).go()

    async def _root(self, context: Context, run_id: str, start: Start) -> Start:
        """Return how the first run of a tree was started: it has the definitions."""
        if not start.root or start.root == run_id:
            return start
        place = _place(context, start.root)
        if place not in self._starts:
            given = await turns.input_of(context, start.root)
            self._starts[place] = _start_of(given["start"])
            while len(self._starts) > _MOST_KNOWN:
                del self._starts[next(iter(self._starts))]
        return self._starts[place]


def _place(context: Context, run_id: str) -> Place:
    return context.store, context.tenant, run_id


def _without_root(given: Any) -> Any:
    """Return the input of a child run without its root: only that differs in a fork of the tree."""
    start = cast("dict[str, Any]", given)["start"]
    return {"start": {name: value for name, value in start.items() if name != "root"}}


def _start_of(given: Any) -> Start:
    try:
        return msgspec.convert(given, Start)
    except msgspec.ValidationError as error:
        raise WorkflowFailed(f"this run was not started as a workflow: {error}") from error


def _by_name(types: Iterable[BlockType]) -> dict[str, BlockType]:
    found: dict[str, BlockType] = {}
    for each in types:
        _check_type(each)
        if each.name in found:
            raise MisuseError(f"there are two types of blocks named {each.name!r}")
        found[each.name] = each
    return found


def _check_type(given: Any) -> None:
    """Refuse an invalid block type, before a workflow is half done."""
    if isinstance(given, type):
        raise MisuseError(f"{given.__name__} is a class; give an object of it: {given.__name__}()")
    shape = getattr(given, "inputs", None)
    wrong = [
        what
        for what, is_right in {
            "name (a text)": isinstance(getattr(given, "name", None), str),
            "inputs (a msgspec.Struct)": isinstance(shape, type)
            and issubclass(shape, msgspec.Struct),
            "waits (True or False)": isinstance(getattr(given, "waits", None), bool),
            "takes_secrets (True or False)": isinstance(
                getattr(given, "takes_secrets", None), bool
            ),
            "execute (async)": inspect.iscoroutinefunction(getattr(given, "execute", None)),
        }.items()
        if not is_right
    ]
    if wrong:
        raise MisuseError(f"{given!r} is no type of blocks: it lacks {', '.join(wrong)}")


def _source(given: Mapping[str, str] | Source | None) -> Source:
    if given is None:
        return no_secrets
    return given if callable(given) else given.get
