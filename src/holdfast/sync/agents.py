"""Runs of agents, sessions and workers, for code that blocks. Agents themselves are async."""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from holdfast.agents.work import approvals, handles, sessions, worker
from holdfast.agents.work.approvals import Asked
from holdfast.agents.work.handles import PeerUpdate
from holdfast.engine.checkpoints import State
from holdfast.kernel.journal import Entry
from holdfast.kernel.runs import Run, Status
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Answer
from holdfast.sync.loop import Face, Loop, blocking

R = TypeVar("R")


@blocking(handles.Handle)
class Handle(Face[handles.Handle[R]], Generic[R]):
    """A run, whoever works on it."""

    def __init__(self, loop: Loop, inner: handles.Handle[R]) -> None:
        super().__init__(loop, inner)
        self.run_id = inner.run_id

    def result(self, *, timeout: float | None = None) -> R:
        return self._call(self._inner.result, timeout=timeout)

    def status(self) -> Status:
        return self._call(self._inner.status)

    def cancel(self, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.cancel, by=by, note=note)

    def events(self, *, after: int = 0) -> Iterator[Entry]:
        return self._loop.each(self._inner.events(after=after))

    def updates(self) -> Iterator[PeerUpdate]:
        return self._loop.each(self._inner.updates())


@blocking(sessions.Session)
class Session(Face[sessions.Session[R]], Generic[R]):
    """A conversation with an agent, by its id, from any process."""

    def __init__(self, loop: Loop, inner: sessions.Session[R]) -> None:
        super().__init__(loop, inner)
        self.session_id = inner.session_id

    def send(self, message: object, *, id: str | None = None, timeout: float | None = None) -> R:
        return self._call(self._inner.send, message, id=id, timeout=timeout)

    def close(self) -> None:
        return self._call(self._inner.close)

    def status(self) -> Status:
        return self._call(self._inner.status)

    def metadata(self) -> dict[str, Any]:
        return self._call(self._inner.metadata)

    def state(self, version: int | None = None) -> State:
        return self._call(self._inner.state, version)

    def unanswered(self) -> list[Signal]:
        return self._call(self._inner.unanswered)


@blocking(worker.Worker)
class Worker(Face[worker.Worker]):
    """Works on up to `concurrency` runs at a time until it is told to stop."""

    @property
    def agents(self) -> Sequence[str]:
        return self._inner.agents

    @property
    def shutdown_seconds(self) -> float:
        return self._inner.shutdown_seconds

    def run(self) -> None:
        return self._call(self._inner.run)

    def stop(self, *, note: str = "its worker is stopping") -> None:
        return self._call(self._stop, note)

    async def _stop(self, note: str) -> None:
        self._inner.stop(note=note)


@blocking(approvals.Approvals)
class Approvals(Face[approvals.Approvals]):
    """What people are asked, over all runs, and their answers."""

    def get(self, wait_id: str) -> Asked:
        return self._call(self._inner.get, wait_id)

    def needs_a_person(self, run: Run) -> bool:
        return self._call(self._inner.needs_a_person, run)

    def approve(self, wait_id: str, *, by: str, note: str = "", digest: str = "") -> Answer:
        return self._call(self._inner.approve, wait_id, by=by, note=note, digest=digest)

    def reject(self, wait_id: str, *, by: str, note: str = "") -> Answer:
        return self._call(self._inner.reject, wait_id, by=by, note=note)

    def answer(self, wait_id: str, value: object, *, by: str) -> Answer:
        return self._call(self._inner.answer, wait_id, value, by=by)

    def list(
        self, *, run_id: str | None = None, owner: str | None = None, limit: int = 100
    ) -> "list[Asked]":
        return self._call(self._inner.list, run_id=run_id, owner=owner, limit=limit)
