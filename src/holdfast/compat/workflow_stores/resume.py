"""Pausing and resuming with your own executor: the two functions of the seed.

They know nothing of how blocks are executed. Workflows that Holdfast itself executes do not need
this: see `hf.workflows`.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

import msgspec

from holdfast import ids
from holdfast.compat.workflow_stores.checkpoint_state import (
    CheckpointState,
    PauseMetadata,
    has_ended,
)
from holdfast.compat.workflow_stores.checkpoint_store import CheckpointStore
from holdfast.errors import LeaseHeld
from holdfast.workflows.definitions.definition import Block


class WorkflowExecutor(Protocol):
    """What carries out the blocks of a workflow, wave by wave.

    `current_wave` is the number of the wave that is being carried out, from 0, so that many are
    completed. `context["blocks"][ID]["outputs"]` is there once a block has ended, not before.
    """

    workflow_name: str
    inputs: dict[str, Any]
    waves: list[list[Block]]
    current_wave: int
    context: dict[str, Any]

    def execute_from_wave(self, wave: int, /) -> Any:
        """Carry out a wave and those after it; a Result, or what the workflow gives."""
        ...


MakeExecutor = Callable[[str, dict[str, Any]], WorkflowExecutor]
"""Makes an executor of a workflow's name and inputs."""


class ResumeResult(msgspec.Struct, frozen=True):
    """The outcome of a resume: the workflow's result, or why it did not continue."""

    value: Any = None
    error: str = ""

    @classmethod
    def success(cls, value: Any) -> "ResumeResult":
        return cls(value)

    @classmethod
    def failure(cls, error: str) -> "ResumeResult":
        return cls(None, error)

    @property
    def is_success(self) -> bool:
        return not self.error


def pause(executor: WorkflowExecutor, block_id: str, prompt: str, *, store: CheckpointStore) -> str:
    """Store an executor's progress because a block asks something; return the checkpoint's id.

    Every pause has its own id: an answer that comes twice cannot answer the next question.
    """
    checkpoint_id = ids.new_run_id()
    store.save(
        CheckpointState(
            checkpoint_id=checkpoint_id,
            workflow_name=executor.workflow_name,
            workflow_inputs=executor.inputs,
            execution_waves=executor.waves,
            completed_waves=executor.current_wave,
            context=executor.context,
            created_at=store.now(),
            pause_metadata=PauseMetadata(block_id, prompt),
        )
    )
    return checkpoint_id


def resume(
    checkpoint_id: str, response: str, *, make_executor: MakeExecutor, store: CheckpointStore
) -> ResumeResult:
    """Resume from a checkpoint with an answer, which may be empty.

    The answer is stored first. The checkpoint is deleted when the executor has reached its end or
    its next pause; if it raises, or returns a failure, the checkpoint stays and can be resumed
    again with the answer that it has.
    """
    try:
        with store.claimed(checkpoint_id):
            return _resume(checkpoint_id, response, make_executor, store)
    except LeaseHeld as error:
        return ResumeResult.failure(str(error))


def _resume(
    checkpoint_id: str, response: str, make_executor: MakeExecutor, store: CheckpointStore
) -> ResumeResult:
    state = store.load(checkpoint_id)
    if state is None:
        return ResumeResult.failure(f"Checkpoint not found: {checkpoint_id}")
    problem = _answer(state, response)
    if problem:
        return ResumeResult.failure(problem)
    if state.pause_metadata is not None:
        store.save(state)
    executor = make_executor(state.workflow_name, deepcopy(state.workflow_inputs))
    executor.context = deepcopy(state.context)
    _give(executor.context, state.pause_metadata)
    executor.waves, executor.current_wave = next_wave(
        state.execution_waves, state.completed_waves, executor.context
    )
    given = executor.execute_from_wave(executor.current_wave)
    result = given if isinstance(given, ResumeResult) else ResumeResult.success(given)
    if result.is_success:
        store.delete(checkpoint_id)
    return result


def _answer(state: CheckpointState, response: str) -> str:
    """Store an answer in a state; return what is wrong with it, if anything."""
    paused = state.pause_metadata
    if paused is None:
        return ""
    if paused.response is None:
        paused.response = response
    elif response not in ("", paused.response):
        return (
            f"Checkpoint {state.checkpoint_id} was answered before, with something else: the first "
            "answer stays. Resume it without a response to go on with that one"
        )
    return ""


def _give(context: dict[str, Any], paused: PauseMetadata | None) -> None:
    """Put the answer where the blocks to come look for it."""
    if paused is None:
        return
    block = context.setdefault("blocks", {}).setdefault(paused.block_id, {})
    block.setdefault("outputs", {})["response"] = paused.response
    if "status" in block:
        block["status"] = "completed"


def next_wave(
    waves: Sequence[Sequence[Block]], completed: int, context: dict[str, Any]
) -> tuple[list[list[Block]], int]:
    """Return where to resume, so that every block is executed once.

    If some blocks of a wave have ended, they become a separate, completed wave, and the others are
    the next one.
    """
    known = [list(wave) for wave in waves]
    if completed >= len(known):
        return known, completed
    ended = [block for block in known[completed] if has_ended(context, block)]
    others = [block for block in known[completed] if block not in ended]
    if not ended:
        return known, completed
    known[completed : completed + 1] = [ended, others] if others else [ended]
    return known, completed + 1
