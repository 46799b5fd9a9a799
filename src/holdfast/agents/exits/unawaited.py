"""Calls of a run's verbs: one that nobody awaits must not pass for an answer.

`if not run.ask("Pay?"):` without `await` would be an object that is true, so that nobody is asked.
"""

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from holdfast.errors import MisuseError

T_co = TypeVar("T_co", covariant=True)


class RunCall(Coroutine[Any, Any, T_co]):
    """The coroutine of a verb, which knows whether it was begun."""

    __slots__ = ("_code", "_unawaited", "name")

    def __init__(
        self, code: Coroutine[Any, Any, T_co], name: str, unawaited: "UnawaitedCalls"
    ) -> None:
        """`unawaited` has this call until it is begun."""
        self._code, self.name, self._unawaited = code, name, unawaited
        unawaited[self] = name

    def __await__(self) -> Generator[Any, Any, T_co]:
        self._unawaited.pop(self, None)
        return self._code.__await__()

    def __bool__(self) -> bool:
        raise not_awaited(self.name)

    def send(self, value: Any) -> Any:
        self._unawaited.pop(self, None)
        return self._code.send(value)

    def throw(self, *error: Any) -> Any:
        self._unawaited.pop(self, None)
        return self._code.throw(*error)

    def close(self) -> None:
        self._unawaited.pop(self, None)
        self._code.close()


UnawaitedCalls = dict[RunCall[Any], str]
"""Calls that nobody has begun, and their names."""


def close_unawaited(unawaited: UnawaitedCalls) -> str:
    """Close the calls that were not begun when the agent's code ended. Returns their names."""
    names = ", ".join(dict.fromkeys(unawaited.values()))
    for each in list(unawaited):
        each.close()
    return names


def not_awaited(names: str) -> MisuseError:
    """Return the error for calls that nobody has awaited."""
    return MisuseError(f"{names} was not awaited, so nothing was done: write `await {names}`")
