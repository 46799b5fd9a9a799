"""The progress of a workflow on stderr: rows that move in a terminal, else a line for each event.

Events come from the thread of the store's loop, the clock of the display is a thread of its own; a
lock lets one of them at the board at a time.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.cli.workflows.board import Board, BoardRow, Wave, shown_below
from holdfast.terminal.output import TerminalOutput, say
from holdfast.terminal.text import printable, short
from holdfast.workflows.execution.events import BlockEnded, BlockWaits, Event, WaveBegan
from holdfast.workflows.execution.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType

MARKS: Final = {
    "pending": ("·", "dim"),
    "running": ("·", "cyan"),
    "waiting": ("?", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "more": (" ", "dim"),
}
_FRAME_SECONDS: Final = 0.1
_LOOK_FRAMES: Final = 10
_MOST_BELOW: Final = 8
_ERROR_WIDTH: Final = 200

Look = Callable[[], tuple[str, Outcome | None]]
"""Tells who else works on the run, and how far it has come; None if it is worked on here."""


class Display(Protocol):
    """Shows the events it is given."""

    def see(self, event: Event) -> None:
        """Something happened here."""

    def follow(self, outcome: Outcome) -> None:
        """So much is stored, whoever did it."""

    def tick(self) -> None:
        """Time has passed."""


@contextlib.contextmanager
def shown(output: TerminalOutput, before: Outcome, look: Look) -> "Generator[Display | None]":
    """What shows how far the run has come; None if nothing is to be shown."""
    if not output.is_for_people:
        yield None
    elif sys.stderr.isatty():
        with _moving(before) as display, _ticking(display, look):
            yield display
    else:
        lines = _EventLines(before)
        with _ticking(lines, look):
            yield lines


@contextlib.contextmanager
def _ticking(display: Display, look: Look) -> Generator[None]:
    """Keep a display moving, and let it follow what another process does with the run."""
    stop = threading.Event()
    thread = threading.Thread(target=_tick, args=(display, look, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _tick(display: Display, look: Look, stop: threading.Event) -> None:
    last_worker = ""
    frames = 0
    while not stop.wait(_FRAME_SECONDS):
        frames += 1
        if frames % _LOOK_FRAMES == 0:
            with contextlib.suppress(Exception):  # then it shows less; the run is not affected
                worker, outcome = look()
                if outcome is not None:
                    display.follow(outcome)
                    if worker != last_worker:
                        last_worker = worker
                        say(f"worker {worker} works on it; if that was killed, it goes on here")
        display.tick()


class _EventLines:
    """A line for each event; what is looked at again after a pause is shown once."""

    def __init__(self, before: Outcome) -> None:
        self._reported: set[tuple[str, str]] = {("", f"wave {n}") for n in _waves_done(before)}
        self._reported |= {(name, result.status) for name, result in before.blocks.items()}

    def see(self, event: Event) -> None:
        match event:
            case WaveBegan(path=path):
                prefix = f"{path}: " if path else ""
                names = short(", ".join(event.blocks))
                text = f"{prefix}wave {event.wave} of {event.waves}: {names}"
                self._tell(path, f"wave {event.wave}", text)
            case BlockEnded(path=path):
                self._tell(path, event.status, f"  {path}: {_said(event)}")
            case BlockWaits(path=path):
                self._tell(path, "waits", f"  {path}: waits")
            case _:
                pass

    def follow(self, outcome: Outcome) -> None:
        for name, result in outcome.blocks.items():
            ended = BlockEnded("", name, result.status, result.seconds, result.error)
            self.see(ended)

    def tick(self) -> None:
        pass

    def _tell(self, path: str, what: str, text: str) -> None:
        if (path, what) not in self._reported:
            self._reported.add((path, what))
            say(text)


def _waves_done(outcome: Outcome) -> Iterator[int]:
    for number, names in enumerate(outcome.waves, start=1):
        if any(name in outcome.blocks for name in names):
            yield number


def _said(event: BlockEnded) -> str:
    why = f": {short(event.error, limit=_ERROR_WIDTH)}" if event.error else ""
    if event.status == "skipped":
        return f"skipped{why}"
    return f"{event.status} in {duration(event.seconds)}{why}"


def duration(seconds: float) -> str:
    """`0.4 s`, `2 m 05 s`, `1 h 01 m`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} m {int(seconds) % 60:02} s"
    return f"{int(seconds) // 3600} h {int(seconds) // 60 % 60:02} m"


@contextlib.contextmanager
def _moving(before: Outcome) -> "Generator[_Moving]":
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    display = _Moving(before, console)
    with Live(
        get_renderable=display.draw, console=console, auto_refresh=False, redirect_stdout=False
    ) as live:
        display.live = live
        try:
            yield display
        finally:
            display.live = None
            live.refresh()


class _Moving:
    """Rows that are drawn again and again; waves that have ended are written once, above them."""

    def __init__(self, before: Outcome, console: Any) -> None:
        self.live: Any = None
        self._board = Board(before)
        self._console = console
        self._lock = threading.RLock()
        self._spinners: dict[str, Any] = {}
        self._written = 0

    def see(self, event: Event) -> None:
        with self._lock:
            self._board.see(event)

    def follow(self, outcome: Outcome) -> None:
        with self._lock:
            self._board.update(outcome)

    def tick(self) -> None:
        live = self.live
        if live is None:
            return
        with self._lock:
            done = self._board.waves[self._written : -1]
            self._written += len(done)
            for wave in done:
                self._console.print(self._drawn(wave))
        live.refresh()

    def draw(self) -> "RenderableType":
        from rich.console import Group

        with self._lock:
            return Group(*(self._drawn(wave) for wave in self._board.waves[self._written :]))

    def _drawn(self, wave: Wave) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1), expand=False)
        grid.add_column(width=1)
        grid.add_column(overflow="fold")
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", style="dim")
        for row in wave.rows:
            for depth, each in [(0, row), *shown_below(row, most=_MOST_BELOW)]:
                name = Text("  " * depth + printable(each.name))
                taken = "" if each.elapsed is None else duration(each.elapsed)
                grid.add_row(self._mark(each), name, taken, Text(_note(each)))
        return Group(Text(f"wave {wave.number} of {wave.total}", style="bold"), grid)

    def _mark(self, row: BoardRow) -> "RenderableType":
        from rich.spinner import Spinner
        from rich.text import Text

        if row.is_active:
            return self._spinners.setdefault(row.path, Spinner("dots", style="cyan"))
        mark, style = MARKS[row.state]
        return Text(mark, style=style)


def _note(row: BoardRow) -> str:
    rounds = f"{row.rounds_ended}/{row.rounds} rounds" if row.rounds else ""
    waits = "waits" if row.state == "waiting" and not row.is_active else ""
    error = short(row.error, limit=_ERROR_WIDTH)
    return "  ".join(filter(None, (rounds, waits, error)))
