"""What the store has about the calls of paused tasks, as their service needs it."""

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.clock import MICROSECONDS
from holdfast.compat.mesh.records import PeerSubTask
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.errors import IntegrityError
from holdfast.kernel import journal
from holdfast.kernel.journal import Kind
from holdfast.kernel.peers import PEER
from holdfast.kernel.waits import Wait, WaitStatus

_KEPT: Final = 256


class PeerCallRow(msgspec.Struct, frozen=True):
    """What a wait for a peer was opened with, in the order of the calls.

    `completed_before` results of the invocation were there already when the task paused.
    """

    invocation_id: str
    correlation_data: dict[str, Any]
    completed_before: int = 0


class WaitRow(NamedTuple):
    """A wait, what it was opened with, and its place among the calls of the task."""

    wait: Wait
    call: PeerCallRow
    place: tuple[int, int]

    @property
    def is_open(self) -> bool:
        return self.wait.status is WaitStatus.OPEN

    @property
    def record(self) -> PeerSubTask:
        wait = self.wait
        return PeerSubTask(
            sub_task_id=wait.wait_id,
            logical_task_id=wait.run_id,
            invocation_id=self.call.invocation_id,
            correlation_data=self.call.correlation_data,
            timeout_deadline=wait.deadline / MICROSECONDS,
            created_at=wait.opened_at / MICROSECONDS,
            claimed_until=wait.claimed_until / MICROSECONDS,
        )


class Calls:
    """Reads calls. What they were opened with never changes, so the latest of it is kept."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: OrderedDict[tuple[str, int], dict[str, tuple[int, PeerCallRow]]] = OrderedDict()

    async def row_of(self, wait: Wait) -> WaitRow | None:
        """Return a wait for a peer that a paused task opened; None if it is of another kind."""
        if wait.kind != PEER:
            return None
        found = (await self._opened(wait.run_id, wait.opened_seq)).get(wait.wait_id)
        return None if found is None else WaitRow(wait, found[1], (wait.opened_seq, found[0]))

    async def of_task(self, run_id: str, *, since: int = 0) -> list[WaitRow]:
        """The calls of a task that were opened after a seq, in their order."""
        stored = await self._context.store.waits.of_run(run_id)
        rows = [await self.row_of(wait) for wait in stored if wait.opened_seq > since]
        return sorted((row for row in rows if row is not None), key=lambda row: row.place)

    async def _opened(self, run_id: str, seq: int) -> dict[str, tuple[int, PeerCallRow]]:
        key = run_id, seq
        if key not in self._kept:
            self._kept[key] = await self._read(run_id, seq)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def _read(self, run_id: str, seq: int) -> dict[str, tuple[int, PeerCallRow]]:
        for linked in await self._context.store.journal.named(run_id, [seq]):
            entry = linked.entry
            is_right = entry.kind == Kind.WAITS_OPENED
            if is_right and journal.is_intact(entry, linked.previous or b""):
                payloads: dict[str, Any] = body_of(entry) or {}
                return {
                    wait_id: (place, msgspec.convert(payload, PeerCallRow))
                    for place, (wait_id, payload) in enumerate(payloads.items())
                    if isinstance(payload, dict) and "correlation_data" in payload
                }
        raise IntegrityError(f"entry {seq} of run {run_id} is damaged, or opens no waits")
