"""The outcomes of the calls of a paused task, read from its rows."""

from collections.abc import Sequence
from typing import Any

from holdfast.clock import MICROSECONDS
from holdfast.compat.mesh import answers
from holdfast.compat.mesh.records import ParallelInvocation, PausedTask
from holdfast.compat.mesh.rows import Calls, WaitRow
from holdfast.engine.context import Context
from holdfast.engine.reading.versions import load_newest
from holdfast.engine.waits import results_of
from holdfast.kernel import runs
from holdfast.kernel.waits import Result, WaitStatus


class Outcomes:
    """Reads; the calls of the present pause only, since an invocation may pause again."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._context = context
        self._calls = calls

    async def named(self, task_id: str, invocation_id: str, result: object) -> WaitRow | None:
        """The call whose function call id a result has: an open one, else one that is over."""
        call_id = answers.call_of(result)
        if not call_id:
            return None
        rows = [
            row
            for row in await self._calls.of_task(task_id)
            if row.call.invocation_id == invocation_id
            and answers.call_of(row.call.correlation_data) == call_id
        ]
        return max(rows, key=lambda row: (row.is_open, row.place), default=None)

    async def open(self, task_id: str, invocation_id: str) -> list[WaitRow]:
        """The calls of an invocation that have no result."""
        rows = await self._calls.of_task(task_id)
        return [row for row in rows if row.is_open and row.call.invocation_id == invocation_id]

    async def counts(self, task_id: str, invocation_id: str) -> tuple[int, int]:
        found = await self.invocation(task_id, invocation_id)
        return (0, 0) if found is None else (found.completed_count, found.total_expected)

    async def invocation(self, task_id: str, invocation_id: str) -> ParallelInvocation | None:
        state = await self._state(task_id)
        if state is None:
            return None
        rows = await self._calls.of_task(task_id, since=state["since"])
        rows = [row for row in rows if row.call.invocation_id == invocation_id]
        earlier = state["parallel_tool_calls"].get(invocation_id)
        if not rows and earlier is None:
            return None
        before: list[Any] = [] if earlier is None else earlier["results"]
        results = await self._results(rows)
        return ParallelInvocation(
            logical_task_id=task_id,
            invocation_id=invocation_id,
            total_expected=len(before) + len(rows),
            completed_count=len(before) + len(results),
            results=[*before, *results],
        )

    async def results(self, task_id: str) -> list[Any]:
        """The results of all calls of the present pause, and those that were there before it."""
        state = await self._state(task_id)
        if state is None:
            return []
        earlier = [
            each for calls in state["parallel_tool_calls"].values() for each in calls["results"]
        ]
        rows = await self._calls.of_task(task_id, since=state["since"])
        return [*earlier, *await self._results(rows)]

    async def paused_task(self, task_id: str) -> PausedTask | None:
        state = await self._state(task_id)
        if state is None:
            return None
        (newest,) = await self._context.store.checkpoints.page(task_id, before=2**62, limit=1)
        a2a_context = state["a2a_context"]
        return PausedTask(
            logical_task_id=task_id,
            agent_name=state["agent_name"],
            a2a_context=a2a_context,
            effective_session_id=a2a_context.get("effective_session_id")
            or a2a_context.get("session_id"),
            user_id=a2a_context.get("user_id"),
            current_invocation_id=state["current_invocation_id"],
            produced_artifacts=state["produced_artifacts"],
            artifact_signals_to_return=state["artifact_signals_to_return"],
            response_buffer=state["run_based_response_buffer"],
            flags=state["flags"],
            security_context=state["security_context"],
            token_usage=state["token_usage"],
            checkpointed_at=newest.created_at / MICROSECONDS,
        )

    async def _state(self, task_id: str) -> dict[str, Any] | None:
        """The state of a task that is not over; None if it is, or is not a paused task."""
        run = await self._context.store.runs.get(task_id)
        if run is None or run.status in runs.ENDED:
            return None
        state = (await load_newest(self._context, task_id)).parts.decode()
        return state if state.get("task_id") == task_id else None

    async def _results(self, rows: Sequence[WaitRow]) -> list[Any]:
        """Return how the calls ended, in their order; open ones are left out."""
        ended: dict[str, Result] = {}
        for run_id, group_id in dict.fromkeys((r.wait.run_id, r.wait.group_id) for r in rows):
            found = await results_of(self._context, run_id, group_id)
            ended |= {result.wait_id: result for result in found}
        return [_outcome(row, ended[row.wait.wait_id]) for row in rows if row.wait.wait_id in ended]


def _outcome(row: WaitRow, result: Result) -> Any:
    match result.status:
        case WaitStatus.EXPIRED:
            timeout = row.wait.patience / MICROSECONDS
            return answers.timed_out(row.call.correlation_data, timeout)
        case WaitStatus.CANCELLED:
            return answers.cancelled(row.call.correlation_data)
        case _:
            return result.value
