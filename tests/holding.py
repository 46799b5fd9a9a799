"""Commits that are held up, or whose answer is lost: inside the process, or on the way.

SQLite writes in a thread of this process, which a fault point holds up. PostgreSQL is reached
through a proxy that passes nothing on.
"""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from holdfast.testing import Armed, armed
from tests.backends import Backend
from tests.proxy import Group, Proxy

Moment = Literal["before", "after"]


class Held(Protocol):
    """A commit that is held up from when `reached` is true until it is released."""

    @property
    def reached(self) -> bool: ...
    def release(self) -> None: ...


class Holder(Protocol):
    """A store whose next commit can be held up before or after it is stored."""

    url: str
    backend: Backend

    def hold(self, moment: Moment) -> AbstractContextManager[Held]:
        """Hold the next commit until it is released, or the `with` ends."""
        ...

    def lose_answer(self) -> AbstractContextManager[None]:
        """Let the next commit be stored, and its writer not be told."""
        ...


class HeldInThread:
    def __init__(self, hanging: Armed) -> None:
        self._hanging = hanging

    @property
    def reached(self) -> bool:
        return self._hanging.reached > 0

    def release(self) -> None:
        self._hanging.released.set()


class SQLiteHolder:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.url = backend.url

    @contextlib.contextmanager
    def hold(self, moment: Moment) -> Iterator[HeldInThread]:
        point = "batch.before_commit" if moment == "before" else "batch.after_commit"
        with armed(point, "hang") as hanging:
            yield HeldInThread(hanging)

    @contextlib.contextmanager
    def lose_answer(self) -> Iterator[None]:
        with armed("batch.after_commit", "raise"):
            yield


class HeldOnTheWay:
    def __init__(self) -> None:
        self._is_reached = threading.Event()
        self._is_released = threading.Event()

    @property
    def reached(self) -> bool:
        return self._is_reached.is_set()

    def release(self) -> None:
        self._is_released.set()

    def hold(self, group: Group) -> bool:
        """Called in the proxy's thread; as long as it waits, nothing is passed on."""
        if group.commits:
            self._is_reached.set()
            self._is_released.wait()
        return False


class PostgresHolder:
    def __init__(self, backend: Backend, proxy: Proxy) -> None:
        self.backend = backend
        self.url = proxy.url(backend.url)
        self._proxy = proxy

    @contextlib.contextmanager
    def hold(self, moment: Moment) -> Iterator[HeldOnTheWay]:
        held = HeldOnTheWay()
        cut = self._proxy.cut_requests if moment == "before" else self._proxy.cut_replies
        cut(held.hold)
        try:
            yield held
        finally:
            held.release()

    @contextlib.contextmanager
    def lose_answer(self) -> Iterator[None]:
        before = self._proxy.cuts
        self._proxy.cut_at_commit()
        yield
        assert self._proxy.cuts == before + 1


@contextlib.contextmanager
def holder_of(backend: Backend) -> Iterator[Holder]:
    if backend.name == "sqlite":
        yield SQLiteHolder(backend)
    else:
        with Proxy(backend.url) as proxy:
            yield PostgresHolder(backend, proxy)
