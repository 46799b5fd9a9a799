"""Which checkpoints were given out, and as what: this decides what continuing from them means.

A caller that asks for the latest checkpoint continues the thread; a caller that asks
for an earlier one by its id begins a branch.
"""

import threading
from typing import Final

from holdfast.integrations.langgraph.checkpoint_config import CheckpointConfig

_REMEMBERED: Final = 4096


class IssuedCheckpoints:
    """The checkpoints that this process has given out lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._as_latest: dict[tuple[str, str, str], bool] = {}

    def as_latest(self, place: CheckpointConfig, checkpoint_id: str) -> None:
        """The latest one of its namespace; \"\" means that there is none yet."""
        self._note((place.run_id, place.space, checkpoint_id), is_latest=True)

    def as_earlier(self, place: CheckpointConfig) -> None:
        """One that was asked for by its id, and is not the latest."""
        self._note((place.run_id, place.space, place.checkpoint_id), is_latest=False)

    def is_latest(self, place: CheckpointConfig) -> bool:
        return self._as_latest.get((place.run_id, place.space, place.checkpoint_id)) is True

    def is_earlier(self, place: CheckpointConfig) -> bool:
        return self._as_latest.get((place.run_id, place.space, place.checkpoint_id)) is False

    def _note(self, key: tuple[str, str, str], *, is_latest: bool) -> None:
        with self._lock:
            self._as_latest.pop(key, None)
            self._as_latest[key] = is_latest
            while len(self._as_latest) > _REMEMBERED:
                del self._as_latest[next(iter(self._as_latest))]
