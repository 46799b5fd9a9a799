"""`holdfast schedules`: what is started again and again, when it is due, and how to end that."""

import click

from holdfast.agents.work.schedules import Schedule
from holdfast.clock import from_datetime
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import say
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count as counted
from holdfast.terminal.text import moment, printable

_COLUMNS = {
    "SCHEDULE": "name",
    "AGENT": "agent",
    "WHEN": "when",
    "NEXT": "next_at",
    "STARTED": "started",
    "LAST RUN": "last_run_id",
    "STATUS": "status",
}


@click.group()
def command() -> None:
    """See what is started again and again, and when it is due."""


@command.command("list")
@common
def list_(options: Options) -> None:
    """List all schedules, by name."""
    with options.open_existing() as hf:
        found = hf.schedules.list()
    options.output.many(
        map(_record, found), ids="name", draw=output.table(_COLUMNS, empty="no schedules")
    )


@command.command()
@click.argument("name")
@common
def show(options: Options, *, name: str) -> None:
    """Show a schedule: what it starts, how far it has come, and which ticks it skipped."""
    with options.open_existing() as hf:
        found = hf.schedules.get(name)
    options.output.one(_record(found), ids="name", draw=output.fields)


@command.command("next")
@click.argument("name")
@click.option("--limit", type=Count, default=5, show_default=True, help="So many ticks.")
@common
def next_(options: Options, *, name: str, limit: int) -> None:
    """Show when a schedule is due next."""
    with options.open_existing() as hf:
        found = hf.schedules.next(name, count=limit)
    records: list[Record] = [{"at": moment(from_datetime(tick))} for tick in found]
    options.output.many(records, ids="at", draw=output.table({"NEXT": "at"}, empty="never again"))


@command.command()
@click.argument("name")
@click.option("--by", metavar="NAME", help="Who says so [default: your user name].")
@common
def remove(options: Options, *, name: str, by: str | None) -> None:
    """Start nothing more; what was started goes on, and the record stays."""
    with options.open_existing() as hf:
        found = hf.schedules.get(name)
        hf.schedules.remove(name, by=by or inputs.user_name())
    options.output.one(_record(found), ids="name", draw=_tell_removed)


def _tell_removed(record: Record) -> None:
    started = counted(record["started"], "run")
    say(f"schedule {printable(record['name'])} starts nothing more; it had started {started}")


def _record(schedule: Schedule) -> Record:
    when = schedule.cron and f"{schedule.cron} ({schedule.tz})"
    return record_of(schedule) | {"when": when or f"every {schedule.every_seconds} s"}
