"""`durable(graph)`: the same graph, run by one process at a time, and saved before each next step.

While a graph runs, its thread is held by a lease, which is passed in the config and is checked by
every write. Resuming a thread that waits for people takes the answers given in the inbox.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import ensure_config  # pyright: ignore[reportMissingTypeStubs] - LangGraph marks only some packages as typed
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER, CONFIG_KEY_TASK_ID  # pyright: ignore[reportMissingTypeStubs] - LangGraph marks only some packages as typed
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs] - LangGraph marks only some packages as typed
from langgraph.types import Command, Interrupt, StateSnapshot

from holdfast.errors import HoldfastError, MisuseError, StoreClosed
from holdfast.integrations.langgraph import interrupts
from holdfast.integrations.langgraph.checkpoint_config import TOKEN
from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.thread import Thread
from holdfast.integrations.langgraph.tools import tool_calls

G = TypeVar("G", bound=Pregel[Any, Any, Any, Any])

_CONF: Final = "configurable"
_ADVICE: Final = (
    'compile it with one: builder.compile(checkpointer=HoldfastSaver("agents.db")), or '
    "create_agent(..., checkpointer=...)"
)


def durable(graph: G) -> G:
    """The same graph, for threads that only one process may run at a time.

    Every step is stored before the next one begins (`durability="sync"`). A thread that another
    process runs raises ThreadBusy. `invoke(None, config)` resumes with the answers that people gave
    in the approvals inbox. A graph that runs as a node of another one is part of that one's run.
    """
    if not isinstance(graph, Pregel):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(f"durable() takes a compiled graph, not {type(graph).__name__}")
    saver = cast(Any, graph).checkpointer
    if not (saver is None or saver is True or isinstance(saver, HoldfastSaver)):
        raise MisuseError(f"this graph has {_shown(saver)} for a checkpointer; {_ADVICE}")
    made = object.__new__(_durable_kind(type(graph)))
    made.__dict__.update(graph.__dict__)
    return cast(G, made)


class _Taking:
    """Claims a thread for a caller on another event loop, who may go away at any moment.

    Used on the store's loop only. A lease that never reaches the caller is released.
    """

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._has_begun = False
        self._is_given_up = False
        self._ended = asyncio.Event()
        self._token = 0

    async def hold(self) -> int:
        if self._is_given_up:
            raise asyncio.CancelledError
        self._has_begun = True
        try:
            self._token = await self._thread.hold()
            return self._token
        finally:
            self._ended.set()

    async def give_up(self) -> None:
        """Release the thread if it was claimed; wait for a claim that is still under way."""
        self._is_given_up = True
        if self._has_begun:
            await self._ended.wait()
        if self._token:
            with contextlib.suppress(HoldfastError):
                await self._thread.release(self._token)


class _HeldThread(NamedTuple):
    """A thread that is to be held, and the config of the run that holds it."""

    saver: HoldfastSaver
    thread_id: str
    config: RunnableConfig
    is_latest: bool

    async def hold(self) -> int:
        thread = Thread(self.saver.host, self.thread_id)
        return await thread.hold()

    async def ahold(self) -> int:
        """Hold the thread for a task that may be cancelled, even after it was taken."""
        taking = _Taking(Thread(self.saver.host, self.thread_id))
        try:
            return await self.saver.acall(taking.hold)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreClosed):
                self.saver.host.send(taking.give_up)
            raise

    async def release(self, token: int) -> None:
        thread = Thread(self.saver.host, self.thread_id)
        await thread.release(token)

    async def answers(self, wait_ids: Sequence[str]) -> Mapping[str, Any]:
        thread = Thread(self.saver.host, self.thread_id)
        return await thread.answers(wait_ids)

    def with_token(self, token: int) -> RunnableConfig:
        conf = {**self.config.get(_CONF, {}), TOKEN: token}
        return cast(RunnableConfig, {**self.config, _CONF: conf})


class _Durable(Pregel[Any, Any, Any, Any]):
    """What a durable graph does differently; everything else in a graph uses these methods."""

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        return self._stream_held(input, config, options)

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        return self._astream_held(input, config, options)

    def bulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[Any]]
    ) -> RunnableConfig:
        with self._held(_held_by(self, config)) as held:
            return _without_token(super().bulk_update_state(held or config, supersteps))

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[Any]]
    ) -> RunnableConfig:
        async with self._aheld(_held_by(self, config)) as held:
            return _without_token(await super().abulk_update_state(held or config, supersteps))

    def _stream_held(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> Iterator[Any]:
        wanted = _held_by(self, config)
        if wanted is None:
            yield from _whole(super()).stream(input, config, **options)
            return
        synced = _synced(options)
        with self._held(wanted) as held:
            if input is None and wanted.is_latest:
                asked = _asked(wanted.thread_id, self.get_state(wanted.config))
                input = _resumed(asked, asked and wanted.saver.call(wanted.answers, list(asked)))
            yield from _whole(super()).stream(input, held, **synced)

    async def _astream_held(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncIterator[Any]:
        wanted = _held_by(self, config)
        if wanted is None:
            async with aclosing(
                _generator(_whole(super()).astream(input, config, **options))
            ) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        synced = _synced(options)
        async with self._aheld(wanted) as held:
            if input is None and wanted.is_latest:
                asked = _asked(wanted.thread_id, await self.aget_state(wanted.config))
                given = asked and await wanted.saver.acall(wanted.answers, list(asked))
                input = _resumed(asked, given)
            async with aclosing(
                _generator(_whole(super()).astream(input, held, **synced))
            ) as chunks:
                async for chunk in chunks:
                    yield chunk

    @contextlib.contextmanager
    def _held(self, wanted: _HeldThread | None) -> Generator[RunnableConfig | None]:
        if wanted is None:
            yield None
            return
        token = wanted.saver.call(wanted.hold)
        try:
            yield wanted.with_token(token)
        finally:
            with contextlib.suppress(StoreClosed):
                wanted.saver.call(wanted.release, token)

    @contextlib.asynccontextmanager
    async def _aheld(self, wanted: _HeldThread | None) -> AsyncGenerator[RunnableConfig | None]:
        if wanted is None:
            yield None
            return
        token = await wanted.ahold()
        try:
            yield wanted.with_token(token)
        finally:
            # A second cancellation of this task must not leave the thread held.
            with contextlib.suppress(StoreClosed):
                await asyncio.shield(wanted.saver.acall(wanted.release, token))


@functools.cache
def _durable_kind(kind: type[Any]) -> type[Any]:
    """A kind of graph, made durable."""
    if issubclass(kind, _Durable):
        return kind
    return type(kind.__name__, (_Durable, kind), {"__doc__": kind.__doc__})


def _held_by(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig | None
) -> _HeldThread | None:
    """What a run with this config has to hold; None for a part of a run that holds it."""
    whole = ensure_config(graph.config, config)
    conf: Mapping[str, Any] = whole.get(_CONF, {})
    lent = conf.get(CONFIG_KEY_CHECKPOINTER)
    if CONFIG_KEY_TASK_ID in conf or (lent is not None and TOKEN in conf):
        return None
    own = cast(Any, graph).checkpointer
    saver: object = cast(object, lent) if isinstance(lent, BaseCheckpointSaver) else own
    if not isinstance(saver, HoldfastSaver):
        raise MisuseError(f"a durable graph cannot run with {_shown(saver)}; {_ADVICE}")
    if not conf.get("thread_id"):
        raise MisuseError(
            'a durable graph runs in a thread: give config={"configurable": {"thread_id": "..."}}'
        )
    given = cast(RunnableConfig, {**(config or {}), _CONF: dict((config or {}).get(_CONF, {}))})
    return _HeldThread(saver, str(conf["thread_id"]), given, not conf.get("checkpoint_id"))


def _synced(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a run, which stores each step before it begins the next."""
    wanted = options.get("durability")
    if wanted not in (None, "sync") or options.get("checkpoint_during") is not None:
        raise MisuseError(
            'a durable graph stores each step before the next one begins: durability is "sync". '
            f"Leave out {'durability' if wanted else 'checkpoint_during'}, or do not use durable()"
        )
    return {**options, "durability": "sync"}


def _asked(thread_id: str, state: StateSnapshot) -> dict[str, Interrupt[Any]]:
    """What a thread asks people, by the ids of the waits."""
    asked = [interrupt for task in state.tasks for interrupt in task.interrupts]
    return {interrupts.wait_id_of(thread_id, interrupt): interrupt for interrupt in asked}


def _resumed(asked: Mapping[str, Interrupt[Any]], given: Mapping[str, Any]) -> Command[Any] | None:
    """The answers as LangGraph takes them; None if there are none."""
    answers = {
        asked[wait_id].id: tool_calls.named(asked[wait_id].value, answer)
        for wait_id, answer in given.items()
    }
    return Command(resume=answers) if answers else None


def _without_token(config: RunnableConfig) -> RunnableConfig:
    conf = {name: value for name, value in config.get(_CONF, {}).items() if name != TOKEN}
    return cast(RunnableConfig, {**config, _CONF: conf})


def _whole(graph: object) -> Any:
    """Return the graph, untyped: its streams have more overloads than can be declared here."""
    return graph


def _generator(chunks: Any) -> AsyncGenerator[Any]:
    return cast("AsyncGenerator[Any]", chunks)


def _shown(saver: object) -> str:
    return "no checkpointer" if saver in (None, True, False) else type(saver).__name__
