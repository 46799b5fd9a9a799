"""`holdfast messages`: what runs owe to their peers and callers."""

import click

from holdfast.errors import NotFoundError
from holdfast.terminal import output
from holdfast.terminal.options import Options, common
from holdfast.terminal.records import record_of

_COLUMNS = {
    "MESSAGE": "message_id",
    "KIND": "kind",
    "RUN": "run_id",
    "TO": "address",
    "DUE": "due_at",
    "TRIES": "attempts",
    "NOTE": "note",
}


@click.group()
def command() -> None:
    """See what is under way between runs and their peers."""


@command.command("list")
@click.option("--dead", is_flag=True, help="List those that could not be delivered.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@common
def list_(options: Options, dead: bool, limit: int) -> None:
    """List messages that are not delivered yet, the oldest first."""
    with options.open_existing() as hf:
        found = hf.messages.list(dead=dead, limit=limit)
    options.output.many(
        map(record_of, found),
        ids="message_id",
        draw=output.table(_COLUMNS, empty="no dead messages" if dead else "no messages"),
    )


@command.command("requeue")
@click.argument("message")
@common
def requeue(options: Options, message: str) -> None:
    """Let a dead message be delivered again."""
    with options.open_existing() as hf:
        if not hf.messages.requeue(message):
            raise NotFoundError(
                f"no dead message has the id {message!r}; "
                "`holdfast messages list --dead` lists those there are"
            )
    record = {"message_id": message, "status": "ready"}
    options.output.one(record, ids="message_id", draw=output.fields)
