"""`holdfast spool`: what this machine keeps for a store that was away, and what is left of that."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from holdfast import settings
from holdfast.errors import InvalidSetting, NotFoundError
from holdfast.settings import Settings
from holdfast.stores import spool_files
from holdfast.stores.spool_files import EVIDENCE
from holdfast.terminal import output
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import TerminalOutput, say
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, moment

_COLUMNS: Final = {
    "FILE": "file",
    "TENANT": "tenant",
    "WORKER": "worker",
    "RUNS": "runs",
    "COMMITS": "commits",
    "BYTES": "size_bytes",
    "STATE": "state",
}
_KEPT: Final = {
    "FILE": "file",
    "RUN": "run_id",
    "COMMITS": "commits",
    "STATE": "state",
    "WHY": "why",
}
_ENTRIES: Final = {
    "RUN": "run_id",
    "SEQ": "seq",
    "KIND": "kind",
    "AT": "at",
    "ACTOR": "actor",
    "BYTES": "size_bytes",
}
_VARIABLE: Final = "HOLDFAST_SPOOL_FOLDER"
_folder = click.option(
    "--folder",
    default="",
    metavar="PATH",
    help=f"The spool_folder that agents have, unless it is the default, or {_VARIABLE} names it.",
)


@click.group()
def command() -> None:
    """See what this machine keeps for a store that is away."""


@command.command("list")
@_folder
@common
def list_(options: Options, *, folder: str) -> None:
    """List the spools on this machine, of all stores: what those have not taken yet."""
    root = _root(folder)
    found = (path for store in _stores(root) for path in spool_files.files_in(store))
    _tell(options.output, found, _COLUMNS, empty=f"nothing is spooled in {root}")


@command.command()
@_folder
@common
def evidence(options: Options, *, folder: str) -> None:
    """List what could not be stored any more because its run went on elsewhere, and why."""
    root = _root(folder)
    found = (path for store in _stores(root) for path in spool_files.files_in(store / EVIDENCE))
    _tell(options.output, found, _KEPT, empty=f"there is no evidence in {root}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@common
def show(options: Options, *, file: Path) -> None:
    """Show the entries in a spool or in evidence."""
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}; `holdfast spool list` shows those there are")
    contents = spool_files.read(file)
    draw = output.table(_ENTRIES, empty="it holds no entries")
    options.output.many(_entries(contents), ids="seq", draw=draw)
    spool_files.check(file, contents)


@command.command()
@_folder
@common
def drain(options: Options, *, folder: str) -> Exit:
    """Let the store take what processes that are gone have left for it."""
    root = _root(folder)
    stores = [*_stores(root)]
    before = {path for store in stores for path in store.rglob(f"*{spool_files.SUFFIX}")}
    given = Settings(tenant=options.tenant, on_store_failure="spool", spool_folder=str(root))
    with options.open_existing(given=given):
        pass
    now = {path for store in stores for path in store.rglob(f"*{spool_files.SUFFIX}")}
    kept = sorted(now - before)
    record: Record = {
        "folder": str(root),
        "drained": sorted(str(path) for path in before - now),
        "left": sorted(str(path) for path in now & before if path.parent.name != EVIDENCE),
        "evidence": [str(path) for path in kept],
    }
    options.output.one(record, ids="drained", draw=output.fields)
    if kept:
        say(f"{count(len(kept), 'file')} could not be stored: `holdfast spool evidence`")
    return Exit.CONFLICT if kept else Exit.OK


def _root(folder: str) -> Path:
    """Where agents of this machine spool: the folder given, else the variable's, else default."""
    if folder:
        return Path(os.path.abspath(folder))
    value = settings.environment().get(_VARIABLE, "")
    if unmet := settings.requirement("spool_folder", value):
        raise InvalidSetting(f"{_VARIABLE} {unmet}, not {value!r}")
    return settings.spool_folder(value)


def _tell(
    out: TerminalOutput, found: Iterator[Path], columns: dict[str, str], *, empty: str
) -> None:
    """List files; if there are none, say where they were looked for, whatever the format."""
    files = [*found]
    hint = f"{empty}; if agents have another spool_folder, name it with --folder"
    out.many(map(_record, files), ids="file", draw=output.table(columns, empty=hint))
    if not files and not out.is_for_people:
        say(hint)


def _stores(root: Path) -> Iterator[Path]:
    """The folders of all stores."""
    yield from sorted(path for path in root.glob("*") if path.is_dir())


def _record(path: Path) -> Record:
    contents = spool_files.read(path)
    head = contents.head
    is_used = path.parent.name != EVIDENCE and spool_files.is_used(path)
    state = "damaged" if contents.problem else "torn" if contents.is_torn else "whole"
    return {
        "file": str(path),
        "store_id": head.store_id if head else "",
        "tenant": head.tenant if head else "",
        "worker": head.worker if head else "",
        "run_id": head.run_id if head else "",
        "why": contents.problem or (head.why if head else ""),
        "runs": len({commit.run_id for commit in contents.commits}),
        "commits": len(contents.commits),
        "size_bytes": path.stat().st_size,
        "state": "in use" if is_used else state,
    }


def _entries(contents: spool_files.Contents) -> Iterator[Record]:
    for entry in (entry for commit in contents.commits for entry in commit.entries):
        yield {
            "run_id": entry.run_id,
            "seq": entry.seq,
            "kind": entry.kind,
            "at": moment(entry.at),
            "actor": entry.actor,
            "size_bytes": len(entry.body or b""),
        }
