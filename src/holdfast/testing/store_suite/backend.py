"""What a suite needs of a backend, and how its asynchronous tests are run."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol

from holdfast.app import Holdfast
from holdfast.clock import Clock
from holdfast.settings import Settings

P = ParamSpec("P")
_LIMIT_SECONDS = 1800  # beside other work a test may take long; one that hangs must end


class Backend(Protocol):
    """An empty store that can be opened."""

    def open(self, *, clock: Clock | None = None, settings: Settings | None = None) -> Holdfast:
        """A Holdfast on this backend's store, to be entered."""
        ...


def async_test(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an asynchronous test to its end in a new event loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            await asyncio.wait_for(test(*args, **kwargs), _LIMIT_SECONDS)

        asyncio.run(limited())

    return run
