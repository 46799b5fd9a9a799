"""Code that commits, in a task that is cancelled meanwhile: by a time limit, or its caller.

A commit that was sent cannot be withdrawn. What follows from it is finished before the cancellation
continues, so that nobody meets a run half changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from holdfast.agents.exits.containment import CodeExited, carried

T = TypeVar("T")
FINISH_SECONDS: Final = 5.0
ABANDONED: Final = "holdfast: nobody can wait any longer"
"""The message of a cancellation that does not wait for threads either."""


class EndedLate(Exception):
    """How a function ended whose call was cancelled: the cause of that cancellation.

    The cancellation itself is a plain one: no other is seen by a time limit in Python 3.11.
    """

    def __init__(self, result: Any, error: BaseException | None) -> None:
        super().__init__()
        self.result = result
        self.error = error


class StillRunning(asyncio.CancelledError):
    """The call was abandoned, and its thread works on until `ended`: nobody waits for it."""

    def __init__(self, ended: "Future[Any]") -> None:
        super().__init__(ABANDONED)
        self.ended = ended


async def finish_first(
    code: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Run code to its end even if the present task is cancelled; then raise the cancellation.

    After a cancellation `undo` is awaited with the result, which nobody else will see. If all that
    takes longer than FINISH_SECONDS, the store is away: the outcome stays unknown.
    """
    task = asyncio.ensure_future(carried(code))
    try:
        return await asyncio.shield(task)
    except CodeExited as exited:
        raise exited.error from None
    except asyncio.CancelledError:
        await _end(asyncio.ensure_future(_finish(task, undo)))
        raise


async def _finish(task: "asyncio.Task[T]", undo: Callable[[T], Awaitable[None]] | None) -> None:
    result = await task
    if undo is not None:
        await undo(result)


async def _end(finishing: "asyncio.Task[None]") -> None:
    """Wait for a task for a while, even if the present one is cancelled; drop what it raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + FINISH_SECONDS
    while not finishing.done():
        if loop.time() >= until:
            finishing.cancel()
        try:
            await asyncio.wait([finishing], timeout=max(0.0, until - loop.time()) or None)
        except asyncio.CancelledError:
            continue
    if not finishing.cancelled():
        finishing.exception()
