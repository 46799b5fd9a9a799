"""Writing data to stdout in the format that was asked for."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from holdfast.terminal.records import Record
from holdfast.terminal.text import HINTS, printable, short, to_json

FORMATS: Final = ("table", "json", "jsonl", "ids")
_WIDE: Final = 100_000


@dataclass(frozen=True)
class TerminalOutput:
    """Where data goes, and how: `ids` prints the field that the next command would be given."""

    format: str

    @property
    def is_json(self) -> bool:
        return self.format in ("json", "jsonl")

    @property
    def is_for_people(self) -> bool:
        return self.format == "table"

    @property
    def is_streamed(self) -> bool:
        """Whether lists are written line by line as they come."""
        return self.format != "json"

    def many(
        self, records: Iterable[Record], *, ids: str, draw: Callable[[Iterable[Record]], None]
    ) -> None:
        """Write records as they come; only a JSON array and a drawn table need all of them."""
        match self.format:
            case "table":
                draw(records)
            case "json":
                write(to_json(list(records), indent=2))
            case "jsonl":
                for record in records:
                    write(to_json(record))
            case _:
                for record in records:
                    _write_ids(record, ids)

    def one(self, record: Record, *, ids: str, draw: Callable[[Record], None]) -> None:
        match self.format:
            case "table":
                draw(record)
            case "json":
                write(to_json(record, indent=2))
            case "jsonl":
                write(to_json(record))
            case _:
                _write_ids(record, ids)


def write(text: str) -> None:
    """A line on stdout, at once: a reader at the other end of a pipe may be waiting for it."""
    print(text, flush=True)


def say(text: str) -> None:
    """A message for people."""
    print(printable(HINTS.complete(text)), file=sys.stderr, flush=True)


def _write_ids(record: Record, name: str) -> None:
    found: Any = record[name]
    for value in cast("list[Any]", found) if isinstance(found, list) else [found]:
        write(printable(str(value)))


def table(columns: Mapping[str, str], *, empty: str) -> Callable[[Iterable[Record]], None]:
    """Draw records as a table; `columns` are headings and the fields below them."""

    def draw(records: Iterable[Record]) -> None:
        rows = [[_cell(record[name]) for name in columns.values()] for record in records]
        if not rows:
            say(empty)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=None, pad_edge=False, header_style="bold")
        for heading in columns:
            drawn.add_column(heading, overflow="fold")
        for row in rows:
            # Text, not str: rich would take [brackets] in an id for its own markup.
            drawn.add_row(*map(Text, row))
        console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
        with console.capture() as captured:
            console.print(drawn)
        # Written by us: rich ends the process in its own way when the reader has gone away.
        sys.stdout.write(captured.get())
        sys.stdout.flush()

    return draw


def lines(text: Callable[[Record], str]) -> Callable[[Iterable[Record]], None]:
    """Draw each record as it comes."""

    def draw(records: Iterable[Record]) -> None:
        for record in records:
            write(text(record))

    return draw


def fields(record: Record, *, whole: bool = False) -> None:
    """Draw one record as a list of its fields; those that say nothing only if it is `whole`."""
    shown = {
        name: value for name, value in record.items() if whole or value not in (None, "", [], {})
    }
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = printable(value) if value and isinstance(value, str) else to_json(value)
        write(f"{name:<{width}}  {text}")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else short(value)
