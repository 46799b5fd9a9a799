"""`holdfast workflows validate` and `schema`: mistakes in definitions, and help for editors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.terminal import import_names
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import printing
from holdfast.terminal.output import TerminalOutput, say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable, to_json

if TYPE_CHECKING:
    from holdfast.workflows.execution.kit import Kit


_APP = click.option(
    "--app", metavar="MODULE:NAME", help="A Holdfast whose Kit has tools and types of its own."
)


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_APP
@printing
def validate(out: TerminalOutput, *, files: tuple[str, ...], app: str | None) -> Exit:
    """List every mistake in definitions of workflows; nothing is run, no store is opened.

    Each mistake is shown with its line, its reason and what to do, also those of the files that
    Workflow blocks name. Tools are looked for with --app only; agents and secrets when a workflow
    runs. The exit code is 2 if any FILE is invalid.
    """
    kit = _kit(app)
    records = [_examined(file, kit) for file in files]
    if len(records) == 1:
        out.one(records[0], ids="file", draw=_draw)
    else:
        out.many(records, ids="file", draw=_draw_all)
    return Exit.OK if all(record["valid"] for record in records) else Exit.USAGE


@click.command()
@_APP
@printing
def schema(out: TerminalOutput, *, app: str | None) -> None:
    """Print the JSON Schema of definitions, by which an editor completes and checks them.

    In VS Code, with its YAML extension: save it as workflow.schema.json, and begin a definition
    with the line `# yaml-language-server: $schema=workflow.schema.json`.
    """
    # Imported here, so that the other commands do not need the dependencies of workflows.
    from holdfast.workflows.checks.schema import schema_of

    made = schema_of(_kit(app).types.values())
    out.one(made, ids="title", draw=lambda record: write(to_json(record, indent=2)))


def _kit(app: str | None) -> "Kit":
    """What blocks may use: that of an app, or nothing but the types that come with Holdfast."""
    from holdfast.workflows.execution.kit import Kit

    return Kit() if app is None else import_names.load(app).workflows.kit


def _examined(file: str, kit: "Kit") -> Record:
    from holdfast.workflows.checks import library

    tools = kit.tools or None
    found = library.examine(file, kit.definitions, types=kit.types, tools=tools)
    problems: list[dict[str, Any]] = [msgspec.structs.asdict(each) for each in found.problems]
    warnings: list[dict[str, Any]] = [msgspec.structs.asdict(each) for each in found.warnings]
    return {"file": file, "valid": not problems, "problems": problems, "warnings": warnings}


def _draw_all(records: Iterable[Record]) -> None:
    for record in records:
        _draw(record)


def _draw(record: Record) -> None:
    from holdfast.workflows.checks.problems import WorkflowProblem

    for each in record["problems"]:
        write(printable(str(WorkflowProblem(**each))))
    for each in record["warnings"]:
        write(printable(f"warning: {WorkflowProblem(**each)}"))
    verdict = "it is valid" if record["valid"] else count(len(record["problems"]), "mistake")
    more = f", {count(len(record['warnings']), 'warning')}" if record["warnings"] else ""
    say(f"{record['file']}: {verdict}{more}")
