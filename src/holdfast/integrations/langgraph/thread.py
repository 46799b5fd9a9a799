"""One thread as its workers see it: its lease, its effects, its questions."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.marked.marked_run import MarkedRun
from holdfast.errors import HoldfastError
from holdfast.integrations.langgraph.checkpoint_config import place_of
from holdfast.integrations.langgraph.host import Host
from holdfast.integrations.langgraph.layout import head_of, run_id_of
from holdfast.kernel.effects import EffectStatus
from holdfast.kernel.waits import Wait, WaitStatus


class Thread:
    """A thread of a saver's store. Its methods run on the store's own event loop."""

    def __init__(self, host: Host, thread_id: str) -> None:
        self._host = host
        self.run_id = run_id_of(thread_id)

    async def hold(self) -> int:
        """Claim the thread for one run of a graph; return the lease. Raises ThreadBusy if held.

        If the caller goes away meanwhile, the lease is released.
        """
        taking = asyncio.create_task(self._host.advance(self.run_id, MarkedRun.hold))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._host.later(self._give_back(taking))
            raise

    async def _give_back(self, taking: "asyncio.Task[int]") -> None:
        with contextlib.suppress(HoldfastError):
            await self.release(await taking)

    async def release(self, token: int) -> None:
        """Release the thread; if people have open questions, it waits for their answers."""
        asked = [wait for wait in await self.questions() if wait.status is WaitStatus.OPEN]
        group_id = asked[0].group_id if asked else ""
        await self._host.advance(self.run_id, lambda run: run.release(token, group_id))

    async def begin_effects(self, requests: Sequence[EffectRequest]) -> list[Begun]:
        """Put the intent of calls on record before they are made; see LeasedRun.begin_effects."""
        return await self._host.advance(self.run_id, lambda run: run.begin_effects(requests))

    async def finish_effect(self, begun: Begun, result: object) -> None:
        """Record that a call happened, and its result."""
        await self._settle(begun, EffectStatus.COMPLETED, result=result)

    async def abandon_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that a call did not happen; its key is free again."""
        await self._settle(begun, EffectStatus.NOT_DONE, note=note)

    async def doubt_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that nobody knows whether a call happened."""
        await self._settle(begun, EffectStatus.UNKNOWN, note=note)

    async def wait_effect(self, begun: Begun) -> Begun | None:
        """Wait for a call that is made elsewhere; None if it did not happen."""
        run = await self._host.advance(self.run_id, _itself)
        return await run.wait_effect(begun)

    async def anchor(self, config: RunnableConfig) -> str:
        """The id of the input checkpoint that began the turn which a config belongs to."""
        configurable: dict[str, Any] = config.get("configurable") or {}
        of_spaces: dict[str, str] = configurable.get("checkpoint_map") or {}
        of_root = of_spaces.get("")
        place = place_of(config)
        name = of_root or ("" if place.space else place.checkpoint_id)
        found = self._host.marks
        marked = (
            await found.get(self.run_id, "", name) if name else await found.latest(self.run_id, "")
        )
        while marked is not None:
            views = await found.views(self.run_id, {marked.version}, self._host.known(self.run_id))
            head = head_of(views[marked.version], "")
            before = await found.get(self.run_id, "", marked.parent) if marked.parent else None
            if head is not None and head.anchor:
                return head.anchor
            if before is None:
                return marked.name
            marked = before
        return ""

    async def questions(self) -> list[Wait]:
        """What people were asked in this thread."""
        return await self._host.waits.of_run(self.run_id)

    async def answers(self, wait_ids: Sequence[str]) -> dict[str, Any]:
        """What was answered to those of these questions that have an answer."""
        wanted = set(wait_ids)
        groups = {
            wait.group_id
            for wait in await self.questions()
            if wait.wait_id in wanted and wait.status is WaitStatus.RESOLVED
        }
        given: dict[str, Any] = {}
        for group_id in groups:
            for result in await self._host.waits.results(self.run_id, group_id):
                if result.wait_id in wanted and result.status is WaitStatus.RESOLVED:
                    given[result.wait_id] = result.value
        return given

    async def _settle(
        self, begun: Begun, status: EffectStatus, *, result: object = None, note: str = ""
    ) -> None:
        await self._host.advance(
            self.run_id, lambda run: run.settle_effect(begun, status, result=result, note=note)
        )


async def _itself(run: MarkedRun) -> MarkedRun:
    return run
