"""A store that takes no writes for a while, for one of those who use it."""

from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.settings import Settings


def spooling(folder: Path, **more: Any) -> Settings:
    """Settings of somebody who spools."""
    given: dict[str, Any] = {
        "lease_seconds": 60,
        "store_retry_seconds": 0.001,
        "busy_timeout_seconds": 1,
    }
    given |= more
    return Settings(on_store_failure="spool", spool_folder=str(folder), **given)


class Outage:
    """Refuses the writes of one open Holdfast while `is_away`; reads and other users go on."""

    def __init__(self, hf: holdfast.Holdfast) -> None:
        self.is_away = False
        self.error: HoldfastError = StoreUnavailable("it is away")
        store: Any = hf._context.store  # pyright: ignore[reportPrivateUsage] - nobody else knows it
        self._submit = store.submit
        store.submit = self.submit

    def submit(self, write: Any) -> Awaitable[Any]:
        return self._refuse() if self.is_away else self._submit(write)

    async def _refuse(self) -> None:
        raise self.error

    @contextmanager
    def away(self) -> Generator[None]:
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False
