"""Tools by which a model tells of its work: `AgentLoop(model, tools=[*holdfast.progress_tools])`.

They are not called like others: they change the run's progress in memory, cost no entry and need
nobody's approval. `hand_over` asks for a fresh context at the end of the turn.
"""

from typing import Any, Final, Literal

from holdfast.agents.handing_over import HandoffWish
from holdfast.agents.people import ask_person
from holdfast.agents.progress import Progress
from holdfast.agents.tools import Tool, tool
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
"""All by which a model tells of its work."""

_NOTING: Final = frozenset({*progress_tools, hand_over})
UNCOUNTED: Final = frozenset({*_NOTING, ask_person})
"""Tools that nothing outside is asked with: they are no tools that a run has invoked."""


def is_noting(called: Tool[..., Any]) -> bool:
    """Whether a call of it only changes what the run tells of itself."""
    return called in _NOTING


def note(
    called: Tool[..., Any], values: dict[str, Any], progress: Progress, wish: HandoffWish
) -> str:
    """Do what a model said, and what it is answered; raises MisuseError if that makes no sense."""
    if called is progress_item:
        return _item(progress, **values)
    if called is progress_note:
        return _note(progress, **values)
    if called is progress_report:
        return _report(progress, **values)
    if called is progress_phase:
        progress.finish_phase(values["next"])
        return f"the phase is {progress.phase} now"
    assert called is hand_over, "all of them are named here"
    wish.ask(values.get("to", ""), values.get("reason", ""))
    return "a fresh context goes on after this turn"


def _item(progress: Progress, *, action: str, id: str, text: str = "", blocker: str = "") -> str:
    if action == "block":
        progress.block(id, blocker=blocker, text=text)
    elif action == "complete":
        progress.complete(id, text)
    elif action == "pend":
        progress.pend(id, text)
    else:
        progress.focus(id)
    state = progress.state.execution_state
    return (
        f"{len(state.completed_items)} items are completed, {len(state.pending_items)} pending, "
        f"{len(state.blocked_items)} blocked"
    )


def _note(progress: Progress, *, kind: str, text: str, reason: str = "") -> str:
    if kind == "decision":
        progress.decide(text, reason)
    elif kind == "assumption":
        progress.assume(text)
    elif kind == "constraint":
        progress.constrain(text)
    elif kind == "risk":
        progress.risk(text)
    else:
        progress.depend(text)
    return "noted"


def _report(
    progress: Progress,
    *,
    files: list[str] | None = None,
    tests_passed: int | None = None,
    tests_failed: int | None = None,
    tests_skipped: int | None = None,
    coverage_percent: float | None = None,
) -> str:
    progress.files(*(files or ()))
    progress.tests(
        passed=tests_passed,
        failed=tests_failed,
        skipped=tests_skipped,
        coverage_percent=coverage_percent,
    )
    return "noted"
