"""An agent that is started by a schedule: it writes down the time, once per tick."""

import argparse
import asyncio
import os
from pathlib import Path

import holdfast
from holdfast import Happened, Holdfast, Key, NotDone, Run, Settings

FOLDER = Path("schedule-data")
LINES = FOLDER / "ticks.txt"
EVERY_SECONDS = 1
LEASE_SECONDS = 2.0


async def find_line(text: str, key: str) -> Happened[str] | NotDone:
    is_there = LINES.exists() and key in LINES.read_text(encoding="utf-8")
    return Happened("written") if is_there else NotDone()


@holdfast.tool(verify=find_line, limit_seconds=1.0)
async def write_down(text: str, *, key: Key) -> str:
    with LINES.open("a", encoding="utf-8") as file:
        file.write(f"{text} {key}\n")
    return "written"


@holdfast.agent(tools=[write_down])
async def bell(run: Run) -> str:
    return await run.call(write_down, run.run_id)


async def ring(times: int) -> None:
    """Keep the schedule, and work until the bell has rung so often."""
    settings = Settings(lease_seconds=LEASE_SECONDS)
    async with Holdfast(str(FOLDER / "schedule.db"), agents=[bell], settings=settings) as hf:
        schedule = await hf.schedule(
            bell, every_seconds=EVERY_SECONDS, overlap="allow", catch_up="all"
        )
        print(f"{hf.worker} keeps {schedule.name}, which has rung {schedule.started} times")
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        async for _ in hf.journal.tail(schedule.run_id):
            if len(rung()) >= times:
                break
        worker.stop()
        await working
    for line in rung():
        print(line)


def rung() -> list[str]:
    """The ticks that are written down."""
    if not LINES.exists():
        return []
    return [line.split()[0] for line in LINES.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="stop after so many ticks")
    asked = parser.parse_args()
    os.makedirs(FOLDER, exist_ok=True)
    asyncio.run(ring(asked.times))


if __name__ == "__main__":
    main()
