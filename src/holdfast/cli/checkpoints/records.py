"""`holdfast checkpoints create`, `update`, …: what checkpoints tell of the work itself."""

from datetime import datetime
from typing import Any

import click
import msgspec

from holdfast.errors import CheckpointNotFound
from holdfast.records.stored import CheckpointQuery, StoredRecord
from holdfast.sync.records import CheckpointService
from holdfast.terminal import output
from holdfast.terminal.inputs import object_of, user_name
from holdfast.terminal.options import Options, Ordinal, common
from holdfast.terminal.output import write
from holdfast.terminal.records import Record

_COLUMNS = {
    "ID": "checkpoint_id",
    "TASK": "task_id",
    "VERSION": "run_version",
    "REVISION": "revision",
    "AGENT": "agent_id",
    "PHASE": "phase",
    "STATUS": "status",
    "LABEL": "label",
    "SUMMARY": "summary",
    "CREATED": "timestamp",
}
_BY = click.option("--by", help="Who does this; your user name unless given.")


class _Moment(click.ParamType[datetime]):
    """A moment with its zone."""

    name = "moment"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not ISO 8601, such as 2026-01-24T12:00:00+00:00", param, ctx)
        if found.tzinfo is None:
            self.fail(f"{value!r} has no time zone; add one, such as +00:00", param, ctx)
        return found


@click.command()
@click.argument("task")
@click.argument("file")
@click.option("--agent", required=True, help="Who works on the task.")
@click.option("--type", "agent_type", default="", help="What kind of agent that is.")
@click.option("--label", default="", help="To find it by.")
@click.option("--summary", default="", help="To search by its words; it lies in the clear.")
@click.option("--after", help="Only if this checkpoint is the latest; '' for none.")
@common
def create(options: Options, *, task: str, file: str, agent: str, **more: Any) -> None:
    """Store how the work on a TASK stands: the JSON object in a FILE, - for stdin."""
    state = object_of(file, what="a checkpoint's state")
    with options.open_existing() as hf:
        expected = more.pop("after")
        made = CheckpointService(hf).create_checkpoint(
            task, agent, state, expected_latest=expected, **more
        )
    _print(options, made)


@click.command()
@click.argument("checkpoint")
@click.argument("file")
@click.option("--summary", help="Other words to search by.")
@click.option("--revision", type=Ordinal, help="Only if this is the present one.")
@_BY
@common
def update(
    options: Options,
    *,
    checkpoint: str,
    file: str,
    summary: str | None,
    revision: int | None,
    by: str | None,
) -> None:
    """Change fields of a CHECKPOINT (its id) by the JSON object in a FILE: a new revision."""
    partial = object_of(file, what="the fields to change")
    with options.open_existing() as hf:
        made = CheckpointService(hf).update_checkpoint(
            checkpoint,
            partial,
            summary=summary,
            expected_revision=revision,
            by=by or user_name(),
        )
    _print(options, made)


@click.command()
@click.argument("checkpoint")
@click.option("--status", required=True, help="How it ends: complete, handoff, failed, …")
@_BY
@common
def finalize(options: Options, *, checkpoint: str, status: str, by: str | None) -> None:
    """Make a CHECKPOINT (its id) immutable."""
    with options.open_existing() as hf:
        service = CheckpointService(hf)
        service.finalize_checkpoint(checkpoint, status, by=by or user_name())
        made = service.get_checkpoint(checkpoint)
    assert made is not None, "what is final stays"
    _print(options, made)


@click.command()
@click.argument("parent")
@click.argument("child")
@_BY
@common
def link(options: Options, *, parent: str, child: str, by: str | None) -> None:
    """Let the checkpoint CHILD continue the checkpoint PARENT (their ids), of any task."""
    with options.open_existing() as hf:
        CheckpointService(hf).link_checkpoints(parent, child, by=by or user_name())
    record: Record = {"parent_id": parent, "child_id": child, "linked": True}
    options.output.one(record, ids="child_id", draw=_draw_linked)


@click.command()
@click.argument("checkpoint")
@click.option("--revision", type=Ordinal, help="An earlier one.")
@common
def record(options: Options, *, checkpoint: str, revision: int | None) -> None:
    """Show what a CHECKPOINT (its id) tells of the work."""
    with options.open_existing() as hf:
        found = CheckpointService(hf).get_checkpoint(checkpoint, revision=revision)
    if found is None:
        which = "" if revision is None else f" with revision {revision}"
        raise CheckpointNotFound(f"there is no checkpoint {checkpoint!r}{which}")
    _print(options, found)


@click.command()
@click.option("--task", "task_id", help="Of this task.")
@click.option("--agent", "agent_id", help="Of this agent.")
@click.option("--type", "agent_type", help="Of agents of this type.")
@click.option("--phase", help="In this phase.")
@click.option("--status", help="With this status.")
@click.option("--label", help="With this label.")
@click.option("--since", type=_Moment(), help="Created then or later.")
@click.option("--until", type=_Moment(), help="Created before then.")
@click.option("--text", default="", help="With all of these words in the summary.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many."
)
@click.option("--before", "cursor", default="", help="Go on after the checkpoint with this id.")
@common
def search(options: Options, **wanted: Any) -> None:
    """Search checkpoints of all tasks, newest first."""
    with options.open_existing() as hf:
        found = CheckpointService(hf).search_checkpoints(CheckpointQuery(**wanted))
    for checkpoint_id in found.damaged:
        output.say(f"checkpoint {checkpoint_id} is damaged, and left out")
    options.output.many(
        map(_row_of, found.checkpoints),
        ids="checkpoint_id",
        draw=output.table(_COLUMNS, empty="no checkpoints"),
    )
    if found.cursor and options.output.is_for_people:
        output.say(f"there are more; --before {found.cursor} goes on")


COMMANDS = (create, update, finalize, link, record, search)


def _print(options: Options, made: StoredRecord) -> None:
    options.output.one(_record_of(made), ids="checkpoint_id", draw=output.fields)


def _record_of(found: StoredRecord) -> Record:
    """A record with its sections, and its id in front."""
    fields: Record = msgspec.to_builtins(found)
    return {"checkpoint_id": found.checkpoint_id, **fields}


def _row_of(found: StoredRecord) -> Record:
    metadata = found.metadata
    return _record_of(found) | {
        "task_id": metadata.task_id,
        "agent_id": metadata.agent_id,
        "phase": found.execution_state.phase.value,
        "timestamp": metadata.timestamp,
    }


def _draw_linked(record: Record) -> None:
    write(f"{record['child_id']} continues {record['parent_id']} now")
