"""`holdfast workflows graph`: a workflow as a picture, and how far a run of it is."""

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from holdfast.app import Holdfast
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say
from holdfast.terminal.records import Record
from holdfast.terminal.text import count

_SUFFIXES: Final = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid"}
_FILES: Final = (".yaml", ".yml", ".json")


@click.command()
@click.argument("target", metavar="FILE_OR_RUN")
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["mermaid", "svg"]),
    help="What to draw [default: as FILE's name ends; mermaid on stdout].",
)
@click.option("-f", "--file", metavar="FILE", help="Write the picture to a file, not to stdout.")
@common
def graph(options: Options, *, target: str, wanted: str | None, file: str | None) -> None:
    """Draw the waves of a workflow, as Mermaid text or as SVG.

    A file is drawn as it is. A run is drawn as it was started, whatever became of its file, with
    the state of each block.

    \b
    holdfast workflows graph release.yaml
    holdfast workflows graph release-7 -f release.svg
    """
    record = _drawn(options, target, wanted or _format_of(file))
    if file is not None:
        Path(file).write_text(record.pop("graph"), encoding="utf-8", newline="\n")
        record["file"] = file
    options.output.one(record, ids="workflow", draw=_show)


def _format_of(file: str | None) -> str:
    """What the name of a file asks for."""
    if file is None:
        return "mermaid"
    suffix = Path(file).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise click.UsageError(
            f"{file} ends with none of {known}; name it so, or say what to draw with --format"
        )
    return _SUFFIXES[suffix]


def _drawn(options: Options, target: str, wanted: str) -> Record:
    # Imported here, since these need the extra `workflows`.
    from holdfast.cli.workflows.use import NO_RUNS, asking_for
    from holdfast.workflows.checks.definition_reader import load
    from holdfast.workflows.drawing.graph import mermaid, states_of
    from holdfast.workflows.drawing.svg import svg

    states = None
    if Path(target).is_file() or target.endswith(_FILES):
        workflow = load(target)
    else:
        # only to refuse a store that is missing or older
        options.open_existing(advice=NO_RUNS)
        with asking_for(target):
            workflow, outcome = asyncio.run(_of_run(options, target))
        states = states_of(outcome)
    return {
        "workflow": workflow.name,
        "blocks": len(workflow.blocks),
        "states": states,
        "format": wanted,
        "graph": (svg if wanted == "svg" else mermaid)(workflow, states),
    }


async def _of_run(options: Options, run_id: str) -> tuple[Any, Any]:
    async with Holdfast(options.url, settings=options.settings) as hf:
        return await hf.workflows.definition(run_id), await hf.workflows.status(run_id)


def _show(record: Record) -> None:
    if "graph" in record:
        click.echo(record["graph"], nl=False)
    else:
        blocks = count(record["blocks"], "block")
        say(f"{record['workflow']}, {blocks}, is drawn in {record['file']}")
