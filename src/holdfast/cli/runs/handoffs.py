"""`holdfast runs handoff`, `handoffs` and `recover`: who goes on with a run, and from where."""

from collections.abc import Iterable
from typing import Final

import click

from holdfast.cli import workers
from holdfast.kernel.runs import RunStatus
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Options, Ordinal, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count, printable

_COLUMNS: Final = {
    "HANDOFF": "handoff_id",
    "STATUS": "status",
    "FROM": "giver",
    "TO": "to",
    "TRIGGER": "trigger",
    "VERSION": "version",
    "GIVEN": "given_at",
    "ENDED": "ended_at",
    "WHY": "why",
}
_PROBLEMS: Final = {"ENTRY": "seq", "WHAT IS WRONG": "what"}


def join(group: click.Group) -> None:
    """Make these commands of `holdfast runs`."""
    for each in (handoff, handoffs, recover):
        group.add_command(each)


@click.command()
@click.argument("run")
@click.option(
    "--to", metavar="AGENT", default="", help="Who goes on [default: as its policy says]."
)
@click.option("--by", metavar="NAME", help="Who asks for it [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why; the next context sees it.")
@common
def handoff(options: Options, *, run: str, to: str, by: str | None, note: str) -> None:
    """Let a fresh context go on with a run after its present turn.

    Whoever works on it ends its context at the next boundary of its turns; one that nobody works on
    is handed over when a worker takes it.
    """
    with options.open_existing() as hf:
        hf.handoffs.request(run, to=to, by=by or inputs.user_name(), note=note)
        found = hf.runs.get(run)
        workers.warn_if_unserved(hf, to or found.agent)
    options.output.one(record_of(found), ids="run_id", draw=_draw_requested)


def _draw_requested(record: Record) -> None:
    whom = "a fresh context" if record["wish"] == "*" else f"agent {printable(record['wish'])}"
    write(f"run {printable(record['run_id'])} is to be handed over to {whom} after its turn")
    if record["status"] == RunStatus.BLOCKED:
        say(f"it is blocked: `holdfast runs unblock {record['run_id']}` lets it go on")


@click.command()
@click.argument("run")
@common
def handoffs(options: Options, *, run: str) -> None:
    """List the handoffs of a run, the first one first."""
    with options.open_existing() as hf:
        hf.runs.get(run)
        found = hf.handoffs.of_run(run)
    options.output.many(map(record_of, found), ids="handoff_id", draw=_draw_handoffs)


def _draw_handoffs(records: Iterable[Record]) -> None:
    """A table; of a handoff that was reverted it says why that was, of others why they were."""
    rows = (each | {"why": each["reason"] or each["note"]} for each in records)
    output.table(_COLUMNS, empty="no handoffs")(rows)


@click.command()
@click.argument("run")
@click.option("--to", "version", type=Ordinal, help="The version to go on from [default: newest].")
@click.option("--accept-gap", is_flag=True, help="Go on though the chain of its journal is broken.")
@click.option("--plan", is_flag=True, help="Change nothing; show what is damaged and what is left.")
@click.option("--by", metavar="NAME", help="Who does so [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@common
def recover(
    options: Options,
    *,
    run: str,
    version: int | None,
    accept_gap: bool,
    plan: bool,
    by: str | None,
    note: str,
) -> None:
    """Let a run that is blocked, or was lost, go on from its newest intact checkpoint.

    What it did outside since then is given back to it, not done again. Damage that is found is put
    on the record.
    """
    with options.open_existing() as hf:
        if plan:
            point = hf.recoveries.find_point(run)
            options.output.one(record_of(point), ids="run_id", draw=_draw_point)
            return
        found = hf.recoveries.execute(
            run,
            version=version,
            accept_gap=accept_gap,
            by=by or inputs.user_name(),
            note=note,
        )
        newest = hf.checkpoints.history(run, limit=1)
    record = record_of(found) | {"version": newest[0].version if newest else 0}
    options.output.one(record, ids="run_id", draw=_draw_recovered)


def _draw_point(record: Record) -> None:
    write(f"run {printable(record['run_id'])}: version {record['version']} is intact")
    if record["skipped"]:
        newer = count(len(record["skipped"]), "newer version")
        write(f"{newer} damaged: {', '.join(record['skipped'])}")
    if record["problems"]:
        write("")
        output.table(_PROBLEMS, empty="")(record["problems"])
    if record["why_not"]:
        over = record["is_over"]
        way = "" if over else "; --accept-gap goes on all the same"
        say(f"{'it cannot go on' if over else 'it needs a person'}: {record['why_not']}{way}")


def _draw_recovered(record: Record) -> None:
    write(
        f"run {printable(record['run_id'])}: {record['status']}, goes on from version "
        f"{record['version']}"
    )
