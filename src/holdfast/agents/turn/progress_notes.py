"""Carries out what a model says of its work with `progress_tools`."""

from typing import Any

from holdfast.agents.definitions.progress_tools import (
    hand_over,
    progress_item,
    progress_note,
    progress_phase,
    progress_report,
)
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.turn.context_usage import HandoffWish
from holdfast.agents.turn.progress import Progress


def note(
    called: Tool[..., Any], values: dict[str, Any], progress: Progress, wish: HandoffWish
) -> str:
    """Do what a model said, and return the answer; raises MisuseError if it makes no sense."""
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
