"""What is stored of a running workflow: how it was started, and the results of its blocks."""

from typing import Any, ClassVar, Final, Literal

import msgspec

from holdfast.workflows.definitions.definition import Block

BlockStatus = Literal["completed", "failed", "skipped"]

ENDED: Final = "ended:"
"""The prefix, before the path, of the step that records the end of a block."""


class LoopItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of a loop, with its evaluated inputs; `skipped` says why it is not run."""

    key: str
    label: str
    inputs: dict[str, Any] = {}
    skipped: str = ""
    failed: str = ""


class Loop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rounds of a block that run one after another, in a separate run."""

    block: Block
    items: list[LoopItem]


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of a workflow's run.

    The run that was started first has the definitions of all that it may call, by their names;
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


class BlockResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a block. A loop has a result for each round, and of a map their keys."""

    status: BlockStatus
    outputs: Any = None
    error: str = ""
    seconds: float = 0.0
    attempts: int = 1
    rounds: list["BlockResult"] | None = None
    keys: list[str] | None = None
    is_pruned: bool = False
    holdfast_is_immutable: ClassVar[bool] = True
    """Nothing here changes a result in place: a checkpoint need not compare all there are."""

    @property
    def is_to_be_pruned(self) -> bool:
        """Whether it has outputs to prune; the result of a failure is kept."""
        return self.status == "completed" and not self.is_pruned


class EndedBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a block has ended, in a wave whose results are not stored yet."""

    status: BlockStatus
    seconds: float = 0.0
    error: str = ""


def part_of(block_id: str) -> str:
    """Return the part of a run's state that has the result of a block."""
    return f"block.{block_id}"


def block_of(part: str) -> str | None:
    """Return the block whose result a part has, or None."""
    return part.removeprefix("block.") if part.startswith("block.") else None
