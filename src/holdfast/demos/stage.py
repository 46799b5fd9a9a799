"""What the demos share: the location of the store, and the output."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from holdfast import settings
from holdfast.terminal.output import TerminalOutput
from holdfast.terminal.records import Record
from holdfast.terminal.text import printable

_COLORS: Final = {"demo": "yellow", "bank": "cyan"}

Tell = Callable[[float, str, str], None]


@dataclass
class Timeline:
    """What happened, in order; each line is reported as it comes."""

    tell_line: Tell
    lines: list[Record] = field(default_factory=list[Record])
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def tell(self, who: str, what: str) -> None:
        seconds = self.seconds
        self.lines.append({"seconds": seconds, "who": who, "what": what})
        self.tell_line(seconds, who, what)


def timeline_for(output: TerminalOutput) -> Timeline:
    """A timeline that people see as it comes; programs read it in the object at the end."""
    return Timeline(_tell if output.is_for_people else lambda seconds, who, what: None)


def _tell(seconds: float, who: str, what: str) -> None:
    color = _COLORS.get(who, "green")
    # Colours are left out by click where nobody would see them.
    click.echo(f"{seconds:6.2f} s  {click.style(f'{who:<14}', fg=color)}  {printable(what)}")
    sys.stdout.flush()


def store_for(given: str | None, folder: Path) -> str:
    """Return the store that was named, or one in the demo's folder."""
    if given is None:
        return str(folder / "demo.db")
    if not settings.locate_store(given).location:
        raise click.UsageError("a store in memory dies with its process; name a file")
    return given
