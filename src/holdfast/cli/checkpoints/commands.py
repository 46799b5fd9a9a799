"""`holdfast checkpoints`: what runs have saved, and what changed between two versions."""

from collections.abc import Iterator
from typing import Any

import click

from holdfast.agents.definitions.versions import PART as VERSIONS
from holdfast.cli.checkpoints import records as checkpoint_records
from holdfast.engine.checkpoints import CheckpointWithRecord
from holdfast.kernel.state import StateDiff
from holdfast.sync import Holdfast
from holdfast.terminal import output
from holdfast.terminal.options import Count, Options, Ordinal, common
from holdfast.terminal.output import write
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import printable, short, to_json

_COLUMNS = {
    "VERSION": "version",
    "CREATED": "created_at",
    "PHASE": "phase",
    "AGENT": "agent",
    "STATUS": "status",
    "FINAL": "is_final",
    "LABEL": "label",
    "ID": "checkpoint_id",
}


@click.group()
def command() -> None:
    """Look at what runs have saved, and at what changed."""


for _each in checkpoint_records.COMMANDS:
    command.add_command(_each)


@command.command("list")
@click.argument("run")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@click.option("--before", type=Ordinal, help="Only versions before this one.")
@common
def list_(options: Options, *, run: str, limit: int, before: int | None) -> None:
    """List the checkpoints of a run, newest first."""
    with options.open_existing() as hf:
        found = hf.checkpoints.with_records(run, limit=limit, before=before)
        if not found:
            hf.runs.get(run)
    options.output.many(
        map(record_of, found), ids="version", draw=output.table(_COLUMNS, empty="no checkpoints")
    )


@command.command()
@click.argument("run")
@click.argument("version", type=Ordinal, required=False)
@common
def show(options: Options, *, run: str, version: int | None) -> None:
    """Show a checkpoint and the state it saved: the latest, unless a VERSION is named."""
    with options.open_existing() as hf:
        state = hf.checkpoints.load(run, version)
        record = _about(hf, run, state.version)
    record |= {"versions": state.parts.get(VERSIONS), "state": state.parts}
    options.output.one(record, ids="version", draw=_draw_checkpoint)


def _about(hf: Holdfast, run_id: str, version: int) -> Record:
    if not version:
        empty = dict.fromkeys(CheckpointWithRecord.__struct_fields__)
        return empty | {"run_id": run_id, "version": 0}
    (found,) = hf.checkpoints.with_records(run_id, before=version + 1, limit=1)
    return record_of(found)


def _draw_checkpoint(record: Record) -> None:
    output.fields({name: value for name, value in record.items() if name != "state"})
    write("")
    write(to_json(record["state"], indent=2))


@command.command()
@click.argument("run")
@click.argument("before", type=Ordinal, metavar="A")
@click.argument("after", type=Ordinal, metavar="B")
@common
def diff(options: Options, *, run: str, before: int, after: int) -> None:
    """Show what changed in a run's state from version A to version B."""
    with options.open_existing() as hf:
        found = hf.checkpoints.diff(run, before, after)
    record: Record = {"run_id": run, "before": before, "after": after, **_diff_record(found)}
    options.output.one(record, ids="parts", draw=_draw_diff)


@command.command()
@click.argument("run")
@click.argument("version", type=Ordinal)
@click.option("--note", default="", help="Why; kept on the record.")
@common
def delete(options: Options, *, run: str, version: int, note: str) -> None:
    """Put a tombstone on a version: it is not loaded any more, later ones are."""
    with options.open_existing() as hf:
        hf.checkpoints.delete(run, version, note=note)
    record: Record = {"run_id": run, "version": version, "deleted": True}
    options.output.one(record, ids="version", draw=_draw_deleted)


def _draw_deleted(record: Record) -> None:
    write(f"version {record['version']} of {printable(record['run_id'])} has a tombstone now")


def _diff_record(found: StateDiff) -> Record:
    changed = {name: {"before": old, "after": new} for name, (old, new) in found.changed.items()}
    return {
        "parts": sorted({*found.added, *found.removed, *found.changed, *found.logs}),
        "added": found.added,
        "removed": found.removed,
        "changed": changed,
        "logs": {name: record_of(log) for name, log in found.logs.items()},
    }


def _draw_diff(record: Record) -> None:
    if not record["parts"]:
        output.say(f"versions {record['before']} and {record['after']} are the same")
    for line in _diff_lines(record):
        write(line)


def _diff_lines(record: Record) -> Iterator[str]:
    for name, value in record["removed"].items():
        yield _line("-", name, value)
    for name, value in record["added"].items():
        yield _line("+", name, value)
    for name, values in record["changed"].items():
        yield _line("-", name, values["before"])
        yield _line("+", name, values["after"])
    for name, log in record["logs"].items():
        for index, item in enumerate(log["removed"], log["kept"]):
            yield _line("-", f"{name}[{index}]", item)
        for index, item in enumerate(log["added"], log["kept"]):
            yield _line("+", f"{name}[{index}]", item)


def _line(sign: str, name: str, value: Any) -> str:
    return f"{sign} {printable(name)} {short(to_json(value))}"
