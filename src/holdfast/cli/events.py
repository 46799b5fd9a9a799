"""`holdfast events`: what happens in all runs, as it happens, and from any place on."""

from collections.abc import Iterable, Iterator
from itertools import islice

import click

from holdfast import ids
from holdfast.kernel.events import TYPE, Event
from holdfast.terminal import output
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import TerminalOutput, say
from holdfast.terminal.records import Record
from holdfast.terminal.text import printable, short

_SAID = ("taskId", "agentId", "actor")


@click.group()
def command() -> None:
    """Follow what happens in all runs, as CloudEvents."""


@command.command()
@click.option("--after", metavar="POSITION", help="Go on after it; 'start': from the beginning.")
@click.option("--run", metavar="RUN", help="Only of this run.")
@click.option("--kind", "kinds", metavar="KIND", multiple=True, help="Only of such entries.")
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Only of its runs.")
@click.option("--limit", type=Count, help="End after so many.")
@common
def follow(
    options: Options,
    *,
    after: str | None,
    run: str | None,
    kinds: tuple[str, ...],
    agents: tuple[str, ...],
    limit: int | None,
) -> None:
    """Show events as they happen, from now on, until interrupted.

    With -o json there is a CloudEvent on each line, as with -o jsonl; its position is what --after
    takes. --kind and --agent may be given several times.
    """
    out = TerminalOutput("jsonl") if options.output.is_json else options.output
    shown = _ShownEvents()
    with options.open_existing() as hf:
        events = hf.events(after, run_id=run, kinds=kinds, agents=agents)
        try:
            records = shown.records(islice(events, limit))
            out.many(records, ids="position", draw=output.lines(_line))
        finally:
            if shown.position and out.is_for_people:
                say(f"go on with --after {shown.position}")


class _ShownEvents:
    """The events that were shown, and where the next ones are."""

    def __init__(self) -> None:
        self.position = ""

    def records(self, events: Iterable[Event]) -> Iterator[Record]:
        for event in events:
            yield event.to_cloudevent()
            self.position = event.position


def _line(record: Record) -> str:
    data: Record = record["data"]
    facts = {name: value for name, value in data.items() if value and name not in _SAID}
    parts = [
        record["time"],
        f"{printable(record['id']):<24}",
        f"{printable(record['type'].removeprefix(TYPE)):<20}",
        "" if ids.is_worker_id(data["actor"]) else f"by {printable(data['actor'])}",
        short(facts) if facts else "",
    ]
    return "  ".join(part for part in parts if part).rstrip()
