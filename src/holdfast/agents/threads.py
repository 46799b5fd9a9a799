"""Functions that block, in threads. What a thread does cannot be stopped, so it is waited for."""

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

MOST_THREADS: Final = 64

_pool: Final = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="holdfast-tool")


async def call_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread; a cancellation is raised once the function has ended."""
    context = contextvars.copy_context()
    call = functools.partial(context.run, function, *args, **kwargs)
    future = asyncio.get_running_loop().run_in_executor(_pool, call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            break  # the function's own
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()
