"""Small ways to say what a workflow is, and an open store that carries it out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.settings import Settings
from holdfast.workflows import Block, Kit, Workflow


def flow(*blocks: Block, name: str = "main", **options: Any) -> Workflow:
    return Workflow(name=name, blocks=list(blocks), **options)


def prompt(id: str, text: str = "", **options: Any) -> Block:
    """A block that asks; what is not about blocks is about the question."""
    asked = {key: options.pop(key) for key in ("choices", "schema", "default") if key in options}
    given = {"prompt": text or f"{id}?", **asked}
    return Block(id=id, type="Prompt", inputs=given, **options)


def call(id: str, tool: str = "note", **options: Any) -> Block:
    """A block that calls a tool with its own id, or with `args`."""
    args = options.pop("args", {"what": id})
    return Block(id=id, type="Tool", inputs={"tool": tool, "args": args}, **options)


class Notes:
    """A tool that writes down what it is called with, and fails or waits if it is told to."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails: dict[Any, int] = {}

        @holdfast.tool
        async def note(what: Any) -> str:
            if self.fails.get(what, 0) > 0:
                self.fails[what] -= 1
                raise holdfast.NotDone(f"no {what} today")
            self.done.append(what)
            return f"{what} noted"

        self.tool = note


@asynccontextmanager
async def opened(store: str, **kit: Any) -> AsyncIterator[holdfast.Holdfast]:
    """A Holdfast whose workflows may use the kit; agents are those of the kit too."""
    agents = kit.pop("agents", ())
    settings = kit.pop("settings", Settings(wakeup_poll_seconds=0.1, lease_seconds=2))
    made = holdfast.Holdfast(store, agents=agents, settings=settings, workflows=Kit(**kit))
    async with made as hf:
        yield hf
