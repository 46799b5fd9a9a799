"""What is opened by entering it: a store, and the event loop that it lives on."""

import contextlib
from types import TracebackType
from typing import Self, TypeVar

from holdfast import app
from holdfast.sync.loop import Face, Loop


class OpenableFace(Face[app.Holdfast]):
    """The base class of the blocking Holdfast, which is generated."""

    def __init__(self, loop: Loop, inner: app.Holdfast) -> None:
        super().__init__(loop, inner)
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._loop.open()
            stack.callback(self._loop.close)
            self._call(self._inner.__aenter__)
            stack.push(self._leave)
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In a fork the loop's thread does not exist: the store is its parent's to close.
        if not self._loop.is_inherited:
            self._closing.__exit__(kind, error, trace)

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._inner.__aexit__, kind, error, trace)


F = TypeVar("F", bound=OpenableFace)


def around(face: type[F], inner: app.Holdfast, loop: Loop | None = None) -> F:
    """The face of a Holdfast that exists: not entered yet, or open on this loop."""
    made = object.__new__(face)
    OpenableFace.__init__(made, loop or Loop(), inner)
    return made
