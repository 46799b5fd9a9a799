"""A process that writes checkpoints of tasks: `python -m tests.recovery.writer STORE NAME`.

Reads one command per line, `[name, args…]`, and prints what came of it as a line of JSON.
"""

import asyncio
import json
import sys
from typing import Any

import holdfast
from holdfast.errors import CheckpointConflict, ConflictError, HoldfastError
from holdfast.records import CheckpointService
from holdfast.testing import faults


class Writer:
    def __init__(self, hf: holdfast.Holdfast, name: str) -> None:
        self._service = CheckpointService(hf)
        self._name = name

    async def create(self, task_id: str, count: int) -> list[str]:
        """So many checkpoints, as fast as it can."""
        return [
            (await self._service.create_checkpoint(task_id, self._name, {})).checkpoint_id
            for _ in range(count)
        ]

    async def create_until_refused(self, task_id: str) -> str:
        """Checkpoints until there is an error that trying again does not help; its name."""
        while True:
            try:
                await self._service.create_checkpoint(task_id, self._name, {})
            except HoldfastError as error:
                if type(error) is not ConflictError:  # others were faster too many times
                    return type(error).__name__

    async def continue_latest(self, task_id: str, count: int) -> list[list[str]]:
        """So many checkpoints, each the child of the one it has seen; and what it was told."""
        made: list[list[str]] = []
        refused: list[str] = []
        while len(made) < count:
            latest = await self._service.get_latest_checkpoint(task_id)
            seen = latest.checkpoint_id if latest else ""
            try:
                new = await self._service.create_checkpoint(
                    task_id, self._name, {}, expected_latest=seen
                )
            except CheckpointConflict as error:
                refused.append(str(error))
            else:
                made.append([seen, new.checkpoint_id])
        return [*made, refused]

    async def count_up(self, checkpoint_id: str, count: int) -> int:
        """Raise a counter in a record so many times, by compare and swap."""
        done = 0
        while done < count:
            found = await self._service.get_checkpoint(checkpoint_id)
            assert found is not None
            tools = found.metrics.tools_invoked + 1
            try:
                await self._service.update_checkpoint(
                    checkpoint_id,
                    {"metrics": {"tools_invoked": tools}},
                    expected_revision=found.revision,
                    by=self._name,
                )
                done += 1
            except CheckpointConflict:
                pass
        return done

    async def finalize(self, checkpoint_id: str) -> str:
        await self._service.finalize_checkpoint(checkpoint_id, self._name)
        return self._name

    async def update(self, checkpoint_id: str, tools: int) -> int:
        partial = {"metrics": {"tools_invoked": tools}}
        return (await self._service.update_checkpoint(checkpoint_id, partial)).revision

    async def link(self, parent_id: str, child_id: str) -> bool:
        await self._service.link_checkpoints(parent_id, child_id)
        return True

    async def arm(self, point: str) -> bool:
        faults.arm(point, "kill")
        return True


async def main(url: str, name: str) -> None:
    async with holdfast.open(url) as hf:
        writer = Writer(hf, name)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command, *args = json.loads(line)
            try:
                answer: Any = await getattr(writer, command)(*args)
            except HoldfastError as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
