"""Stores of checkpoints: the contract of the seed, and the store in memory that is its default.

`holdfast.sync.checkpoint_store` has the one for SQLite and PostgreSQL.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from holdfast import clock, codec, names
from holdfast.clock import Clock, SystemClock
from holdfast.compat.workflow_stores.checkpoint_state import CheckpointState, parts_of, state_of
from holdfast.errors import InputDiffers, LeaseHeld


class CheckpointStore(ABC):
    """Where workflows keep their checkpoints. What is handed out is the caller's own copy.

    A store of your own has the five methods; `claimed` then keeps two threads of this process
    apart, and you override it if processes share the store.
    """

    _claims: "_Claims | None" = None

    @abstractmethod
    def save(self, state: CheckpointState) -> None:
        """Store a state; what was saved under the same id is replaced.

        Raises UnsupportedValue for what would not come back unchanged, and InputDiffers if the id
        is that of another workflow's checkpoint.
        """

    @abstractmethod
    def load(self, checkpoint_id: str) -> CheckpointState | None:
        """Return the state that was saved last; None if it does not exist."""

    @abstractmethod
    def delete(self, checkpoint_id: str) -> None:
        """Remove a checkpoint; a missing one is not an error."""

    @abstractmethod
    def list(self, workflow_name: str | None = None) -> "list[CheckpointState]":
        """The checkpoints of one workflow or of all, oldest first."""

    @abstractmethod
    def cleanup_expired(self, max_age_hours: float = 24, *, even_waiting: bool = False) -> int:
        """Remove what is older than this; return how many there were.

        One that waits for an answer stays unless `even_waiting`, as does one that is being resumed.
        """

    def now(self) -> datetime:
        """The time by the clock that judges what is old."""
        return clock.to_datetime(SystemClock().now())

    @contextmanager
    def claimed(self, checkpoint_id: str) -> Generator[None]:
        """Claim a checkpoint while it is resumed; raises LeaseHeld if another has claimed it."""
        claims = self._claims_here()
        with claims.of(checkpoint_id):
            yield

    def _claims_here(self) -> "_Claims":
        with _MAKING:
            if self._claims is None:
                self._claims = _Claims()
            return self._claims


class _Claims:
    """The checkpoints that threads of this process have claimed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ids: set[str] = set()

    @contextmanager
    def of(self, checkpoint_id: str) -> Generator[None]:
        with self._lock:
            if checkpoint_id in self.ids:
                raise held_elsewhere(checkpoint_id, "in this process")
            self.ids.add(checkpoint_id)
        try:
            yield
        finally:
            with self._lock:
                self.ids.discard(checkpoint_id)


# Stores of others may have an __init__ that does not create claims.
_MAKING: Final = threading.Lock()


class InMemoryCheckpointStore(CheckpointStore):
    """Checkpoints in this process's memory: gone when it ends. Threads may share it."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._stored: dict[str, _Stored] = {}

    def save(self, state: CheckpointState) -> None:
        stored = _Stored(state)
        with self._lock:
            known = self._stored.get(state.checkpoint_id)
            if known is not None:
                check_workflow(state, known.workflow)
            self._stored[state.checkpoint_id] = stored

    def now(self) -> datetime:
        return clock.to_datetime(self._clock.now())

    def load(self, checkpoint_id: str) -> CheckpointState | None:
        names.check(checkpoint_id, what="checkpoint id")
        with self._lock:
            found = self._stored.get(checkpoint_id)
        return None if found is None else found.state()

    def delete(self, checkpoint_id: str) -> None:
        names.check(checkpoint_id, what="checkpoint id")
        with self._lock:
            self._stored.pop(checkpoint_id, None)

    def list(self, workflow_name: str | None = None) -> "list[CheckpointState]":
        names.check_optional(workflow_name, what="workflow name")
        with self._lock:
            found = [s for s in self._stored.values() if workflow_name in (None, s.workflow)]
        return in_order(each.state() for each in found)

    def cleanup_expired(self, max_age_hours: float = 24, *, even_waiting: bool = False) -> int:
        age = clock.hours(max_age_hours)
        with self._lock:
            now = self._clock.now()
            claims = self._claims_here().ids
            expired = [
                checkpoint_id
                for checkpoint_id, stored in self._stored.items()
                if now - stored.created_at > age
                and (even_waiting or not stored.is_waiting)
                and checkpoint_id not in claims
            ]
            for checkpoint_id in expired:
                del self._stored[checkpoint_id]
        return len(expired)


class _Stored:
    """A state as bytes, so that nobody can change it, and what it is found by."""

    def __init__(self, state: CheckpointState) -> None:
        self.body = codec.encode(parts_of(state), name="state")
        self.workflow = state.workflow_name
        self.created_at = clock.from_datetime(state.created_at)
        self.is_waiting = state.is_waiting

    def state(self) -> CheckpointState:
        return state_of(codec.decode(self.body))


def check_workflow(state: CheckpointState, known: str) -> None:
    """Raise InputDiffers if a checkpoint was saved for another workflow."""
    if known != state.workflow_name:
        raise InputDiffers(
            f"checkpoint {state.checkpoint_id} is one of workflow {known!r}, not of "
            f"{state.workflow_name!r}: nothing was stored; give this one an id of its own"
        )


def held_elsewhere(checkpoint_id: str, by: str) -> LeaseHeld:
    return LeaseHeld(
        f"checkpoint {checkpoint_id} is being resumed {by}, which goes on with it; if that process "
        "is gone, resume it again when its lease has ended"
    )


def in_order(states: Iterable[CheckpointState]) -> list[CheckpointState]:
    return sorted(states, key=lambda state: (state.created_at, state.checkpoint_id))
