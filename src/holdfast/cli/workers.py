"""`holdfast workers`: who works, and who is gone."""

from collections.abc import Iterable

import click

from holdfast.clock import SystemClock
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.runs import RunRow
from holdfast.kernel.served_agents import agents_of, unserved
from holdfast.sync import Holdfast
from holdfast.terminal import output
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say
from holdfast.terminal.records import Record, record_of

_COLUMNS = {
    "WORKER": "worker",
    "STARTED": "started_at",
    "ALIVE UNTIL": "expires_at",
    "ALIVE": "alive",
    "RUNS": "held",
    "AGENTS": "agents",
}


@click.group()
def command() -> None:
    """See who works on runs."""


@command.command("list")
@common
def list_(options: Options) -> None:
    """List all workers: whether they are alive, their agents, and how many runs they hold."""
    with options.open_existing() as hf:
        found = hf.leases.workers()
    options.output.many(
        map(_record, found), ids="worker", draw=output.table(_COLUMNS, empty="no workers")
    )


def is_alive(worker: WorkerRow) -> bool:
    """Whether its lease has not run out, by this machine's clock."""
    return worker.expires_at > SystemClock().now()


def warn_if_unserved(hf: Holdfast, agent: str) -> None:
    """Say that no live worker works on the runs of an agent, if that is so."""
    alive = [worker for worker in hf.leases.workers() if is_alive(worker)]
    served = sorted({name for worker in alive for name in agents_of(worker)})
    if not alive:
        say("no worker is alive: start one with `holdfast worker MODULE:NAME`")
    elif agent not in served:
        say(f"no live worker serves {agent!r}; served now: {', '.join(served) or 'nothing'}")


def _record(worker: WorkerRow) -> Record:
    return record_of(worker) | {"alive": is_alive(worker), "agents": agents_of(worker)}


def warn_unserved(hf: Holdfast, found: Iterable[RunRow]) -> None:
    """Say of which agents runs wait, although no live worker serves them."""
    said = unserved(found, hf.leases.workers(), now=SystemClock().now())
    for sentence in said.values():
        say(sentence)
