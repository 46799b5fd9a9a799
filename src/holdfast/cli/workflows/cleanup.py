"""`holdfast workflows cleanup`: erase what workflows held that ended long ago."""

import click

from holdfast.terminal.options import Options, common
from holdfast.terminal.output import write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count


@click.command()
@click.option(
    "--older-than",
    "age",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    metavar="HOURS",
    help="Only those that ended longer ago than this.",
)
@common
def cleanup(options: Options, *, age: float) -> None:
    """Erase what workflows held that ended long ago; that they ran stays on the record.

    One that waits, is blocked or goes on is never touched, however old it is. Nothing is erased
    by itself: let cron do this, or a program that uses `periodic_cleanup_async`.

    \b
    holdfast workflows cleanup --older-than 720
    """
    with options.open_existing() as hf:
        removed = hf.workflows.cleanup_expired(age)
    options.output.one({"removed": removed}, ids="removed", draw=_draw)


def _draw(record: Record) -> None:
    write(f"{count(record['removed'], 'workflow')} erased")
