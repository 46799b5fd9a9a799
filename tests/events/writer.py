"""A process that writes to its own runs, and sends signals to those of the others."""

import asyncio
import sys

import holdfast


async def write(url: str, name: str, others: list[str], turns: int) -> None:
    async with holdfast.open(url) as hf:
        run = await hf.runs.open(name)
        for turn in range(turns):
            run.append("log", turn)
            await run.checkpoint()
            await run.record("step", turn)
            for other in others:
                if turn % 4 == 0:
                    await hf.signal(other, "news", turn, id=f"{name}-{turn}")
        await run.release()


if __name__ == "__main__":
    _, url, name, others, turns = sys.argv
    asyncio.run(write(url, name, others.split(","), int(turns)))
