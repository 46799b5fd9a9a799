"""Find outputs that nothing refers to any more, to remove them from a workflow's state."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from holdfast.workflows.definitions import expressions
from holdfast.workflows.definitions.definition import Block, Workflow
from holdfast.workflows.execution.state import BlockResult

_ALL: Final = ""
"""In place of a block's id: any of them."""


def templates_of(block: Block) -> list[Any]:
    """Everything in a block that may have expressions."""
    return [block.inputs, expressions.condition_text(block.condition), block.for_each]


def uses_now(workflow: Workflow) -> bool:
    """Whether an expression of a workflow asks for the time."""
    paths = (path for block in workflow.blocks for path in _paths_of(block))
    return any(path[0] == "now" for path in chain(paths, _output_paths(workflow)))


class OutputUses:
    """Which blocks refer to which, read once, and when no later block refers to one."""

    def __init__(self, workflow: Workflow) -> None:
        ids = {block.id for block in workflow.blocks}
        self._ahead = {block.id: _used(_paths_of(block), ids) for block in workflow.blocks}
        outputs = _used(_output_paths(workflow), ids)
        self._count = Counter(outputs)
        for used in self._ahead.values():
            self._count.update(used)
        self._free: list[str] = []
        self._ended: set[str] = set()

    def end(self, blocks: Collection[str]) -> list[str]:
        """Mark blocks as ended; return those that nothing later refers to."""
        self._ended.update(blocks)
        for name in blocks:
            if not self._count[name]:
                self._free.append(name)
            for used in self._ahead.pop(name):
                self._count[used] -= 1
                if not self._count[used] and used in self._ended:
                    self._free.append(used)
        if self._count[_ALL]:
            return []
        free, self._free = self._free, []
        return free


def pruned(result: BlockResult) -> BlockResult:
    """Return a result without its outputs."""
    return msgspec.structs.replace(result, outputs=None, rounds=None, keys=None, is_pruned=True)


def _used(paths: Iterable[expressions.Path], ids: Collection[str]) -> set[str]:
    """The blocks that are named; `_ALL` if what is asked for may be any, as in `blocks.items()`."""
    names = {path[1] if len(path) > 1 else None for path in paths if path[0] == "blocks"}
    return {
        _ALL if name is None or name not in ids or hasattr(dict, name) else name for name in names
    }


def _paths_of(block: Block) -> Iterator[expressions.Path]:
    for template in templates_of(block):
        yield from expressions.paths_in(template)


def _output_paths(workflow: Workflow) -> Iterator[expressions.Path]:
    for spec in workflow.output_specs.values():
        yield from expressions.paths_in(spec.value)
