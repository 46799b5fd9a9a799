"""`holdfast demo peers`: instances are killed while agents wait for each other; nothing is lost.

The instances are real processes, the kills are real SIGKILLs, and the counts are the store's.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import click

from holdfast import settings
from holdfast.demos import stage
from holdfast.demos.peers_show import INSTANCES, PeersDemo, PeersDemoPlan
from holdfast.peers.transports import open_transport
from holdfast.terminal import progress
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable

_PATIENCE_SECONDS: Final = 3
_MANY: Final = click.IntRange(1, 1000)


@click.command()
@click.option("--tasks", type=_MANY, default=6, show_default=True, help="So many tasks at once.")
@click.option("--peers", type=_MANY, default=4, show_default=True, help="Peers that each asks.")
@click.option(
    "--kills",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Instances that are killed meanwhile; each is followed by a new one.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="When and whom, at random.")
@click.option("--nats", metavar="URL", help="Peers with a store of their own, and NATS between.")
@common
def peers(
    options: Options, *, tasks: int, peers: int, kills: int, seed: int, nats: str | None
) -> Exit:
    """Kill instances of an agent while it waits for its peers.

    Three instances work on tasks, each of which asks some peers at the same time. Instances are
    killed with SIGKILL while they work, and every answer is delivered twice. Then the final
    answers and the peers' results are counted in the store. No key, no account, no Docker.
    """
    with _quiet(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        plan = PeersDemoPlan(
            store=stage.store_for(options.store, Path(folder)),
            tenant=options.tenant,
            transport=nats or "",
            tasks=tasks,
            peers=peers,
            kills=kills,
            seed=seed,
            folder=Path(folder),
        )
        # Refused here, not in a process that nobody sees.
        settings.Settings(transport=plan.transport)
        if nats:
            asyncio.run(_reach(nats))
        timeline = stage.timeline_for(options.output)
        with contextlib.ExitStack() as stack:
            advance = _nobody
            if not options.output.is_for_people:
                advance = stack.enter_context(progress.counted("answered", "tasks", tasks))
            record = PeersDemo(plan, timeline, advance).play()
    shown = None if options.store is None else settings.shown_store(options.store)
    record |= {"peers": peers, "seed": seed, "store": shown}
    options.output.one(record, ids="run_ids", draw=_conclude)
    if record["problems"]:
        say(f"the demo failed: {count(len(record['problems']), 'promise')} did not hold")
    return Exit.FAILED if record["problems"] else Exit.OK


async def _reach(url: str) -> None:
    """Raise in a few seconds if no server accepts us."""
    query = "&" if "?" in url else "?"
    patience = "" if "patience=" in url else f"{query}patience={_PATIENCE_SECONDS}"
    transport = open_transport(url + patience)
    await transport.open()
    await transport.close()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Silence the warnings about answers that come twice: here they are the point."""
    log = logging.getLogger("holdfast")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _nobody() -> None:
    """People see the timeline."""


def _conclude(record: Record) -> None:
    write("")
    for name in ("final_answers", "peer_results", "duplicates", "late", "instances_killed"):
        write(f"{name:<18}{record[name]:>7,}")
    for problem in record["problems"]:
        write(printable(problem))
    if record["problems"]:
        return
    write("")
    write(
        f"Shown: {INSTANCES} instances at a time, {count(record['instances_killed'], 'kill')}, and "
        f"each of {count(record['tasks'], 'task')} has"
    )
    write(
        f"one final answer with one result of each peer. {count(record['duplicates'], 'answer')} "
        "that came again"
    )
    write("changed nothing.")
    write("")
    kept = record["store"]
    look = f"holdfast journal show {record['run_ids'][0]} --store {printable(kept or '')}"
    write(f"Look at a record:   {look if kept else _KEEP}")
    write("With NATS between:  holdfast demo peers --nats nats://127.0.0.1:4222")


_KEEP: Final = "holdfast demo peers --store demo.db keeps them, and says how"
