"""Checkpoints of workflows in a store: each is a run that no worker works on.

The run's subject is the workflow's name. Saving is one commit of what changed. Deleting ends the
run and erases its bodies, and a checkpoint that is saved under the same id again is the next run.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from holdfast import clock, names
from holdfast.app import Holdfast
from holdfast.compat.workflow_stores.checkpoint_state import CheckpointState, parts_of, state_of
from holdfast.compat.workflow_stores.checkpoint_store import (
    check_workflow,
    held_elsewhere,
    in_order,
)
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.held import paused_tasks
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.held.paused_tasks import Pause
from holdfast.engine.maintenance import erasure
from holdfast.engine.writing.checkpoint_saver import About
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IntegrityError,
    LeaseHeld,
    RunEnded,
)
from holdfast.kernel import runs
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.telemetry import log

AGENT: Final = "workflow-checkpoint"
"""The agent of the runs that are checkpoints; no worker serves it."""
_IDLE: Final = (RunStatus.READY, RunStatus.BLOCKED)
_WAITING: Final = "waiting"
_PAGE: Final = 100


class StoredCheckpoints:
    """The checkpoints of one tenant: `StoredCheckpoints(hf)`, with `hf` open.

    The same as a `CheckpointStore`, for code that awaits.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._context = hf._context  # pyright: ignore[reportPrivateUsage] - it is part of the app
        self._leases = hf.leases
        self._checkpoints = Checkpoints(self._context)
        self._held: dict[str, LeasedRun] = {}

    async def save(self, state: CheckpointState) -> None:
        """Store a state in one commit: what differs from the one saved under the same id.

        Raises UnsupportedValue for what would not come back unchanged, InputDiffers if the id is
        that of another workflow's checkpoint, and LeaseHeld while another process resumes it.
        """
        parts = parts_of(state)
        about = About(
            phase="paused" if state.pause_metadata is not None else "running",
            agent=AGENT,
            status=_WAITING if state.is_waiting else "going-on",
            label=str(clock.from_datetime(state.created_at)),
        )
        while True:
            run_id, run = await self._find(state.checkpoint_id)
            if run is not None:
                check_workflow(state, run.subject)
            held = self._held.get(state.checkpoint_id)
            if held is not None:
                await held.save(
                    parts,
                    phase=about.phase,
                    agent=about.agent,
                    status=about.status,
                    label=about.label,
                )
                return
            wanted = Pause(AGENT, parts, (), subject=state.workflow_name, about=about)
            try:
                await paused_tasks.pause(self._context, run_id, wanted)
            except LeaseHeld as error:
                await self._look_for_holder(state.checkpoint_id, error)
            except RunEnded:
                continue
            else:
                return

    async def load(self, checkpoint_id: str) -> CheckpointState | None:
        """Return the state that was saved last; None if it does not exist."""
        _, run = await self._find(checkpoint_id)
        return None if run is None else await self._state(run)

    async def delete(self, checkpoint_id: str) -> None:
        """Remove a checkpoint and erase what it held; a missing one is not an error."""
        run_id, run = await self._find(checkpoint_id)
        if run is not None:
            await self._erase(run_id, note="the checkpoint was deleted")
        self._held.pop(checkpoint_id, None)

    async def list(self, workflow_name: str | None = None) -> "list[CheckpointState]":
        """The checkpoints of one workflow or of all, oldest first; a damaged one is logged."""
        names.check_optional(workflow_name, what="workflow name")
        found: list[CheckpointState] = []
        async for run in self._alive(workflow_name):
            try:
                state = await self._state(run)
            except IntegrityError as error:
                log.error("a checkpoint of workflow %s is left out: %s", run.subject, error)
                continue
            if state is not None:
                found.append(state)
        return in_order(found)

    async def cleanup_expired(
        self, max_age_hours: float = 24, *, even_waiting: bool = False
    ) -> int:
        """Remove what is older than this by the store's clock; return how many there were.

        One that waits for an answer stays unless `even_waiting`, as does one that is being resumed.
        What cannot be removed is logged, and tried again the next time.
        """
        age = clock.hours(max_age_hours)
        await self._leases.expire_lost()
        removed = 0
        async for run in self._alive(None):
            try:
                removed += await self._remove_expired(run, age, even_waiting)
            except HoldfastError as error:
                log.error("checkpoint %s could not be removed: %s", run.run_id, error)
        return removed

    async def claim(self, checkpoint_id: str) -> bool:
        """Claim a checkpoint until it is released, deleted, or this process is gone.

        Raises LeaseHeld if another has claimed it; returns False if there is no such checkpoint.
        """
        while True:
            run_id, run = await self._find(checkpoint_id)
            if run is None:
                return False
            try:
                self._held[checkpoint_id] = await self._leases.take(run_id, only_ready=True)
            except LeaseHeld as error:
                await self._look_for_holder(checkpoint_id, error)
            except RunEnded:
                continue
            else:
                return True

    async def release(self, checkpoint_id: str) -> None:
        """Release a checkpoint for others; also one that was lost or deleted."""
        held = self._held.pop(checkpoint_id, None)
        if held is not None:
            try:
                await held.release()
            except ConflictError as error:
                log.info("checkpoint %s was not held any more: %s", checkpoint_id, error)

    def now(self) -> datetime:
        """The time by the store's clock."""
        return clock.to_datetime(self._context.now())

    async def _look_for_holder(self, checkpoint_id: str, error: LeaseHeld) -> None:
        """Raise LeaseHeld, unless the holder was a process that is gone."""
        if not await self._leases.expire_lost():
            raise held_elsewhere(checkpoint_id, "by another") from error

    async def _find(self, checkpoint_id: str) -> tuple[str, RunRow | None]:
        """Return the run of a checkpoint, or the id that it would have."""
        run_id = names.check(checkpoint_id, what="checkpoint id")
        incarnation = 1
        while True:
            run = await self._context.store.runs.get(run_id)
            is_ours = run is not None and run.agent == AGENT
            if run is None or (is_ours and run.status not in runs.ENDED):
                return run_id, run
            incarnation += 1
            run_id = names.check(f"{checkpoint_id}~{incarnation}", what="checkpoint id")

    async def _state(self, run: RunRow) -> CheckpointState | None:
        found = await self._checkpoints.load(run.run_id)
        return state_of(found.parts) if found.parts else None

    async def _alive(self, workflow_name: str | None) -> AsyncIterator[RunRow]:
        """Yield the runs that are checkpoints, oldest first."""
        after = (0, "")
        while page := await self._context.store.runs.live(
            AGENT, workflow_name, after=after, limit=_PAGE
        ):
            for run in page:
                yield run
            after = (page[-1].created_at, page[-1].run_id)

    async def _remove_expired(self, run: RunRow, age: int, even_waiting: bool) -> bool:
        newest = await self._context.store.checkpoints.page(run.run_id, before=2**62, limit=1)
        if run.status not in _IDLE or not newest or not self._is_over(newest[0], age):
            return False
        if newest[0].status == _WAITING and not even_waiting:
            return False

        def permits(now: RunRow, version: int) -> bool:
            return now.status in _IDLE and version == newest[0].version

        return await erasure.erase_run(
            self._context, run.run_id, note="the checkpoint had expired", permits=permits
        )

    def _is_over(self, newest: Checkpoint, age: int) -> bool:
        return self._context.now() - int(newest.label) > age

    async def _erase(self, run_id: str, *, note: str) -> None:
        await erasure.erase_run(self._context, run_id, note=note, permits=lambda run, version: True)
