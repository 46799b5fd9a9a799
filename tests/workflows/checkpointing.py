"""States to save, and a little executor of blocks that somebody else has written."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.compat.workflow_stores import (
    CheckpointState,
    CheckpointStore,
    PauseMetadata,
    ResumeResult,
)
from holdfast.sync.checkpoint_store import pause_workflow
from holdfast.workflows import Block

HOUR = 3600.0
NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)


def block(name: str, kind: str = "Shell", *needs: str) -> Block:
    return Block(id=name, type=kind, inputs={"command": f"echo {name}"}, depends_on=list(needs))


def waves() -> list[list[Block]]:
    return [[block("build")], [block("ask", "Prompt", "build")], [block("ship", "Shell", "ask")]]


def state(checkpoint_id: str = "c-1", **changed: Any) -> CheckpointState:
    fields: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "workflow_name": "release",
        "workflow_inputs": {"version": "1.2"},
        "execution_waves": waves(),
        "completed_waves": 1,
        "context": {"blocks": {"build": {"outputs": {"log": "done"}}}, "run": [1, 2]},
        "created_at": NOW,
    }
    return CheckpointState(**fields | changed)


def asking(checkpoint_id: str = "c-1", **changed: Any) -> CheckpointState:
    return state(checkpoint_id, pause_metadata=PauseMetadata("ask", "Ship it?"), **changed)


def aged(hours: float, now: datetime) -> dict[str, Any]:
    return {"created_at": now - timedelta(hours=hours)}


class LittleExecutor:
    """Carries out every block of the waves it is told, as the seed's does; a Prompt pauses it."""

    def __init__(
        self, workflow_name: str, inputs: dict[str, Any], store: CheckpointStore, done: list[str]
    ) -> None:
        self.workflow_name = workflow_name
        self.inputs = inputs
        self.waves: list[list[Block]] = []
        self.current_wave = 0
        self.context: dict[str, Any] = {"inputs": inputs, "blocks": {}}
        self._store = store
        self._done = done

    def execute_from_wave(self, wave: int) -> Any:
        for number in range(wave, len(self.waves)):
            self.current_wave = number
            for each in self.waves[number]:
                if each.type == "Prompt":
                    made = pause_workflow(self, each.id, f"{each.id}?", store=self._store)
                    return ResumeResult.success({"paused": made})
                self._done.append(each.id)
                self.context["blocks"][each.id] = {"outputs": {"by": each.id}}
        return ResumeResult.success(self.context["blocks"])


def maker(
    store: CheckpointStore, done: list[str]
) -> Callable[[str, dict[str, Any]], LittleExecutor]:
    return lambda name, inputs: LittleExecutor(name, inputs, store, done)
