"""One thread of a graph, played by either face, and everything that can be seen of it, as text.

Two savers that keep a thread alike give the same text: ids are numbered in the order in which they
appear, times are left out, and types are told, so that a tuple that came back as a list shows.
"""

import asyncio
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt, PregelTask, StateSnapshot
from pydantic import BaseModel

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
MESSAGE_ID = re.compile(r'(?<="id": )(?:null|"[0-9a-f-]{36}")')
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)?")
MODES = ("values", "updates", "checkpoints", "tasks", "debug", "messages", "custom")


class Stage:
    """Plays one thread; `seen` is all that came of it."""

    def __init__(self, graph: Any, face: str, *, durability: str, calls: Counter[str]) -> None:
        self.graph = graph
        self.face = face
        self.durability = durability
        self.calls = calls
        self.where: RunnableConfig = {"configurable": {"thread_id": "t"}}
        self.seen: list[tuple[str, Any]] = []

    async def invoke(self, given: Any, where: RunnableConfig | None = None, **options: Any) -> Any:
        """The result, or the error; either is seen."""
        options.setdefault("durability", self.durability)
        try:
            result = await self._call("invoke", given, where or self.where, **options)
        except Exception as error:
            result = error
        self.seen.append(("invoke", result))
        return result

    async def stream(self, given: Any, *, ordered: bool = True, **options: Any) -> list[Any]:
        """All chunks of all modes, subgraphs too; those of parallel branches come in any order."""
        options = {
            "stream_mode": [*MODES],
            "subgraphs": True,
            "durability": self.durability,
        } | options
        try:
            if self.face == "sync":
                chunks = await asyncio.to_thread(
                    lambda: [*self.graph.stream(given, self.where, **options)]
                )
            else:
                chunks = [each async for each in self.graph.astream(given, self.where, **options)]
        except Exception as error:
            chunks = [error]
        if ordered:
            self.seen.append(("stream", chunks))
        else:
            self.seen.append(("stream in any order", sorted(map(masked, chunks))))
        return chunks

    async def state(self) -> StateSnapshot:
        found = await self._call("get_state", self.where, subgraphs=True)
        self.seen.append(("state", found))
        return found

    async def history(self, where: RunnableConfig | None = None) -> list[StateSnapshot]:
        found = await self.read_history(where)
        self.seen.append(("history", found))
        return found

    async def read_history(self, where: RunnableConfig | None = None) -> list[StateSnapshot]:
        where = where or self.where
        if self.face == "sync":
            return await asyncio.to_thread(lambda: [*self.graph.get_state_history(where)])
        return [each async for each in self.graph.aget_state_history(where)]

    async def update(self, *args: Any, where: RunnableConfig | None = None, **options: Any) -> Any:
        return await self._call("update_state", where or self.where, *args, **options)

    async def bulk_update(self, supersteps: Sequence[Any]) -> Any:
        return await self._call("bulk_update_state", self.where, supersteps)

    async def end(self) -> None:
        """Look at everything once more."""
        await self.state()
        await self.history()
        self.seen.append(("calls", self.calls))

    def text(self) -> str:
        return numbered(self.seen)

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.face == "sync":
            return await asyncio.to_thread(getattr(self.graph, name), *args, **options)
        return await getattr(self.graph, f"a{name}")(*args, **options)


def numbered(seen: Any) -> str:
    """The text of something, with ids numbered by where they first appear."""
    numbers: dict[str, int] = {}
    text = json.dumps(plain(seen), indent=1, ensure_ascii=False)
    text = ID.sub(lambda found: f"<id {numbers.setdefault(found[0], len(numbers))}>", text)
    return TIME.sub("<time>", text)


def masked(seen: Any) -> str:
    """The text of something, without its ids."""
    return TIME.sub("<time>", ID.sub("<id>", json.dumps(plain(seen), ensure_ascii=False)))


def plain(value: Any) -> Any:
    """A value as JSON that tells its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PregelTask):
        # Messages get their ids while LangGraph stores what a task wrote: either may come first.
        unnamed = MESSAGE_ID.sub("<any>", json.dumps(plain(value.result)))
        return {"PregelTask": plain(value._replace(result=unnamed)._asdict())}
    if isinstance(value, StateSnapshot):
        return {"StateSnapshot": plain(value._asdict())}
    if isinstance(value, Interrupt):
        return {"Interrupt": [plain(value.value), value.id]}
    if isinstance(value, BaseMessage | BaseModel):
        return {type(value).__name__: plain(value.model_dump())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {type(value).__name__: plain(fields)}
    if isinstance(value, dict):
        # LangGraph's private parts of a config are there or not, by how it was made.
        return {
            str(key): plain(by_question(each) if key == "__interrupt__" else each)
            for key, each in sorted(value.items(), key=str)
            if not str(key).startswith("__pregel")
        }
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted(map(repr, value))}
    return f"{type(value).__name__}: {value}"


def by_question(asked: Any) -> Any:
    """Questions of parallel branches come in any order."""
    is_questions = isinstance(asked, list | tuple)
    return sorted(asked, key=lambda each: str(each.value)) if is_questions else asked
