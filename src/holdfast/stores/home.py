"""A store belongs to the process and the event loop that opened it."""

import asyncio
import os

from holdfast.errors import StoreClosed, WrongProcess


class Home:
    """Where a store was opened; nowhere while it is closed."""

    def __init__(self) -> None:
        self._at: tuple[int, asyncio.AbstractEventLoop] | None = None

    def settle(self) -> None:
        self._at = (os.getpid(), asyncio.get_running_loop())

    def leave(self) -> None:
        self._at = None

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that opened the store."""
        return self._at is not None and self._at[0] != os.getpid()

    def check(self) -> None:
        """Raise unless the store is open, and was opened here."""
        if self._at is None:
            raise StoreClosed()
        if self._at[0] != os.getpid():
            raise WrongProcess(
                "the store was opened before fork(); open stores after it, or use spawn"
            )
        if self._at[1] is not asyncio.get_running_loop():
            raise WrongProcess(
                "the store was opened in another event loop; open another one here, "
                "or use holdfast.sync"
            )
