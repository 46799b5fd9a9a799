"""Workflows of blocks that reach outside: one block each, carried out in an open store."""

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import holdfast
from holdfast import faults
from holdfast.settings import Settings
from holdfast.workflows import Block, Kit, Outcome, Workflow
from holdfast.workflows.execution.state import BlockResult
from tests.agents.crashing import Crash

LEASE_SECONDS = 0.5


def block(
    type: str, id: str = "it", *, options: dict[str, Any] | None = None, **inputs: Any
) -> Block:
    return Block(id=id, type=type, inputs=inputs, **(options or {}))


LOOPBACK = ("127.0.0.0/8", "::1/128")


def flow(*blocks: Block, **options: Any) -> Workflow:
    return Workflow(name="reach", blocks=list(blocks), **options)


def settings() -> Settings:
    return Settings(lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=0.1)


@asynccontextmanager
async def opened(store: str, root: Path, **kit: Any) -> AsyncIterator[holdfast.Holdfast]:
    """A Holdfast whose workflows work in a folder, and may reach the servers of tests."""
    kit = {"networks": LOOPBACK, **kit}
    changed = {"shutdown_seconds": kit.pop("shutdown_seconds", 10.0)}
    used = replace(settings(), **changed)
    made = holdfast.Holdfast(store, settings=used, workflows=Kit(root=root, **kit))
    async with made as hf:
        yield hf


async def carry_out(store: str, root: Path, *blocks: Block, **kit: Any) -> Outcome:
    """Run a workflow of these blocks to its end, whatever that is."""
    async with opened(store, root, **kit) as hf:
        return await hf.workflows.run(flow(*blocks), run_id="r", timeout=60)


async def result(store: str, root: Path, given: Block, **kit: Any) -> BlockResult:
    """What became of one block."""
    return (await carry_out(store, root, given, **kit)).blocks[given.id]


@contextmanager
def crashing(point: str) -> Generator[None]:
    """Whoever comes to a point for the first time ends there as if its process had died."""
    left = iter([point])

    def crash(reached: str) -> None:
        if reached == point and next(left, None) is not None:
            raise Crash

    faults.install(crash)
    try:
        yield
    finally:
        faults.install(None)
