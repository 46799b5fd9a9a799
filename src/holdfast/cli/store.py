"""`holdfast store`: the schema, the size and the indexes of a store."""

from collections.abc import Iterable, Iterator

import click

from holdfast.errors import IntegrityError, NotFoundError
from holdfast.sync import Holdfast
from holdfast.terminal import exits, output, progress
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count, printable


@click.group()
def command() -> None:
    """Look after the store itself."""


@command.command()
@common
def info(options: Options) -> None:
    """Show what the store is: its place, schema, size, and runs by state."""
    with options.open_existing() as hf:
        record = record_of(hf.info())
    options.output.one(record, ids="url", draw=output.fields)


@command.command()
@click.option("--print", "is_dry", is_flag=True, help="Print the SQL; apply and make nothing.")
@common
def migrate(options: Options, *, is_dry: bool) -> None:
    """Bring the store's schema up to date; make the store if there is none."""
    pending = options.pending()
    if is_dry:
        records = [{"number": m.number, "name": m.name, "sql": m.sql} for m in pending]
        options.output.many(records, ids="number", draw=output.lines(_sql))
    else:
        with options.open():
            records = [{"number": m.number, "name": m.name} for m in pending]
        options.output.many(records, ids="number", draw=output.lines(_applied))
    if not pending:
        say("the store is up to date")


def _sql(record: Record) -> str:
    return f"-- {record['number']:04} {record['name']}\n{record['sql'].strip()}\n"


def _applied(record: Record) -> str:
    return f"applied {record['number']:04} {record['name']}"


@command.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@common
def reindex(options: Options, *, runs: tuple[str, ...]) -> Exit:
    """Rebuild the indexes of the runs named, or of all runs, from their journals."""
    with options.open_existing() as hf:
        total = len(runs) if runs else sum(hf.info().runs.values())
        wanted = progress.shown(
            runs or hf.journal.run_ids(), verb="reindexed", total=total, output=options.output
        )
        rebuilding = _Rebuilding(hf, as_json=options.output.is_json)
        records = rebuilding.rebuild(wanted)
        options.output.many(records, ids="run_id", draw=output.lines(_rebuilt))
    say(f"{count(rebuilding.rebuilt, 'run')} reindexed")
    return rebuilding.code


class _Rebuilding:
    """One pass over runs. A damaged or missing one does not keep the others from being rebuilt."""

    def __init__(self, hf: Holdfast, *, as_json: bool) -> None:
        self._hf = hf
        self._as_json = as_json
        self.rebuilt = 0
        self.code = Exit.OK

    def rebuild(self, run_ids: Iterable[str]) -> Iterator[Record]:
        for run_id in run_ids:
            try:
                # Refuse a run without a journal: its rows are all that is left of it.
                self._hf.journal.read(run_id, limit=1, checked=False)
                self._hf.reindex(run_id)
            except (IntegrityError, NotFoundError) as error:
                code = exits.tell(error, as_json=self._as_json)
                self.code = self.code or code
                continue
            self.rebuilt += 1
            yield {"run_id": run_id}


def _rebuilt(record: Record) -> str:
    return f"reindexed {printable(record['run_id'])}"
