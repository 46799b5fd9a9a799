"""A crash inside one process: the agent's code ends as if the process had died, the lease stays."""

import asyncio
from typing import Any

import holdfast
from holdfast.agents.exits import containment
from holdfast.agents.work.executor import Ending


class Crash(BaseException):
    """Nobody catches this: the run is left as a killed process leaves it."""


# Else it would count as a failure of the agent's code.
containment.PASSING = (*containment.PASSING, Crash)


async def advance(hf: holdfast.Holdfast, run_id: str) -> Ending | None:
    """One pass of another worker over a run, taken from whoever holds it; None if it crashed."""
    twin = hf.another_worker()
    task = twin._work.start_pass(await twin.leases.take(run_id, takeover=True))
    working = twin._work._passes[task]
    close = working._close

    async def close_unless_crashed(note: str, error: BaseException | None = None) -> None:
        if not isinstance(error, Crash):
            await close(note, error)

    working._close = close_unless_crashed  # type: ignore[method-assign]
    await asyncio.wait([task])
    if isinstance(task.exception(), Crash):
        # What was staged before the crash may be stored or not; here it is, however slow the store.
        if flushing := set(working.held.stage._flushing):
            await asyncio.wait(flushing)
        return None
    return task.result()


async def start(
    hf: holdfast.Holdfast, agent: holdfast.Agent[..., Any], *args: Any, run_id: str = "r"
) -> str:
    """A run that nobody works on yet."""
    await hf._work.create(agent, agent.input_of(args, {}), run_id)
    return run_id


async def kinds(hf: holdfast.Holdfast, run_id: str) -> list[str]:
    return [entry.kind for entry in await hf.journal.read(run_id)]
