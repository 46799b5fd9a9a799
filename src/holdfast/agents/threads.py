"""Functions that block, each in a thread of its own: one that hangs holds up nobody else.

What a thread does cannot be stopped, so it is waited for.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


async def call_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread; a cancellation is raised once the function has ended."""
    ended: Future[Any] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            ended.set_result(context.run(function, *args, **kwargs))
        except BaseException as error:
            ended.set_exception(error)

    name = f"holdfast-call-{getattr(function, '__name__', 'tool')}"
    threading.Thread(target=call, name=name, daemon=True).start()
    return await _wait_for(asyncio.wrap_future(ended))


async def _wait_for(future: "asyncio.Future[Any]") -> Any:
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()
