"""The operations of seed 000 on paused tasks, over runs, checkpoints and waits.

A task is a run whose id is the task's. A call of a peer is a wait whose id is the sub-task's; the
calls of one invocation are one group. Nothing is deleted: the journal records what has ended.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast import codec, ids, names
from holdfast.app import Holdfast
from holdfast.clock import MICROSECONDS
from holdfast.compat.mesh import security
from holdfast.compat.mesh.outcomes import Outcomes
from holdfast.compat.mesh.pauses import Timing, parts_of, specs_of
from holdfast.compat.mesh.records import (
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    Resolution,
    RestoredTask,
)
from holdfast.compat.mesh.rows import Calls, WaitRow
from holdfast.compat.mesh.task_context import TaskExecutionContext
from holdfast.engine import sweeper
from holdfast.engine.held import paused_tasks
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.held.paused_tasks import Pause
from holdfast.engine.waits import CLAIM_SECONDS
from holdfast.errors import (
    Fenced,
    IllegalMove,
    LeaseHeld,
    MisuseError,
    NotFoundError,
    RunEnded,
    WaitNotFound,
)
from holdfast.kernel import runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.peers import PEER
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.telemetry import log


class CheckpointService:
    """Tasks that pause for their peers; any process with the same store can go on with them.

    `remint` makes the value that a reference in a security context stands for. A call without a
    `timeout_seconds` of its own has `default_timeout_seconds`.
    """

    def __init__(
        self,
        hf: Holdfast,
        *,
        remint: security.Remint | None = None,
        default_timeout_seconds: float = 600.0,
    ) -> None:
        self._context = hf._context  # pyright: ignore[reportPrivateUsage] - it is part of the app
        self._leases = hf.leases
        self._waits = hf.waits
        self._checkpoints = hf.checkpoints
        self._remint = remint
        self._default_timeout_seconds = default_timeout_seconds
        self._calls = Calls(self._context)
        self._outcomes = Outcomes(self._context, self._calls)
        self._held: dict[str, LeasedRun] = {}
        self._me = f"{self._context.worker}/{ids.uuid7()}"

    # The pause.

    async def checkpoint_task(self, task_context: TaskExecutionContext, agent_name: str) -> None:
        """Store a task and its open calls in one commit; after it the task may leave memory.

        The task waits until every call is answered, has timed out or was cancelled; without open
        calls it can be restored at once. Repeated for the same task, it adds a version, and known
        calls stay unchanged. The timeout of a call counts from its registration, not from here.
        Raises Fenced if another process has continued it.
        """
        stored = task_context.to_checkpoint_dict()
        task_id: str = names.check(stored["task_id"], what="task id")
        timing = Timing(self._default_timeout_seconds, task_context.seconds_since_dispatch())
        groups = specs_of(stored, timing)
        held = self._held.get(task_id)
        lease_seq = 0 if held is None else held.run.lease_seq
        since = lease_seq or await self._since(task_id)
        state = parts_of(stored, agent_name=agent_name, since=since)
        try:
            await paused_tasks.pause(
                self._context, task_id, Pause(agent_name, state, groups, lease_seq)
            )
        except Fenced:
            self._held.pop(task_id, None)
            raise
        self._held.pop(task_id, None)

    async def _since(self, task_id: str) -> int:
        """Return the entry after which the calls of the present pause were opened."""
        if await self._context.store.runs.get(task_id) is None:
            return 0
        return (await self._checkpoints.load(task_id)).get("since", 0)

    # Answers.

    async def resolve_wait_once(self, sub_task_id: str, result: object) -> Resolution:
        """Claim a call and record its result in one commit: accepted once, whatever races.

        Later answers are counted, logged and ignored; one to a call nobody knows is harmless.
        """
        row = await self._row(sub_task_id)
        if row is None:
            log.warning("there is no sub-task %s: what came for it is ignored", sub_task_id)
            return Resolution(accepted=False, sub_task_id=sub_task_id)
        answer = await self._waits.resolve(sub_task_id, result)
        before = row.call.completed_before
        return Resolution(
            accepted=answer.accepted,
            sub_task_id=sub_task_id,
            logical_task_id=row.wait.run_id,
            invocation_id=row.call.invocation_id,
            completed=before + answer.completed,
            total=before + answer.total,
        )

    async def claim_peer_sub_task(
        self, sub_task_id: str, *, seconds: float = CLAIM_SECONDS
    ) -> dict[str, Any] | None:
        """Claim a call, to record its result; None if it is claimed by another, or over.

        It does not time out meanwhile. If its result is not recorded in so many seconds, because
        the process died, it can be claimed again: nothing is lost in between.
        """
        row = await self._row(sub_task_id)
        if (
            row is None
            or await self._waits.claim(sub_task_id, seconds=seconds, by=self._me) is None
        ):
            return None
        return {
            **row.call.correlation_data,
            "sub_task_id": sub_task_id,
            "logical_task_id": row.wait.run_id,
            "invocation_id": row.call.invocation_id,
        }

    async def record_parallel_result(
        self,
        logical_task_id: str,
        invocation_id: str,
        result: object,
        sub_task_id: str | None = None,
    ) -> tuple[int, int]:
        """Record the result of a call; return how many of its invocation are in, and the total.

        Without a `sub_task_id` it is the call with the function call id of the result, else the one
        that this service has claimed, else the only one that is open; raises MisuseError if that
        leaves more than one. For an invocation that is not known it is (0, 0), and nothing else
        happens.
        """
        if sub_task_id is None:
            row = await self._meant(logical_task_id, invocation_id, result)
            if row is None:
                return await self._outcomes.counts(logical_task_id, invocation_id)
            sub_task_id = row.wait.wait_id
        else:
            row = await self._row(sub_task_id)
        if row is None or (row.wait.run_id, row.call.invocation_id) != (
            logical_task_id,
            invocation_id,
        ):
            return 0, 0
        resolved = await self.resolve_wait_once(sub_task_id, result)
        return resolved.completed, resolved.total

    async def _meant(self, task_id: str, invocation_id: str, result: object) -> WaitRow | None:
        """Return the call that a result without an id is for; None if none is left."""
        named = await self._outcomes.named(task_id, invocation_id, result)
        if named is not None:
            return named
        found = await self._outcomes.open(task_id, invocation_id)
        own = [row for row in found if row.wait.claimed_by.startswith(f"{self._me}/")]
        if len(own) == 1:
            return own[0]
        if len(found) > 1:
            raise MisuseError(
                f"{len(found)} calls of invocation {invocation_id} of task {task_id} are open, and "
                f"{len(own)} of them are claimed by this service, so it is not known which one "
                "this result is for: nothing was recorded; give its sub_task_id"
            )
        for row in found:
            if await self._waits.claim(row.wait.wait_id, by=self._me) is not None:
                return row
        return None

    async def get_parallel_results(self, logical_task_id: str, invocation_id: str) -> list[Any]:
        """The results of an invocation so far, in the order of its calls.

        A call that timed out or was cancelled has an error that says so.
        """
        found = await self.get_parallel_invocation(logical_task_id, invocation_id)
        return [] if found is None else found.results

    async def get_parallel_invocation(
        self, logical_task_id: str, invocation_id: str
    ) -> ParallelInvocation | None:
        """How far an invocation of a paused task is; None if it is not known."""
        names.check(logical_task_id, what="task id")
        return await self._outcomes.invocation(logical_task_id, invocation_id)

    async def get_peer_sub_task(self, sub_task_id: str) -> PeerSubTask | None:
        """A call that is open, without claiming it; None if it is over or not known."""
        row = await self._row(sub_task_id)
        return row.record if row is not None and row.is_open else None

    async def get_peer_sub_tasks_for_task(self, logical_task_id: str) -> list[PeerSubTask]:
        """Return the open calls of a task in their order: the peers to notify of a cancel."""
        names.check(logical_task_id, what="task id")
        rows = await self._calls.of_task(logical_task_id)
        return [row.record for row in rows if row.is_open]

    # Time.

    async def reset_timeout_deadline(
        self, sub_task_id: str, timeout_seconds: float | None = None
    ) -> bool:
        """Restart a call's timeout, because its peer gave a sign of life; False if it is over.

        The new timeout is the original one, or `timeout_seconds`.
        """
        row = await self._row(sub_task_id)
        if row is None:
            return False
        if timeout_seconds is None:
            timeout_seconds = row.wait.patience / MICROSECONDS
        return await self._waits.extend(sub_task_id, timeout_seconds=timeout_seconds)

    async def sweep_expired_timeouts(
        self, agent_name: str, limit: int | None = None
    ) -> list[PeerSubTask]:
        """End the expired calls of an agent's tasks, and return them, the earliest first.

        Each is returned by one sweep only, and has its result already: what remains is to notify
        the peer, and to restore the task if nothing else is open.
        """
        names.check(agent_name, what="agent")
        ended: list[PeerSubTask] = []
        while limit is None or len(ended) < limit:
            batch = sweeper.BATCH if limit is None else min(sweeper.BATCH, limit - len(ended))
            waits = await sweeper.expire_peers_of(self._context, agent_name, limit=batch)
            rows = [await self._calls.row_of(wait) for wait in waits]
            ended += [row.record for row in rows if row is not None]
            if len(waits) < batch:
                break
        return ended

    # Resuming.

    async def restore_task(self, logical_task_id: str) -> dict[str, Any] | None:
        """Resume a task here; return its state, for `TaskExecutionContext.from_checkpoint_dict`.

        None if it is not known, is over, still waits for a peer, or another process continues it.
        Nothing is deleted: if this process dies, another can restore the task.
        """
        names.check(logical_task_id, what="task id")
        held = await self._take(logical_task_id)
        return None if held is None else await self._begin(held)

    async def restore_task_from_checkpoint(self, logical_task_id: str) -> RestoredTask | None:
        """The same, as a task with the artifacts and flags of all peers, and their results."""
        stored = await self.restore_task(logical_task_id)
        return None if stored is None else await self._restored(stored)

    async def restore_next(
        self, agent_name: str, timeout_seconds: float = 0.0
    ) -> RestoredTask | None:
        """Resume the task of an agent that has been complete longest; None if none is.

        Includes tasks whose process died after it restored them.
        """
        names.check(agent_name, what="agent")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            remaining = max(0.0, deadline - loop.time())
            held = await self._leases.next(agents=[agent_name], timeout_seconds=remaining)
            if held is None:
                return None
            stored = None if await self._waits_on(held) else await self._begin(held)
            if stored is not None:
                return await self._restored(stored)

    async def release_task(self, logical_task_id: str, *, delay_seconds: float = 0.0) -> bool:
        """Release a task that was restored here, for any process; False if it is not held here."""
        held = self._held.pop(logical_task_id, None)
        if held is None:
            return False
        await held.release(delay_seconds=delay_seconds)
        return True

    async def get_paused_task(self, logical_task_id: str) -> PausedTask | None:
        """Return a task as it was stored last, without resuming it; None if it is over."""
        names.check(logical_task_id, what="task id")
        return await self._outcomes.paused_task(logical_task_id)

    async def cleanup_task(self, logical_task_id: str, result: object = None) -> bool:
        """Record the end of a task: one restored here is completed, any other is cancelled.

        Its open calls are cancelled with it. False if it is not known or over already. Do so when
        the task is over, not when it is restored: until then it can be restored again.
        """
        names.check(logical_task_id, what="task id")
        held = self._held.get(logical_task_id)
        body = codec.encode(result, name="result")

        def decide(snapshot: Snapshot) -> LateDecision:
            run = snapshot.run
            if run is None or run.status in runs.ENDED:
                return LateDecision(False)
            return LateDecision(True, (_ending(run, held, body),))

        try:
            return await self._context.decide_late(logical_task_id, decide)
        finally:
            self._held.pop(logical_task_id, None)

    async def _take(self, task_id: str) -> LeasedRun | None:
        """Claim a task that no other process continues, once all its calls are over."""
        try:
            held = await self._leases.take(task_id, only_ready=True)
        except (NotFoundError, RunEnded):
            return None
        except LeaseHeld:
            if not await self._leases.expire_lost():
                return None
            return await self._take(task_id)
        except IllegalMove:
            found = await self._context.store.runs.get(task_id)
            if found is not None and found.status is RunStatus.BLOCKED:
                raise
            return None
        return None if await self._waits_on(held) else held

    async def _waits_on(self, held: LeasedRun) -> bool:
        """Leave a task that was woken to the calls of its other invocations, if any is open."""
        while True:
            stored = await self._context.store.waits.of_run(held.run_id)
            group_id = paused_tasks.waits_for_more([wait for wait in stored if wait.kind == PEER])
            if not group_id:
                return False
            if await held.suspend(group_id):
                return True

    async def _begin(self, held: LeasedRun) -> dict[str, Any] | None:
        """Return the state of a task that is now held; release a run that is not a paused task."""
        try:
            state = held.state()
            if state.get("task_id") != held.run_id:
                await held.release(note="it is not a paused task")
                return None
            references: Mapping[str, str] = state.pop("security_context")
            secrets = await security.reminted(references, self._remint)
        except BaseException:
            await held.release(note="it could not be restored")
            raise
        self._held[held.run_id] = held
        del state["since"], state["agent_name"]
        return {**state, "security_context": secrets, "security_references": dict(references)}

    async def _restored(self, stored: dict[str, Any]) -> RestoredTask:
        task = TaskExecutionContext.from_checkpoint_dict(stored)
        results = await self._outcomes.results(task.task_id)
        task.register_peer_results(results)
        return RestoredTask(task, results)

    async def _row(self, sub_task_id: str) -> WaitRow | None:
        try:
            return await self._calls.row_of(await self._waits.get(sub_task_id))
        except WaitNotFound:
            return None


def _ending(run: RunRow, held: LeasedRun | None, body: bytes) -> Draft:
    if held is None:
        return Draft(Kind.RUN_CANCELLED, runs.RunFinished("the task was cleaned up"))
    if (run.status, run.lease_seq) != (RunStatus.RUNNING, held.run.lease_seq):
        raise Fenced(
            f"task {run.run_id} was restored here, and then taken by another process: stop "
            "working on it, the other goes on"
        )
    return Draft(Kind.RUN_COMPLETED, runs.RunFinished(), body)
