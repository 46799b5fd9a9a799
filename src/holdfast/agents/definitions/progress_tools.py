"""Tools by which a model reports its work: `AgentLoop(model, tools=[*holdfast.progress_tools])`.

They are not called like others: they change the run's progress in memory, cost no entry and need
nobody's approval. `hand_over` asks for a fresh context at the end of the turn.
"""

from typing import Any, Final, Literal

from holdfast.agents.definitions.people import ask_person
from holdfast.agents.definitions.tools import Tool, tool
from holdfast.errors import MisuseError

_FOR_MODELS: Final = "this tool is for models: give it to an agent's tools, or use run.progress"


@tool(effect="read")
async def progress_item(
    action: Literal["pend", "complete", "block", "focus"],
    id: str,
    text: str = "",
    blocker: str = "",
) -> str:
    """Keep the list of work items: pend a new one, complete, block (say the blocker) or focus one.

    The id is short and stays the same for an item; text says what it is.
    """
    raise MisuseError(_FOR_MODELS)


@tool(effect="read")
async def progress_note(
    kind: Literal["decision", "assumption", "constraint", "dependency", "risk"],
    text: str,
    reason: str = "",
) -> str:
    """Note what whoever continues this work must know; give the reason of a decision."""
    raise MisuseError(_FOR_MODELS)


@tool(effect="read")
async def progress_report(
    files: list[str] | None = None,
    tests_passed: int | None = None,
    tests_failed: int | None = None,
    tests_skipped: int | None = None,
    coverage_percent: float | None = None,
) -> str:
    """Report files you changed, and how the tests stand."""
    raise MisuseError(_FOR_MODELS)


@tool(effect="read")
async def progress_phase(
    next: Literal["planning", "implementing", "testing", "reviewing", "complete"],
) -> str:
    """The current phase is finished, and the next one begins."""
    raise MisuseError(_FOR_MODELS)


@tool(effect="read")
async def hand_over(to: str = "", reason: str = "") -> str:
    """Ask that a fresh context continues this work, by another agent if you name one.

    Note first what it must know.
    """
    raise MisuseError("hand_over is for models: give it to an agent's tools, or use run.hand_over")


progress_tools: Final[list[Tool[..., Any]]] = [
    progress_item,
    progress_note,
    progress_report,
    progress_phase,
]
"""All tools by which a model reports its work."""

_NOTING: Final = frozenset({*progress_tools, hand_over})
UNCOUNTED: Final = frozenset({*_NOTING, ask_person})
"""Tools that nothing outside is asked with: they are no tools that a run has invoked."""


def is_noting(called: Tool[..., Any]) -> bool:
    """Whether a call of it only changes what the run reports of itself."""
    return called in _NOTING
