"""One event loop in a background thread, and what blocks for objects that live there."""

import contextlib
import functools
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal

from holdfast.errors import StoreClosed, WrongProcess

P = ParamSpec("P")
T = TypeVar("T")
_END: Final = object()


class Loop:
    """The background event loop; no thread runs until it is opened."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one whose thread runs the loop."""
        return self._portal is not None and self._pid != os.getpid()

    def open(self) -> None:
        # Not anyio's start_blocking_portal: as a generator it is closed when a fork of this
        # process ends, and waits there for a thread that does not exist.
        started: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(
            target=anyio.run, args=(_serve, started), name="holdfast-loop", daemon=True
        )
        self._thread.start()
        self._portal, self._pid = started.result(), os.getpid()

    def close(self) -> None:
        assert self._portal is not None, "closed after it was opened"
        assert self._thread is not None, "closed after it was opened"
        portal, self._portal = self._portal, None
        portal.call(portal.stop, True)
        self._thread.join()

    def submit(
        self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> "Future[T]":
        """Begin a call; whoever wants its result waits for it in their own way."""
        if self._portal is None:
            raise StoreClosed("the store is not open; use it inside `with holdfast.sync.open(...)`")
        if self.is_inherited:
            raise WrongProcess(
                "the store was opened before fork(); open stores after it, or use spawn"
            )
        return self._portal.start_task_soon(functools.partial(method, *args, **kwargs))

    def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        future = self.submit(method, *args, **kwargs)
        try:
            return future.result()
        finally:
            # After Ctrl-C nobody waits for it any more; a call that has ended is not touched.
            future.cancel()

    def each(self, source: AsyncIterator[T]) -> Iterator[T]:
        try:
            while (item := self.call(_next, source)) is not _END:
                yield item
        finally:
            with contextlib.suppress(StoreClosed, WrongProcess):
                self.call(_close, source)


async def _serve(started: "Future[BlockingPortal]") -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()


async def _next(source: AsyncIterator[T]) -> T | Any:
    return await anext(source, _END)


async def _close(source: AsyncIterator[Any]) -> None:
    # Refused while a step that Ctrl-C has cancelled is unwinding, which closes it as well.
    with contextlib.suppress(RuntimeError):
        await cast("AsyncGenerator[Any]", source).aclose()


class Face(Generic[T]):
    """What blocks for an object of the async face."""

    def __init__(self, loop: Loop, inner: T) -> None:
        self._loop = loop
        self._inner = inner
        self._call = loop.call
        self._wire()

    def _wire(self) -> None:
        """Set the attributes of a face that has any."""


def on_loop(method: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Let a method that does not wait run in the loop's thread."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return method(*args, **kwargs)

    return run


def blocking(source: type) -> Callable[[type[T]], type[T]]:
    """Give a class's public members the docstrings of what they stand for."""

    def document(face: type[T]) -> type[T]:
        for name, member in vars(face).items():
            if not name.startswith("_"):
                getattr(member, "__func__", member).__doc__ = getattr(source, name).__doc__
        return face

    return document
