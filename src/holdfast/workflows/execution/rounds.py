"""The rounds of a loop: what `for_each` iterates, and the inputs of each."""

import re
from typing import Any, Final, cast

import msgspec

from holdfast.errors import BlockFailed
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.definitions import expressions
from holdfast.workflows.definitions.definition import Block
from holdfast.workflows.execution.scope import Scope
from holdfast.workflows.execution.state import BlockResult, LoopItem

_LABEL: Final = re.compile(r"[\w.@:+=-]{1,64}")


class LoopRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round; `names` are what its expressions see, `inputs` their values."""

    key: str
    label: str
    """The name of the round in the paths of blocks: the key, or the number of the round."""
    names: dict[str, Any] = {}
    inputs: dict[str, Any] | None = None
    skipped: str = ""
    failed: str = ""

    def result(self) -> BlockResult:
        """Return the result of a round that is not run."""
        if self.failed:
            return BlockResult(status="failed", error=self.failed)
        return BlockResult(status="skipped", error=self.skipped)

    def item(self, block: Block, secrets: Secrets) -> LoopItem:
        """Return the round with its inputs evaluated, to be carried out in another run."""
        if self.skipped or self.failed:
            return LoopItem(
                key=self.key, label=self.label, skipped=self.skipped, failed=self.failed
            )
        try:
            inputs = secrets.sealed(expressions.render(block.inputs, self.names))
            return LoopItem(key=self.key, label=self.label, inputs=inputs)
        except BlockFailed as error:
            return LoopItem(key=self.key, label=self.label, failed=str(error))


def rounds_of(block: Block, scope: Scope) -> tuple[list[LoopRound], list[str] | None]:
    """Return the rounds of a loop, and their keys if it iterates a map; raises BlockFailed."""
    over = expressions.render(block.for_each, scope.names)
    if isinstance(over, dict):
        entries = cast("dict[str, Any]", over)
        keys = list(entries)
        return _rounds(block, scope, keys, list(entries.values())), keys
    if isinstance(over, list):
        items = cast("list[Any]", over)
        return _rounds(block, scope, [str(at) for at in range(len(items))], items), None
    raise BlockFailed(
        f"for_each goes over a list or a map, not over {type(over).__name__} {over!r:.80}"
    )


def _rounds(block: Block, scope: Scope, keys: list[str], values: list[Any]) -> list[LoopRound]:
    return [
        _round(block, key, index, scope.in_round(index, key, value, len(keys)))
        for index, (key, value) in enumerate(zip(keys, values, strict=True))
    ]


def _round(block: Block, key: str, index: int, names: dict[str, Any]) -> LoopRound:
    label = key if _LABEL.fullmatch(key) else f"#{index}"
    try:
        if block.condition is not None and not expressions.is_true(block.condition, names):
            return LoopRound(key=key, label=label, skipped="its condition does not hold")
    except BlockFailed as error:
        return LoopRound(key=key, label=label, failed=str(error))
    return LoopRound(key=key, label=label, names=names)
