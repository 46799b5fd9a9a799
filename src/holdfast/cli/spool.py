"""`holdfast spool`: what this machine keeps for a store that was away, and what is left of that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from holdfast import settings
from holdfast.cli import output
from holdfast.cli.exits import Exit
from holdfast.cli.options import Options, common
from holdfast.cli.output import say
from holdfast.cli.records import Record
from holdfast.cli.text import count, moment
from holdfast.errors import NotFoundError
from holdfast.settings import Settings
from holdfast.stores import spool_files
from holdfast.stores.spool_files import EVIDENCE

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
_folder = click.option("--folder", default="", help="The spool_folder, unless it is the default.")


@click.group()
def command() -> None:
    """See what this machine keeps for a store that is away."""


@command.command("list")
@_folder
@common
def list_(options: Options, *, folder: str) -> None:
    """List the spools on this machine, of all stores: what those have not taken yet."""
    found = (path for store in _stores(folder) for path in spool_files.files_in(store))
    draw = output.table(_COLUMNS, empty="nothing is spooled")
    options.output.many(map(_record, found), ids="file", draw=draw)


@command.command()
@_folder
@common
def evidence(options: Options, *, folder: str) -> None:
    """List what could not be stored any more because its run went on elsewhere, and why."""
    found = (path for store in _stores(folder) for path in spool_files.files_in(store / EVIDENCE))
    draw = output.table(_KEPT, empty="there is no evidence: everything was stored")
    options.output.many(map(_record, found), ids="file", draw=draw)


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
    stores = [*_stores(folder)]
    before = {path for store in stores for path in store.rglob(f"*{spool_files.SUFFIX}")}
    given = Settings(tenant=options.tenant, on_store_failure="spool", spool_folder=folder)
    with options.open_existing(given=given):
        pass
    now = {path for store in stores for path in store.rglob(f"*{spool_files.SUFFIX}")}
    kept = sorted(now - before)
    record: Record = {
        "drained": sorted(str(path) for path in before - now),
        "left": sorted(str(path) for path in now & before if path.parent.name != EVIDENCE),
        "evidence": [str(path) for path in kept],
    }
    options.output.one(record, ids="drained", draw=output.fields)
    if kept:
        say(f"{count(len(kept), 'file')} could not be stored: `holdfast spool evidence`")
    return Exit.CONFLICT if kept else Exit.OK


def _stores(folder: str) -> Iterator[Path]:
    """The folders of all stores."""
    root = settings.spool_folder(folder)
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
