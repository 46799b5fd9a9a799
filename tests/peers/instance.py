"""An instance of an agent, as a process of its own: `python -m tests.peers.instance STORE`.

Reads one command per line, `[name, args…]`, and answers with one line of JSON.
"""

import asyncio
import json
import random
import sys
from typing import Any

import holdfast
from holdfast.compat.mesh import CheckpointService, Resolution
from holdfast.testing import faults
from tests.peers.tasks import task

LEASE_SECONDS = 1.0
AT_ONCE = 3


class Instance:
    """The commands; each is a method."""

    def __init__(self, service: CheckpointService) -> None:
        self._service = service

    async def hello(self) -> str:
        return "hello"

    async def arm(self, point: str, skip: int = 0) -> str:
        """Die by SIGKILL at a point."""
        faults.arm(point, "kill", skip=skip)
        return "armed"

    async def pause(self, task_id: str, calls: int, agent: str) -> str:
        await self._service.checkpoint_task(task(task_id, calls=calls), agent)
        return "paused"

    async def claim(self, sub_task_id: str) -> Any:
        return await self._service.claim_peer_sub_task(sub_task_id)

    async def restore(self, task_id: str) -> Any:
        restored = await self._service.restore_task_from_checkpoint(task_id)
        return None if restored is None else restored.results_to_inject

    async def claim_and_record(self, task_id: str, invocation: str, names: list[str]) -> Any:
        """Try for every call; what was won, and what was told of it."""
        won: list[Any] = []
        for name in names:
            if await self._service.claim_peer_sub_task(name) is not None:
                told = await self._service.record_parallel_result(task_id, invocation, name, name)
                won.append([name, *told])
        return won

    async def answer(self, names: list[str]) -> list[str]:
        """Answer every call, in any order; those for which the answer was taken."""
        random.shuffle(names)
        told: list[Resolution] = []
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            answers = (self._service.resolve_wait_once(name, {"from": name}) for name in some)
            told += await asyncio.gather(*answers)
        return [each.sub_task_id for each in told if each.accepted]

    async def time_out(self, agent: str, limit: int) -> list[str]:
        """Sweep until nothing is due any more; what was ended."""
        ended: list[str] = []
        misses = 0
        while misses < 3:
            some = await self.sweep(agent, limit)
            ended += some
            misses = 0 if some else misses + 1
        return ended

    async def sweep(self, agent: str, limit: int) -> list[str]:
        """Sweep once; what was ended."""
        swept = await self._service.sweep_expired_timeouts(agent, limit=limit)
        return [each.sub_task_id for each in swept]


async def main(store: str) -> None:
    loop = asyncio.get_running_loop()
    settings = holdfast.Settings(lease_seconds=LEASE_SECONDS)
    async with holdfast.open(store, settings=settings) as hf:
        instance = Instance(CheckpointService(hf))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, *args = json.loads(line)
            answer = await getattr(instance, name)(*args)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
