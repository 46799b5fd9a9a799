"""`holdfast runs`: what runs there are, and everything about one."""

import click

from holdfast.cli import output
from holdfast.cli.options import Count, Options, common
from holdfast.cli.output import say, write
from holdfast.cli.records import Record, record_of
from holdfast.kernel import effects, runs
from holdfast.kernel.runs import Status
from holdfast.kernel.waits import WaitStatus
from holdfast.sync import Holdfast

_RUN_COLUMNS = {
    "RUN": "run_id",
    "STATUS": "status",
    "AGENT": "agent",
    "CREATED": "created_at",
    "WORKER": "worker",
}
_WAIT_COLUMNS = {
    "OPEN WAIT": "wait_id",
    "KIND": "kind",
    "NAME": "name",
    "OPENED": "opened_at",
    "DEADLINE": "deadline",
}
_EFFECT_COLUMNS = {
    "UNSETTLED EFFECT": "effect_id",
    "STATUS": "status",
    "TOOL": "tool",
    "ISSUED": "issued_at",
    "LIMIT": "limit_at",
}


@click.group()
def command() -> None:
    """List runs, and look at one."""


@command.command("list")
@click.option(
    "--status", type=click.Choice([s.value for s in Status]), help="Only runs in this state."
)
@click.option("--agent", help="Only runs of this agent.")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@common
def list_(options: Options, *, status: str | None, agent: str | None, limit: int) -> None:
    """List runs, newest first."""
    with options.open_existing() as hf:
        found = hf.runs.list(status=status, agent=agent, limit=limit)
    options.output.many(
        map(record_of, found), ids="run_id", draw=output.table(_RUN_COLUMNS, empty="no runs")
    )
    if len(found) == limit and options.output.is_for_people:
        say(f"these are the newest {limit}; there may be more: --limit")


@command.command()
@click.argument("run")
@common
def show(options: Options, *, run: str) -> None:
    """Show a run: its row, input, result, and what it still needs from outside."""
    with options.open_existing() as hf:
        record = _everything(hf, run)
    options.output.one(record, ids="run_id", draw=_draw)


def _everything(hf: Holdfast, run_id: str) -> Record:
    run = hf.runs.get(run_id)
    newest = hf.checkpoints.history(run_id, limit=1)
    has_ended = run.status in runs.ENDED
    return record_of(run) | {
        "version": newest[0].version if newest else 0,
        "input": hf.runs.input(run_id),
        "result": hf.runs.result(run_id) if has_ended else None,
        "open_waits": [
            record_of(wait) for wait in hf.waits.of_run(run_id) if wait.status is WaitStatus.OPEN
        ],
        "unsettled_effects": [
            record_of(effect)
            for effect in hf.effects.of_run(run_id)
            if effect.status not in effects.SETTLED
        ],
    }


def _draw(record: Record) -> None:
    lists = {"open_waits": _WAIT_COLUMNS, "unsettled_effects": _EFFECT_COLUMNS}
    output.fields({name: value for name, value in record.items() if name not in lists})
    for name, columns in lists.items():
        if record[name]:
            write("")
            output.table(columns, empty="")(record[name])
