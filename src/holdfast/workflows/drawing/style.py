"""How the kinds and the states of blocks look in pictures: one table for Mermaid and SVG."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from holdfast.workflows.definitions.definition import Block, Workflow

BlockState = Literal["completed", "failed", "skipped", "waiting", "running", "cancelled", "not yet"]


class BlockLook(NamedTuple):
    """Of a state: its colours, its mark as a letter, and as a drawing 8 wide and high."""

    fill: str
    line: str
    mark: str
    drawn: str


STATES: Final[dict[BlockState, BlockLook]] = {
    "completed": BlockLook("#e3f6e8", "#15803d", "✓", "M0.5 4.3 3 7 7.5 1.3"),
    "failed": BlockLook("#fde6e6", "#b91c1c", "✗", "M1 1 7 7M7 1 1 7"),
    "waiting": BlockLook(
        "#fef1cf", "#a1480a", "?", "M1.9 2.3C2 -0.3 6.3 -0.2 6.1 2.2 6 3.8 4 3.7 4 5.3M4 7.6V7.7"
    ),
    "running": BlockLook("#e0ebff", "#1d4ed8", "▶", "M2 0.9 7 4 2 7.1Z"),
    "skipped": BlockLook("#f1f3f6", "#55606f", "»", "M0.8 1 3.8 4 0.8 7M4.2 1 7.2 4 4.2 7"),
    "cancelled": BlockLook("#f4eafd", "#7e22ce", "■", "M1.4 1.4H6.6V6.6H1.4Z"),
    "not yet": BlockLook("#ffffff", "#6b7686", "…", "M0.8 4V4.1M4 4V4.1M7.2 4V4.1"),
}
PLAIN: Final = BlockLook("#ffffff", "#475569", "", "")
INK: Final = "#1b2430"
FAINT_INK: Final = "#4a5565"


class BlockStyle(NamedTuple):
    """Of a type of blocks: an icon 20 wide and high, and the brackets of its shape in Mermaid."""

    icon: str
    opening: str = "["
    closing: str = "]"


_TOOL: Final = BlockStyle(
    "M12.6 3.2A4.6 4.6 0 0 0 7.2 9L2.6 13.6A2 2 0 0 0 2.6 16.6L3.4 17.4A2 2 0 0 0 6.4 17.4L11 12.8"
    "A4.6 4.6 0 0 0 16.8 7.4L14 10.2 11.2 9.2 10 6.2Z"
)
_FILE: Final = BlockStyle("M5 2.5H12L16 6.5V17.5H5ZM12 2.5V6.5H16M8 10.5H13M8 13.8H13", "[(", ")]")
_OTHER: Final = BlockStyle(
    "M10 2.8 16.4 6.4V13.6L10 17.2 3.6 13.6V6.4ZM3.8 6.5 10 10 16.2 6.5M10 10V17"
)
_KINDS: Final = {
    "Prompt": BlockStyle(
        "M10 2.8A3.6 3.6 0 1 1 9.9 2.8ZM2.8 17.4C3.2 9.2 16.8 9.2 17.2 17.4Z", "{{", "}}"
    ),
    "Tool": _TOOL,
    "Shell": BlockStyle("M2.5 3.5H17.5V16.5H2.5ZM5.5 7.5 8.5 10 5.5 12.5M10.5 13H14.5"),
    "HttpCall": BlockStyle(
        "M10 2.5A7.5 7.5 0 1 1 9.9 2.5ZM2.6 10H17.4"
        "M10 2.5C5.2 7 5.2 13 10 17.5 14.8 13 14.8 7 10 2.5"
    ),
    "Agent": BlockStyle(
        "M10 2.2C10.8 7.2 12.8 9.2 17.8 10 12.8 10.8 10.8 12.8 10 17.8 9.2 12.8 7.2 10.8 2.2 10"
        " 7.2 9.2 9.2 7.2 10 2.2Z",
        "([",
        "])",
    ),
    "Workflow": BlockStyle(
        "M2.5 3H8.5V8.5H2.5ZM11.5 11.5H17.5V17H11.5ZM5.5 8.5V14.2H11.5", "[[", "]]"
    ),
    "Wait": BlockStyle("M10 2.5A7.5 7.5 0 1 1 9.9 2.5ZM10 5.8V10L13 12.2", "(", ")"),
}
_NAMED_BY: Final = {"Tool": "tool", "Agent": "agent", "Workflow": "workflow", "Wait": "signal"}


def complete(
    workflow: Workflow, states: Mapping[str, BlockState] | None
) -> dict[str, BlockState] | None:
    """A state for every block, if there are any at all."""
    if states is None:
        return None
    return {block.id: states.get(block.id, "not yet") for block in workflow.blocks}


def kind_of(block: Block) -> BlockStyle:
    """How a block's type is shown; one that is not known has a look too."""
    return _KINDS.get(block.type) or (_FILE if "File" in block.type else _OTHER)


def subject_of(block: Block) -> str:
    """Return what a block calls or waits for, if its definition names it literally."""
    given: Any = block.inputs.get(_NAMED_BY.get(block.type, ""))
    return given if isinstance(given, str) and "{{" not in given else ""


def marks_of(block: Block) -> list[str]:
    """What is special about how a block is carried out, in a word or two each."""
    found = ["for each"] if block.is_loop else []
    return [*found, "if"] if block.condition is not None else found


def shortened(text: str, fits: Callable[[str], bool]) -> str:
    """A text that `fits`: the whole one, or its ends, for names often differ at their ends."""
    if fits(text):
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = kept // 2
        short = f"{text[: kept - tail].rstrip()}…{text[-tail:].lstrip()}"
        if fits(short):
            return short
    return "…"
