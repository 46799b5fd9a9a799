"""How far long work has come, on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, TypeVar

from holdfast.terminal.output import TerminalOutput

T = TypeVar("T")
_TERMINAL_SECONDS: Final = 0.1
_LOG_SECONDS: Final = 10.0


def shown(runs: Iterable[T], *, verb: str, total: int, output: TerminalOutput) -> Iterator[T]:
    """Yield the runs and report how many are done: on a terminal in a line that is rewritten.

    Where the results appear on the same terminal as they come, nothing more is reported.
    """
    if output.is_streamed and sys.stdout.isatty():
        yield from runs
        return
    pause = _TERMINAL_SECONDS if sys.stderr.isatty() else _LOG_SECONDS
    shown_at = time.monotonic()
    for done, run in enumerate(runs):
        if time.monotonic() - shown_at >= pause:
            shown_at = time.monotonic()
            _tell(f"{verb} {done:,} of {total:,} runs")
        yield run
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counted(verb: str, unit: str, total: int) -> Generator[Callable[[], None]]:
    """Return a function to call for each item done: moves a bar on a terminal, else logs lines."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(verb, total=total)
            yield lambda: bar.advance(task)
        return
    lines = _LogLines(verb, unit, total)
    yield lines.advance


class _LogLines:
    """A line for a log whenever enough time has passed."""

    def __init__(self, verb: str, unit: str, total: int) -> None:
        self._verb, self._unit, self._total = verb, unit, total
        self._done = 0
        self._logged_at = time.monotonic()

    def advance(self) -> None:
        self._done += 1
        if time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            _tell(f"{self._verb} {self._done:,} of {self._total:,} {self._unit}")


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
