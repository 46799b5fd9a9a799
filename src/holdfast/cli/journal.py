"""`holdfast journal`: the record of a run, each entry checked against the one before it."""

from collections.abc import Iterable, Iterator

import click

from holdfast.cli import output
from holdfast.cli.exits import Exit
from holdfast.cli.options import Count, Options, Ordinal, common
from holdfast.cli.output import Output, say
from holdfast.cli.records import Record, entry_record
from holdfast.cli.text import printable, short, to_json
from holdfast.kernel import journal
from holdfast.kernel.journal import GENESIS, Entry
from holdfast.sync import Holdfast


@click.group()
def command() -> None:
    """Read the record of a run, or follow it."""


@command.command()
@click.argument("run")
@click.option("--after", type=Ordinal, default=0, help="Only entries after this one.")
@click.option("--limit", type=Count, default=1000, show_default=True, help="At most so many.")
@click.option("--bodies", is_flag=True, help="With what the entries hold.")
@common
def show(options: Options, *, run: str, after: int, limit: int, bodies: bool) -> Exit:
    """Show the entries of a run in order."""
    with options.open_existing() as hf:
        entries = hf.journal.read(run, after=after, limit=limit)
        checking = _Checking(_link_before(hf, run, after), with_bodies=bodies)
    records = list(checking.records(entries))
    options.output.many(records, ids="seq", draw=output.lines(_line))
    if len(entries) == limit and options.output.is_for_people:
        say(f"there may be more: --after {entries[-1].seq}")
    return checking.judge(run)


@command.command()
@click.argument("run")
@click.option("--after", type=Ordinal, default=0, help="Only entries after this one.")
@click.option("--bodies", is_flag=True, help="With what the entries hold.")
@common
def tail(options: Options, *, run: str, after: int, bodies: bool) -> Exit:
    """Show the entries of a run as they are written, until the run ends.

    With -o json there is an object on each line, as with -o jsonl.
    """
    out = Output("jsonl") if options.output.is_json else options.output
    with options.open_existing() as hf:
        checking = _Checking(_link_before(hf, run, after), with_bodies=bodies)
        records = checking.records(hf.journal.tail(run, after=after))
        out.many(records, ids="seq", draw=output.lines(_line))
    return checking.judge(run)


def _link_before(hf: Holdfast, run_id: str, after: int) -> bytes:
    """What the first entry after `after` continues; nothing fits b"", should that be missing."""
    if after == 0:
        return GENESIS
    found = hf.journal.read(run_id, after=after - 1, limit=1)
    return found[0].link if found and found[0].seq == after else b""


class _Checking:
    """Entries in order, each marked as intact or not."""

    def __init__(self, link: bytes, *, with_bodies: bool) -> None:
        self._link = link
        self._with_bodies = with_bodies
        self._damaged: list[int] = []

    def records(self, entries: Iterable[Entry]) -> Iterator[Record]:
        for entry in entries:
            is_intact = journal.fits(entry, self._link)
            if not is_intact:
                self._damaged.append(entry.seq)
            self._link = entry.link
            yield entry_record(entry, is_intact=is_intact, with_body=self._with_bodies)

    def judge(self, run_id: str) -> Exit:
        if not self._damaged:
            return Exit.OK
        say(
            f"Error: entry {self._damaged[0]} of run {run_id} does not fit the chain: it or the "
            "one before was changed; `holdfast audit verify` names every damaged entry"
        )
        return Exit.INTEGRITY


def _line(record: Record) -> str:
    told: Record = record["facts"] or {}
    facts = {name: value for name, value in told.items() if value}
    parts = [
        f"{record['seq']:>6}",
        record["at"] or "",
        f"{printable(record['kind']):<20}",
        short(facts) if facts else "",
        "" if record["intact"] else "DAMAGED",
        to_json(record["body"]) if "body" in record else "",
    ]
    return "  ".join(part for part in parts if part).rstrip()
