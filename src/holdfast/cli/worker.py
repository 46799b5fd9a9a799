"""`holdfast worker`: a process that works on the runs of a program's agents until it is stopped."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from typing import Final

import click

from holdfast import config
from holdfast.agents.work.worker import Worker
from holdfast.app import Holdfast
from holdfast.errors import MisuseError
from holdfast.terminal import exits, import_names
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import printing
from holdfast.terminal.output import TerminalOutput, say
from holdfast.terminal.records import Record
from holdfast.terminal.text import count

_AT_ONCE_SECONDS: Final = 5.0


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="At most so many runs at a time.",
)
@click.option("--agents", metavar="A,B", help="Only runs of these agents [default: all known].")
@click.option("--config", "path", metavar="FILE", help="Give NAME, a function, this configuration.")
@click.option("--agent", metavar="NAME", help="Which agent's block of FILE.")
@printing
def command(
    out: TerminalOutput,
    *,
    target: str,
    concurrency: int,
    agents: str | None,
    path: str | None,
    agent: str | None,
) -> Exit:
    """Work on runs until stopped.

    NAME in MODULE is a Holdfast with agents, or a function that returns one; its store is the one
    it names, else HOLDFAST_STORE. With --config the function is given the Config as its argument,
    for Holdfast.from_config(). SIGTERM or Ctrl-C stops the worker when the turns under way have
    ended; a second one stops it at once.
    """
    if agent is not None and path is None:
        raise click.UsageError("--agent names a block of a file; give --config FILE too")
    # A program that has set up its own logging keeps it: this does nothing then.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    wanted = None if agents is None else _names(agents)
    given = None if path is None else config.load(path, agent=agent)
    hf = import_names.load(target, given)
    record = asyncio.run(work(hf, concurrency=concurrency, agents=wanted))
    out.one(record, ids="worker", draw=draw)
    return Exit.INTERRUPTED if record["stopped"] == "at once" else Exit.OK


def _names(agents: str) -> list[str]:
    names = [name.strip() for name in agents.split(",")]
    if not all(names):
        raise click.BadParameter("name agents with commas between them", param_hint="--agents")
    return list(dict.fromkeys(names))


async def work(hf: Holdfast, *, concurrency: int, agents: list[str] | None) -> Record:
    """Run a worker until a signal stops it. Return what it did."""
    began = time.monotonic()
    async with hf:
        place = (await hf.info()).url
        if place == "memory://":
            raise MisuseError(
                "a store in memory has no runs of other processes; name a file, or give the "
                "configuration stateless_checkpointing: true"
            )
        gc.freeze()  # modules stay: no full collection need walk through them, which takes 40 ms
        worker = hf.new_worker(concurrency=concurrency, agents=agents)
        stopping = _StopSignal(worker, asyncio.create_task(worker.run()))
        served = f"agents {', '.join(worker.agents)}, at most {count(concurrency, 'run')} at a time"
        say(
            f"worker {hf.worker}: store {place}, "
            + (served if worker.agents else "messages and webhooks only")
        )
        await stopping.wait()
    return {
        "worker": hf.worker,
        "store": place,
        "agents": list(worker.agents),
        "concurrency": concurrency,
        "passes": worker.advanced,
        "seconds": round(time.monotonic() - began, 3),
        "stopped": stopping.how,
    }


class _StopSignal:
    """What signals do to a worker: the first asks, the second does not, the third ends."""

    def __init__(self, worker: Worker, working: "asyncio.Task[None]") -> None:
        self._worker = worker
        self._working = working
        self._signals = 0
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends it at once
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)

    @property
    def how(self) -> str:
        return "at once" if self._signals > 1 else "after its turns"

    async def wait(self) -> None:
        """Until the worker has stopped; raises what broke it."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._working

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            say(
                f"{signal.Signals(number).name}: taking no more runs; those under way are handed "
                "back when their turns have ended (a second signal stops them at once)"
            )
            self._worker.stop()
        elif self._signals == 2:
            say(f"{signal.Signals(number).name}: stopping at once")
            exits.end_after(_AT_ONCE_SECONDS)
            self._working.cancel()
        else:
            exits.end()


def draw(record: Record) -> None:
    """Print how a worker ended."""
    passes = record["passes"]
    say(
        f"worker {record['worker']} stopped {record['stopped']}: {passes:,} "
        f"{'pass' if passes == 1 else 'passes'} over runs in {record['seconds']:.1f} s"
    )
