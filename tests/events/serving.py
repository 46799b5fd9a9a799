"""A process that uses only the checkpoint service, and delivers what subscribers are to be told."""

import asyncio
import sys

import holdfast
from holdfast.records import CheckpointService


async def serve(url: str) -> None:
    settings = holdfast.Settings(lease_seconds=1.0, wakeup_poll_seconds=0.2)
    async with holdfast.open(url, settings=settings) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task-1", "builder", {"execution_state": {}})
        await service.finalize_checkpoint(made.metadata.checkpoint_id, "completed")
        await hf.new_worker(agents=[]).run()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
