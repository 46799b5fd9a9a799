"""The breaker of an agent: if many of its runs fail again and again, it is not given more at once.

It uses what the store says, so it holds also if every process that took such a run was killed.
It counts failures of the agent's code, not lost workers. While it is open, a worker takes one run
of the agent at a time, after a pause; the first of them that does not fail closes it. A run by
itself is blocked by its own count (`kernel.recoveries`).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.engine.context import Context
from holdfast.telemetry import BREAKER_OPEN, log

_LOOK_SECONDS: Final = 1.0


class AgentBreaker:
    """Knows which agents a worker should be careful with."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: set[str] = set()
        self._failing: dict[str, int] = {}
        self._forgiven: dict[str, int] = {}
        """Of agents whose breaker was closed: how many failing runs it had then."""
        self._looked_at = -_LOOK_SECONDS
        self._tried_at: dict[str, float] = {}

    async def allowed(self, agents: Sequence[str]) -> list[str]:
        """Those of the agents that a run may be taken of now."""
        await self._look()
        now = asyncio.get_running_loop().time()
        pause = self._context.settings.breaker_seconds
        return [
            name
            for name in agents
            if name not in self._open or now - self._tried_at.get(name, -pause) >= pause
        ]

    def took(self, agent: str) -> None:
        """A run of an agent was taken."""
        if agent in self._open:
            self._tried_at[agent] = asyncio.get_running_loop().time()

    def passed(self, agent: str, *, has_failed: bool) -> None:
        """A run of an agent was worked on: one success closes its breaker until more fail."""
        if agent in self._open and agent in self._tried_at and not has_failed:
            self._close(agent)
            self._forgiven[agent] = self._failing.get(agent, 0)

    def _close(self, agent: str) -> None:
        self._open.discard(agent)
        self._tried_at.pop(agent, None)
        log.info("the breaker of agent %s is closed", agent)

    def pause(self, longest: float) -> float:
        """How long to wait at most before asking again."""
        return min(longest, self._context.settings.breaker_seconds) if self._open else longest

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        self._failing = await self._context.store.runs.failing()
        self._forgiven = {
            name: min(count, self._failing.get(name, 0)) for name, count in self._forgiven.items()
        }
        most = self._context.settings.breaker_runs
        failing = {
            name: count
            for name, count in self._failing.items()
            if count - self._forgiven.get(name, 0) >= most
        }
        for name in failing.keys() - self._open:
            self._context.telemetry.count(BREAKER_OPEN)
            log.error(
                "%d runs of agent %s fail again and again: its breaker is open, and its runs are "
                "tried one at a time; `holdfast runs list --agent %s` shows them",
                failing[name],
                name,
                name,
            )
        for name in self._open - failing.keys():
            self._close(name)
        self._open = set(failing)
