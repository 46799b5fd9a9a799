"""What is stored of a workflow that runs: how it was started, and what became of its blocks."""

from typing import Any, ClassVar, Final, Literal

import msgspec

from holdfast.workflows.definitions.definition import Block

BlockStatus = Literal["completed", "failed", "skipped"]

ENDED: Final = "ended:"
"""How the step is named that tells of a block's end, before its path."""


class LoopItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of a loop, with its inputs as they are; `skipped` says why it is not made."""

    key: str
    label: str
    inputs: dict[str, Any] = {}
    skipped: str = ""
    failed: str = ""


class Loop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rounds of a block that are made one after another, in a run of their own."""

    block: Block
    items: list[LoopItem]


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of a workflow's run.

    The run that was started first has the definitions of all that it may come to, by their names;
    those below it name that run. `seal` is that of the tree's references to secrets; `folder` is
    where it was started, and so where its files are unless a kit says else.
    """

    workflow: str
    seal: str
    inputs: dict[str, Any] = {}
    library: dict[str, Any] = {}
    folder: str = ""
    root: str = ""
    path: str = ""
    depth: int = 0
    loop: Loop | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a block. A loop has a result for each round, and of a map their keys."""

    status: BlockStatus
    outputs: Any = None
    error: str = ""
    seconds: float = 0.0
    attempts: int = 1
    rounds: list["Result"] | None = None
    keys: list[str] | None = None
    is_pruned: bool = False
    holdfast_is_immutable: ClassVar[bool] = True
    """Nothing here changes a result in place: a checkpoint need not compare all there are."""

    @property
    def is_to_be_pruned(self) -> bool:
        """Whether it has something to lose; what became of a failure is kept."""
        return self.status == "completed" and not self.is_pruned


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a block has ended, in a wave whose results are not stored yet."""

    status: BlockStatus
    seconds: float = 0.0
    error: str = ""


def part_of(block_id: str) -> str:
    """The part of a run's state that has the result of a block."""
    return f"block.{block_id}"


def block_of(part: str) -> str | None:
    """The block whose result a part has."""
    return part.removeprefix("block.") if part.startswith("block.") else None
