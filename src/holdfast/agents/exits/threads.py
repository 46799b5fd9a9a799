"""Functions that block, each in a separate thread: one that hangs holds up nobody else.

What a thread does cannot be stopped, so it is waited for, and how it ended is not forgotten. Only
a process that ends does not wait longer than its `shutdown_seconds`.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.agents.exits.interruptions import ABANDONED, EndedLate, StillRunning


async def call_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread.

    A cancellation continues when the function has ended, and has EndedLate as its cause.
    """
    ended: Future[Any] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            ended.set_result(context.run(function, *args, **kwargs))
        except StopIteration as error:
            # A future cannot carry it.
            ended.set_exception(RuntimeError(f"it raised StopIteration: {error}"))
        except KeyboardInterrupt as error:
            # Python gives Ctrl-C to the main thread only: this one is the function's own.
            ended.set_exception(RuntimeError(f"it raised KeyboardInterrupt: {error}"))
        except BaseException as error:
            ended.set_exception(error)

    name = f"holdfast-call-{getattr(function, '__name__', 'tool')}"
    threading.Thread(target=call, name=name, daemon=True).start()
    return await _wait_for(ended)


async def _wait_for(ended: Future[Any]) -> Any:
    future = asyncio.wrap_future(ended)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            if error.args == (ABANDONED,):
                raise StillRunning(ended) from error
            cancelled = error
    if cancelled is None:
        return future.result()
    error = future.exception()
    late = EndedLate(None if error else future.result(), error)
    raise asyncio.CancelledError(*cancelled.args) from late
