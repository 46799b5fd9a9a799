"""Whether a tool's own function was called, and how it ended.

Around it lie checks of arguments, and handlers that turn exceptions into messages: what comes out
does not show whether anything happened. So the function itself is watched.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool


class CallWatch:
    """What was seen of one call of a tool."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: the call is made again."""
        self.is_reached = False
        """Whether the tool was asked at all: the wrappers inside ours may not have done so."""
        self.has_begun = False
        self.running = 0
        self.error: BaseException | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the tool would not take its arguments: nothing was done."""
        return self.is_reached and not self.has_begun

    @property
    def is_running(self) -> bool:
        """Whether the function still runs, in a thread that nobody waits for any more."""
        return self.running > 0

    def over(self, tool: BaseTool) -> BaseTool:
        """A tool that does the same, and is watched."""
        watched = copy.copy(tool)
        for name in ("run", "arun"):
            self._put(watched, name, _before(getattr(watched, name), self._reach))
        self._put(watched, "_run", self._around(watched._run))  # pyright: ignore[reportPrivateUsage] - what authors of tools write
        self._put(watched, "_arun", self._around_async(watched._arun))  # pyright: ignore[reportPrivateUsage] - what authors of tools write
        return watched

    @staticmethod
    def _put(tool: BaseTool, name: str, function: Callable[..., Any]) -> None:
        # A tool is a Pydantic model, which takes no new attributes.
        object.__setattr__(tool, name, function)

    def _reach(self) -> None:
        self.is_reached = True

    def _begin(self) -> None:
        self.has_begun = True
        self.running += 1

    def _end(self, error: BaseException | None) -> None:
        self.running -= 1
        self.error = error

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return result

        return watched

    def _around_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return result

        return watched


def _before(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    return noted


def is_async(tool: BaseTool) -> bool:
    """Whether a call of the tool can be ended from outside: it does not block a thread."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "coroutine", None) is not None
    return type(tool)._arun is not BaseTool._arun  # pyright: ignore[reportPrivateUsage] - what authors of tools write
