"""`holdfast approvals`: what runs ask people, and their answers."""

from collections.abc import Iterable

import click

from holdfast.agents.definitions.questions import APPROVAL
from holdfast.agents.work.approvals import Asked, said_of
from holdfast.kernel.waits import WaitStatus
from holdfast.sync import Holdfast
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import printable, short

_COLUMNS = {
    "ID": "wait_id",
    "RUN": "run_id",
    "KIND": "kind",
    "ASKED": "asked_at",
    "DEADLINE": "deadline",
    "PROMPT": "prompt",
}
_PROMPT_WIDTH = 80
_BY = click.option("--by", metavar="NAME", help="Who says so [default: your user name].")
_NOTE = click.option("--note", default="", metavar="TEXT", help="Why, for the record.")


@click.group()
def command() -> None:
    """Answer what runs ask people, and approve their calls."""


@command.command("list")
@click.option("--run", "run_id", metavar="RUN", help="Only what this run asks.")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@common
def list_(options: Options, *, run_id: str | None, limit: int) -> None:
    """List open questions and approval requests over all runs, the oldest first."""
    with options.open_existing() as hf:
        if run_id is not None:
            hf.runs.get(run_id)
        found = hf.approvals.list(run_id=run_id, limit=limit)
    options.output.many(map(record_of, found), ids="wait_id", draw=_draw_table)
    if found and options.output.is_for_people:
        say("`holdfast approvals show ID` tells all, and how to answer")
    if len(found) == limit and options.output.is_for_people:
        say(f"these are the oldest {limit}; there may be more: --limit")


@command.command()
@click.argument("wait", metavar="ID")
@common
def show(options: Options, *, wait: str) -> None:
    """Show a question or an approval request, and its answer if there is one."""
    with options.open_existing() as hf:
        found = hf.approvals.get(wait)
    options.output.one(record_of(found), ids="wait_id", draw=output.fields)
    if found.status is WaitStatus.OPEN and options.output.is_for_people:
        say(_advice(found))


@command.command()
@click.argument("wait", metavar="ID")
@click.option("--digest", default="", metavar="HEX", help="Only if its arguments have this digest.")
@_BY
@_NOTE
@common
def approve(options: Options, *, wait: str, digest: str, by: str | None, note: str) -> None:
    """Permit a call, once, with just the arguments that are shown."""
    with options.open_existing() as hf:
        hf.approvals.approve(wait, by=by or inputs.user_name(), note=note, digest=digest)
        _tell(options, hf, wait)


@command.command()
@click.argument("wait", metavar="ID")
@_BY
@_NOTE
@common
def reject(options: Options, *, wait: str, by: str | None, note: str) -> None:
    """Refuse a call; the agent sees that, with the note."""
    with options.open_existing() as hf:
        hf.approvals.reject(wait, by=by or inputs.user_name(), note=note)
        _tell(options, hf, wait)


@command.command()
@click.argument("wait", metavar="ID")
@click.argument("value")
@_BY
@common
def answer(options: Options, *, wait: str, value: str, by: str | None) -> None:
    """Answer a question. VALUE is JSON, or a text; an empty one ('') is an answer too."""
    with options.open_existing() as hf:
        asked = hf.approvals.get(wait)
        hf.approvals.answer(
            wait,
            inputs.answer_of(value, schema=asked.schema, choices=asked.choices),
            by=by or inputs.user_name(),
        )
        _tell(options, hf, wait)


def _tell(options: Options, hf: Holdfast, wait_id: str) -> None:
    found = hf.approvals.get(wait_id)
    run = hf.runs.get(found.run_id)
    record = record_of(found) | {"run_status": run.status.value}
    options.output.one(record, ids="wait_id", draw=_draw_answered)


def _advice(asked: Asked) -> str:
    if asked.kind == APPROVAL:
        return (
            f"`holdfast approvals approve {asked.wait_id}`, or "
            f"`holdfast approvals reject {asked.wait_id} --note WHY`"
        )
    return f"`holdfast approvals answer {asked.wait_id} VALUE`"


def _draw_table(records: Iterable[Record]) -> None:
    rows = [record | {"prompt": short(_prompt(record), limit=_PROMPT_WIDTH)} for record in records]
    output.table(_COLUMNS, empty="no question is open")(rows)


def _prompt(record: Record) -> str:
    again = f"(again, because {record['problem']}) " if record["problem"] else ""
    return again + record["prompt"]


def _draw_answered(record: Record) -> None:
    said = printable(said_of(record["kind"], record["answer"]))
    write(f"{record['kind']} {record['wait_id']}: {printable(record['answered_by'])} {said}")
    write(f"run {printable(record['run_id'])}: {record['run_status']}")
