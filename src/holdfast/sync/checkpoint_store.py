"""Checkpoints of workflows for code that blocks: in SQLite and PostgreSQL, and the seed's verbs."""

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from holdfast.clock import Clock
from holdfast.compat.workflow_stores import resume
from holdfast.compat.workflow_stores.checkpoint_state import CheckpointState
from holdfast.compat.workflow_stores.checkpoint_store import (
    CheckpointStore,
    InMemoryCheckpointStore,
)
from holdfast.compat.workflow_stores.resume import MakeExecutor, ResumeResult, WorkflowExecutor
from holdfast.compat.workflow_stores.stored_checkpoints import StoredCheckpoints
from holdfast.errors import StoreClosed
from holdfast.settings import Settings, checkpoint_store_url
from holdfast.sync.app import Holdfast

P = ParamSpec("P")
T = TypeVar("T")


class _Host(Holdfast):
    """A store that is open, and the checkpoints in it."""

    def stored(self) -> StoredCheckpoints:
        return StoredCheckpoints(self._inner)

    def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.call(method, *args, **kwargs)


class SqlCheckpointStore(CheckpointStore):
    """Checkpoints in a store by its URL: a file's path, `postgresql://…` or `memory://`.

    It is opened at its first use, and closed by `close()` or at the end of a `with`. A save is on
    disk when it returns, and every process with the same URL sees it.
    """

    def __init__(
        self, url: str, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self._hf = _Host(url, settings=settings, clock=clock)
        self._lock = threading.Lock()
        self._inner: StoredCheckpoints | None = None
        self._is_closed = False

    def save(self, state: CheckpointState) -> None:
        return self._hf.call(self._opened().save, state)

    def load(self, checkpoint_id: str) -> CheckpointState | None:
        return self._hf.call(self._opened().load, checkpoint_id)

    def delete(self, checkpoint_id: str) -> None:
        return self._hf.call(self._opened().delete, checkpoint_id)

    def list(self, workflow_name: str | None = None) -> "list[CheckpointState]":
        return self._hf.call(self._opened().list, workflow_name)

    def cleanup_expired(self, max_age_hours: float = 24, *, even_waiting: bool = False) -> int:
        cleanup = self._opened().cleanup_expired
        return self._hf.call(cleanup, max_age_hours, even_waiting=even_waiting)

    def now(self) -> datetime:
        return self._opened().now()

    @contextmanager
    def claimed(self, checkpoint_id: str) -> Generator[None]:
        is_held = self._hf.call(self._opened().claim, checkpoint_id)
        try:
            yield
        finally:
            if is_held:
                self._hf.call(self._opened().release, checkpoint_id)

    def close(self) -> None:
        """Close the store; what is asked of it later raises StoreClosed."""
        with self._lock:
            is_open, self._is_closed = self._inner is not None, True
            self._inner = None
        if is_open:
            self._hf.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> StoredCheckpoints:
        with self._lock:
            if self._is_closed:
                raise StoreClosed("this store of checkpoints was closed; make another one")
            if self._inner is None:
                self._hf.__enter__()
                self._inner = self._hf.stored()
            return self._inner


def open_checkpoint_store() -> CheckpointStore:
    """The store that the environment names: WORKFLOW_CHECKPOINT_BACKEND and _DSN; else memory."""
    url = checkpoint_store_url()
    return InMemoryCheckpointStore() if url is None else SqlCheckpointStore(url)


class _Default:
    """The store for those who name none: one for the process, opened when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: CheckpointStore | None = None

    def get(self) -> CheckpointStore:
        with self._lock:
            if self._store is None:
                self._store = open_checkpoint_store()
            return self._store


_DEFAULT: Final = _Default()


def pause_workflow(
    executor: WorkflowExecutor,
    block_id: str,
    prompt: str,
    *,
    store: CheckpointStore | None = None,
) -> str:
    """Store where an executor stands because a block asks something; the checkpoint's id.

    Without a `store` it is the one that the environment names, the same for the whole process.
    """
    return resume.pause(executor, block_id, prompt, store=store or _DEFAULT.get())


def resume_workflow(
    checkpoint_id: str,
    response: str = "",
    *,
    make_executor: MakeExecutor,
    store: CheckpointStore | None = None,
) -> ResumeResult:
    """Go on from a checkpoint with an answer, which may be empty.

    `make_executor` makes an executor of a workflow's name and inputs. A failure says why it did not
    go on: there is no such checkpoint, somebody else resumes it, or it has another answer.
    """
    return resume.resume(
        checkpoint_id, response, make_executor=make_executor, store=store or _DEFAULT.get()
    )
