"""Schedules, for code that blocks."""

from datetime import datetime
from typing import Any

from holdfast.agents.definitions.agent import Agent
from holdfast.agents.work import schedules
from holdfast.agents.work.schedules import Schedule
from holdfast.agents.work.ticks import CatchUp, Overlap
from holdfast.sync.loop import Face, blocking


@blocking(schedules.Schedules)
class Schedules(Face[schedules.Schedules]):
    """The schedules of the tenant."""

    def add(
        self,
        agent: Agent[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        cron: str = "",
        every_seconds: int = 0,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        return self._call(
            self._inner.add,
            agent,
            *args,
            name=name,
            cron=cron,
            every_seconds=every_seconds,
            tz=tz,
            overlap=overlap,
            catch_up=catch_up,
        )

    def list(self) -> "list[Schedule]":
        return self._call(self._inner.list)

    def get(self, name: str) -> Schedule:
        return self._call(self._inner.get, name)

    def remove(self, name: str, *, by: str = "") -> None:
        return self._call(self._inner.remove, name, by=by)

    def next(self, name: str, *, count: int = 5) -> "list[datetime]":
        return self._call(self._inner.next, name, count=count)
