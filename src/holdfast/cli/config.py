"""`holdfast config`: what is wrong with a configuration, and what counts of it."""

from collections.abc import Iterable

import click
from msgspec.structs import asdict

from holdfast import config
from holdfast.config import Config, ConfigProblem
from holdfast.settings import shown_store
from holdfast.terminal import output
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import printing
from holdfast.terminal.output import TerminalOutput, say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable


@click.group()
def command() -> None:
    """Check a configuration, and see what counts and why."""


@command.command()
@click.argument("file")
@printing
def check(out: TerminalOutput, *, file: str) -> Exit:
    """List what is wrong with a configuration, and what may surprise; nothing is opened.

    Every agent's block of FILE is judged, as if it were loaded with the environment of now.
    """
    report = config.check(file)
    record = {
        "file": file,
        "ok": not report.problems,
        "agents": list(report.agents),
        "problems": list(map(asdict, report.problems)),
        "warnings": list(map(asdict, report.warnings)),
    }
    out.one(record, ids="agents", draw=_draw_report)
    return Exit.OK if record["ok"] else Exit.USAGE


def _draw_report(record: Record) -> None:
    for heading, noun in (("problems", "problem"), ("warnings", "warning")):
        for found in record[heading]:
            write(printable(f"{noun}: {ConfigProblem(**found)}"))
    problems, warnings = (len(record[heading]) for heading in ("problems", "warnings"))
    counts = f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
    say(f"{record['file']}: {counts}; {'it can be used' if record['ok'] else 'it cannot be used'}")


@command.command()
@click.argument("file", required=False)
@click.option("--agent", metavar="NAME", help="Which agent's block of FILE.")
@click.option("--origin", "with_origin", is_flag=True, help="Tell where each value comes from.")
@printing
def show(out: TerminalOutput, *, file: str | None, agent: str | None, with_origin: bool) -> None:
    """Show what counts for an agent: FILE, overridden by the environment; passwords left out.

    Without FILE: the environment and the defaults.
    """
    found = config.load(file, agent=agent)
    records = _records(found, with_origin=with_origin)
    columns = {"KEY": "key", "VALUE": "value"} | ({"ORIGIN": "origin"} if with_origin else {})
    out.many(records, ids="key", draw=output.table(columns, empty="nothing is configured"))
    if out.is_for_people:
        for warning in found.warnings:
            say(f"warning: {warning}")


def _records(found: Config, *, with_origin: bool) -> Iterable[Record]:
    shown = [(each.key, each.shown, str(each.origin)) for each in found.values.values()]
    store = ("store", shown_store(found.store_url), str(found.origin(_decides_store(found))))
    for key, value, origin in (*shown, store):
        yield {"key": key, "value": value} | ({"origin": origin} if with_origin else {})


def _decides_store(found: Config) -> str:
    return "session_db_url" if found.is_checkpointing else "stateless_checkpointing"
