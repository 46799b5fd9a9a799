"""A story under a budget: it stops when that is spent, and goes on when it is raised.

See README.md. What the model charges is written to `invoices.txt` by the model itself.
"""

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

import holdfast
from holdfast import Budget, Cost, Message, Run, Settings, Usage
from holdfast.errors import RunBlocked

PRICE = 0.40
CHAPTERS = 6
STORE = "budget.db"
INVOICES = Path("invoices.txt")


def charge(what: str) -> None:
    with INVOICES.open("a") as invoices:
        invoices.write(f"{what} {PRICE:.2f}\n")


def agent_for(crash_in: int) -> holdfast.Agent[[str], str]:
    async def write_chapter(title: str, chapter: int) -> Message:
        charge(f"{title} chapter {chapter}")
        print(f"  the model writes chapter {chapter}, and charges {PRICE:.2f} USD")
        if chapter == crash_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return Message.assistant(f"chapter {chapter} of {title}", usage=Usage(usd=PRICE))

    @holdfast.agent(name="author", budget=Budget(usd=1.00), reserve=Cost(usd=PRICE))
    async def author(run: Run, title: str) -> str:
        story = run.log("story", Message)
        if story:
            print(f"  {len(story)} chapters are on record")
        while len(story) < CHAPTERS:
            story.append(await run.model(write_chapter, title, len(story) + 1))
            await run.checkpoint()
        return f"{len(story)} chapters, ending with {story[-1].text}"

    return author


async def main(run_id: str, crash_in: int) -> None:
    author = agent_for(crash_in)
    settings = Settings(lease_seconds=2.0)  # a process that was killed is replaced soon
    async with holdfast.Holdfast(STORE, agents=[author], settings=settings) as hf:
        try:
            print(await hf.run(author, run_id, run_id=run_id))
        except RunBlocked as blocked:
            print(blocked)
        account = await hf.budgets.get(run_id)
        assert account is not None
        limit = (account.usd_limit or 0) / 1_000_000
        print(f"spent {account.spent_usd / 1_000_000:.2f} of {limit:.2f} USD")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    parser = argparse.ArgumentParser(description="A story under a budget.")
    parser.add_argument("--run", default="story", help="the run's id")
    parser.add_argument("--crash-in", type=int, default=0, metavar="N", help="die in chapter N")
    given = parser.parse_args()
    asyncio.run(main(given.run, given.crash_in))
