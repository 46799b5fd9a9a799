"""The input that makes a run a session, and the name of the signals that bring its messages."""

from typing import Any, Final, cast

MESSAGE: Final = "message"
_MARK: Final = "holdfast.session"


def session_input(metadata: dict[str, Any]) -> dict[str, Any]:
    """The input that makes a run a session."""
    return {_MARK: metadata}


def is_session(given: object) -> bool:
    return isinstance(given, dict) and _MARK in given


def metadata_of(given: object) -> dict[str, Any]:
    return cast("dict[str, Any]", given)[_MARK] if is_session(given) else {}
