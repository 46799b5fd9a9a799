"""`holdfast journal`: the record of a run, each entry checked against the one before it."""

from collections.abc import Iterable, Iterator

import click

from holdfast import ids
from holdfast.engine.reading.erasures import is_among
from holdfast.kernel import journal
from holdfast.kernel.journal import GENESIS, Entry, Flaw, Problem
from holdfast.sync import Holdfast
from holdfast.terminal import output
from holdfast.terminal.options import Count, Options, Ordinal, common
from holdfast.terminal.output import TerminalOutput, say
from holdfast.terminal.records import Record, entry_record
from holdfast.terminal.text import printable, short, to_json


@click.group()
def command() -> None:
    """Read the record of a run, or follow it."""


@command.command()
@click.argument("run")
@click.option("--after", type=Ordinal, default=0, help="Only entries after this one.")
@click.option("--limit", type=Count, default=1000, show_default=True, help="At most so many.")
@click.option("--bodies", is_flag=True, help="With what the entries hold.")
@common
def show(options: Options, *, run: str, after: int, limit: int, bodies: bool) -> None:
    """Show the entries of a run in order."""
    with options.open_existing() as hf:
        entries = hf.journal.read(run, after=after, limit=limit, checked=False)
        checking = _Checking(hf, with_bodies=bodies)
        records = list(checking.records(entries))
    options.output.many(records, ids="seq", draw=output.lines(_line))
    if len(entries) == limit and options.output.is_for_people:
        say(f"there may be more: --after {entries[-1].seq}")
    checking.judge()


@command.command()
@click.argument("run")
@click.option("--after", type=Ordinal, default=0, help="Only entries after this one.")
@click.option("--bodies", is_flag=True, help="With what the entries hold.")
@common
def tail(options: Options, *, run: str, after: int, bodies: bool) -> None:
    """Show the entries of a run as they are written, until the run ends.

    With -o json there is an object on each line, as with -o jsonl.
    """
    out = TerminalOutput("jsonl") if options.output.is_json else options.output
    with options.open_existing() as hf:
        checking = _Checking(hf, with_bodies=bodies)
        records = checking.records(hf.journal.tail(run, after=after, checked=False))
        out.many(records, ids="seq", draw=output.lines(_line))
    checking.judge()


class _Checking:
    """Entries in order, each marked as intact or not."""

    def __init__(self, hf: Holdfast, *, with_bodies: bool) -> None:
        self._hf = hf
        self._with_bodies = with_bodies
        self._problem: Problem | None = None
        self._erased: list[tuple[int, int]] = []

    def records(self, entries: Iterable[Entry]) -> Iterator[Record]:
        link: bytes | None = None
        for entry in entries:
            before = self._link_before(entry) if link is None else link
            problem = self._problem_of(entry, before)
            is_intact = problem is None
            self._problem = self._problem or problem
            yield entry_record(entry, is_intact=is_intact, with_body=self._with_bodies)
            link = entry.link

    def judge(self) -> None:
        """Raise if what was shown was not all intact."""
        if self._problem is not None:
            raise journal.corrupted(self._problem)

    def _problem_of(self, entry: Entry, link_before: bytes) -> Problem | None:
        if not journal.is_intact(entry, link_before):
            return Problem(entry.run_id, entry.seq, Flaw.CHANGED, "does not fit the chain")
        if entry.body is not None or self._is_erased(entry):
            return None
        what = "has no body, and no erasure is on the record"
        return Problem(entry.run_id, entry.seq, Flaw.EMPTY, what)

    def _is_erased(self, entry: Entry) -> bool:
        if not is_among(entry.seq, self._erased):
            self._erased = self._hf.journal.erased(entry.run_id)
        return is_among(entry.seq, self._erased)

    def _link_before(self, entry: Entry) -> bytes:
        """What the first entry shown continues; b"", which nothing does, if that is missing."""
        if entry.seq == 1:
            return GENESIS
        found = self._hf.journal.read(
            entry.run_id, after=max(entry.seq - 2, 0), limit=1, checked=False
        )
        return found[0].link if found and found[0].seq == entry.seq - 1 else b""


def _line(record: Record) -> str:
    stored: Record = record["facts"] or {}
    facts = {name: value for name, value in stored.items() if value}
    parts = [
        f"{record['seq']:>6}",
        record["at"] or "",
        f"{printable(record['kind']):<20}",
        "" if ids.is_worker_id(record["actor"]) else f"by {printable(record['actor'])}",
        short(facts) if facts else "",
        "" if record["intact"] else "DAMAGED",
        "erased" if record["erased"] else "",
        to_json(record["body"]) if "body" in record and not record["erased"] else "",
    ]
    return "  ".join(part for part in parts if part).rstrip()
