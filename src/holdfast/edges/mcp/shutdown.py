"""Stopping a server: waits end with what they have, and what is under way is answered first."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

ANSWER_SECONDS: Final = 5.0
"""How long requests that are under way may take to be answered once the server stops."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Whether a server stops, and how: the first signal asks, the second does not."""

    def __init__(self) -> None:
        self.when_wanted: list[Callable[[], object]] = []
        self.when_at_once: list[Callable[[], object]] = []
        self.signals: list[signal.Signals] = []
        self._wanted = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._under_way = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_wanted(self) -> bool:
        return self._wanted.is_set()

    @property
    def is_interrupted(self) -> bool:
        """Whether a second signal or Ctrl-C came."""
        return len(self.signals) > 1 or signal.SIGINT in self.signals

    def begin(self) -> None:
        """Let waits end, and no run begin to be worked on."""
        if not self.is_wanted:
            self._wanted.set()
            for tell in self.when_wanted:
                tell()

    async def wanted(self) -> None:
        """Wait until the server is to stop."""
        await self._wanted.wait()

    async def answered(self) -> None:
        """Wait until the server is to stop and no request is under way, or one takes too long."""
        await self._wanted.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), ANSWER_SECONDS)

    async def count(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Middleware that counts the requests under way."""
        self._under_way += 1
        self._quiet.clear()
        try:
            return await call_next(ctx)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    def listen(self) -> None:
        """Stop on SIGTERM and Ctrl-C, where signals can be listened to: in the main thread."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._on_signal, number)
            self._loop = loop

    def ignore(self) -> None:
        """Stop handling signals."""
        if self._loop is not None:
            for number in _SIGNALS:
                self._loop.remove_signal_handler(number)
            self._loop = None

    def _on_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if not self.is_wanted:
            self.begin()
        else:
            for tell in self.when_at_once:
                tell()
