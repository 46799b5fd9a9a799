"""Checkpoints, configs and chains of them, made by hand."""

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from tests.integrations.langgraph.savers import Saver

NOW = "2026-11-16T08:00:00+00:00"


def config(thread: str = "t", ns: str = "", id: str | None = None) -> RunnableConfig:
    named = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": named if id is None else {**named, "checkpoint_id": id}}


def checkpoint(values: dict[str, Any] | None = None, *, id: str | None = None) -> Checkpoint:
    """A checkpoint of these values, all of which are new in it."""
    values = values or {}
    return Checkpoint(
        v=2,
        id=id or str(uuid6(clock_seq=-1)),
        ts=NOW,
        channel_values=values,
        channel_versions={name: f"{1:032}.{id or uuid6()}" for name in values},
        versions_seen={},
        updated_channels=None,
    )


async def put(
    saver: Saver,
    values: dict[str, Any] | None = None,
    *,
    after: RunnableConfig | None = None,
    thread: str = "t",
    ns: str = "",
    id: str | None = None,
    source: str = "loop",
    **metadata: Any,
) -> RunnableConfig:
    """Put a checkpoint whose values are all new; `after` is its parent."""
    made = checkpoint(values, id=id)
    parent = after["configurable"]["checkpoint_id"] if after else None
    told: Any = {"source": source, "step": 0, "parents": {}, **metadata}
    return await saver.aput(config(thread, ns, parent), made, told, made["channel_versions"])


async def put_chain(saver: Saver, many: int, *, thread: str = "t", ns: str = "") -> list[Any]:
    """Checkpoints, each after the one before it, that say their number in `n`."""
    chain: list[RunnableConfig] = []
    for n in range(many):
        after = chain[-1] if chain else None
        chain.append(await put(saver, {"n": n}, after=after, thread=thread, ns=ns, step=n))
    return chain


async def get(saver: Saver, where: RunnableConfig) -> CheckpointTuple:
    found = await saver.aget_tuple(where)
    assert found is not None
    return found


async def listed(
    saver: Saver, where: RunnableConfig | None, **options: Any
) -> list[CheckpointTuple]:
    return [each async for each in saver.alist(where, **options)]


def id_of(what: CheckpointTuple | RunnableConfig) -> str:
    where = what.config if isinstance(what, CheckpointTuple) else what
    return where["configurable"]["checkpoint_id"]


def ids_of(what: Sequence[CheckpointTuple | RunnableConfig]) -> list[str]:
    return [id_of(each) for each in what]
