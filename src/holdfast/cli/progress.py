"""How far long work has come, on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from holdfast.cli.output import Output

T = TypeVar("T")
_TERMINAL_SECONDS: Final = 0.1
_LOG_SECONDS: Final = 10.0


def shown(runs: Iterable[T], *, verb: str, total: int, output: Output) -> Iterator[T]:
    """The runs, one by one, telling how many are done: on a terminal in a line that is rewritten.

    Where the results appear on the same terminal as they come, they tell enough.
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


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
