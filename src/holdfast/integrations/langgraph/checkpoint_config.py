"""What a config says: which thread, which namespace, which checkpoint, under which lease."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from langchain_core.runnables import RunnableConfig

from holdfast.errors import MisuseError
from holdfast.integrations.langgraph.layout import run_id_of

TOKEN: Final = "__holdfast_lease"
"""The key of a config's `configurable` under which a lease on the thread goes along."""


class CheckpointConfig(NamedTuple):
    """What a config says: which thread, which namespace, which checkpoint, under which lease."""

    thread_id: str
    space: str
    checkpoint_id: str
    token: int
    is_run: bool = False
    """Whether a run of a graph asks, and not a mere reader."""

    @property
    def run_id(self) -> str:
        return run_id_of(self.thread_id)


def place_of(config: RunnableConfig) -> CheckpointConfig:
    """Raises MisuseError for a config that names no thread."""
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    if "thread_id" not in configurable:
        raise MisuseError(
            'a checkpointer needs to know the thread: give config={"configurable": '
            '{"thread_id": "..."}}'
        )
    return CheckpointConfig(
        str(configurable["thread_id"]),
        configurable.get("checkpoint_ns") or "",
        str(configurable.get("checkpoint_id") or ""),
        configurable.get(TOKEN) or 0,
        any(key.startswith("__pregel_") for key in configurable),
    )


def config_of(thread_id: str, space: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": space,
            "checkpoint_id": checkpoint_id,
        }
    }
