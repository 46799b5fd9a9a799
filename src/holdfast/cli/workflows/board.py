"""How far a workflow has come, event by event: rows of blocks, under each other."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.workflows.execution.events import (
    BlockBegan,
    BlockEnded,
    BlockWaits,
    Event,
    LoopBegan,
    WaveBegan,
)
from holdfast.workflows.execution.outcome import Outcome

ENDED: Final = ("completed", "failed", "skipped")


@dataclass
class BoardRow:
    """One block, or one round of a loop. `rounds` is 0 if it is no loop.

    Its state is "pending", "running", "waiting", or what became of it.
    """

    path: str
    name: str
    state: str = "pending"
    began: float | None = None
    seconds: float = 0.0
    error: str = ""
    rounds: int = 0
    below: "dict[str, BoardRow]" = field(default_factory=lambda: {})

    @property
    def is_active(self) -> bool:
        """Whether it is worked on here and now, or something below it is."""
        if self.below:
            return any(row.is_active for row in self.below.values())
        return self.state == "running"

    @property
    def rounds_ended(self) -> int:
        """How many rounds of a loop have ended; of one that was not watched, all."""
        ended = sum(row.state in ENDED for row in self.below.values())
        return self.rounds if self.state == "completed" else ended

    @property
    def elapsed(self) -> float | None:
        """How long it took, or has taken so far; None if it has not begun, or was skipped."""
        if self.state in ENDED:
            return None if self.state == "skipped" else self.seconds
        return None if self.began is None else time.monotonic() - self.began


@dataclass
class Wave:
    """The blocks of one wave of the workflow that was started."""

    number: int
    total: int
    rows: list[BoardRow]


class Board:
    """The waves that have begun, in order."""

    def __init__(self, before: Outcome) -> None:
        self.waves: list[Wave] = []
        self._rows: dict[str, BoardRow] = {}
        self._runs: dict[str, str] = {}
        self.update(before)

    def see(self, event: Event) -> None:
        match event:
            case WaveBegan():
                self._begin_wave(event)
            case BlockBegan(path=path):
                self._begin(self._row(path))
            case LoopBegan(path=path, rounds=rounds):
                row = self._row(path)
                row.rounds = rounds
                self._begin(row)
            case BlockWaits(path=path):
                row = self._row(path)
                if row.state not in ENDED:
                    row.state = "waiting"
            case BlockEnded():
                self._end(event)

    def update(self, outcome: Outcome) -> None:
        """Take over what is stored: all that is known of what was done elsewhere."""
        for number, names in enumerate(outcome.waves, start=1):
            if not any(name in outcome.blocks for name in names):
                continue
            self._add_wave(number, len(outcome.waves), names)
            for name in names:
                if (result := outcome.blocks.get(name)) is not None:
                    row = self._rows[name]
                    row.rounds = len(result.rounds or ())
                    if row.state not in ENDED:
                        row.state, row.error = result.status, result.error
                        row.seconds = result.seconds

    def _begin_wave(self, event: WaveBegan) -> None:
        if not event.path:
            self._add_wave(event.wave, event.waves, event.blocks)
            return
        parent = self._row(event.path)
        if self._runs.setdefault(event.path, event.run_id) != event.run_id:
            self._runs[event.path] = event.run_id  # it is tried again: these are other blocks
            self._forget(parent.below)
        for name in event.blocks:
            self._add(parent.below, f"{event.path}/{name}", name)

    def _add_wave(self, number: int, total: int, names: list[str]) -> None:
        if all(wave.number != number for wave in self.waves):
            self.waves.append(Wave(number, total, []))
        (wave,) = [wave for wave in self.waves if wave.number == number]
        for name in names:
            if name not in self._rows:
                wave.rows.append(self._add({}, name, name))

    def _add(self, among: dict[str, BoardRow], path: str, name: str) -> BoardRow:
        row = self._rows.setdefault(path, BoardRow(path, name))
        among[path] = row
        return row

    def _forget(self, rows: dict[str, BoardRow]) -> None:
        for path, row in rows.items():
            self._forget(row.below)
            del self._rows[path]
        rows.clear()

    def _row(self, path: str) -> BoardRow:
        """The row of a path; one that is new is a round of a loop."""
        if path in self._rows:
            return self._rows[path]
        loops = [row for row in self._rows.values() if path.startswith(f"{row.path}[")]
        if not loops:
            return BoardRow(path, path)
        loop = max(loops, key=lambda row: len(row.path))
        return self._add(loop.below, path, path[len(loop.path) :])

    def _begin(self, row: BoardRow) -> None:
        if row.state not in ENDED:
            row.state = "running"
            row.began = row.began or time.monotonic()

    def _end(self, event: BlockEnded) -> None:
        row = self._row(event.path)
        if row.state not in ENDED:
            row.state, row.seconds, row.error = event.status, event.seconds, event.error
        for loop in self._rows.values():
            if loop.rounds and row.path in loop.below:
                _end_with_its_rounds(loop)


def _end_with_its_rounds(loop: BoardRow) -> None:
    """A loop is reported as ended with its wave only; its rounds may show it long before."""
    states = [row.state for row in loop.below.values()]
    if loop.state not in ENDED and sum(state in ENDED for state in states) == loop.rounds:
        loop.seconds = loop.elapsed or 0.0
        loop.state = "failed" if "failed" in states else "completed"


def shown_below(row: BoardRow, *, most: int) -> Iterator[tuple[int, BoardRow]]:
    """What is shown under a row, with its depth: of a loop only rounds that go on or failed."""
    rows = list(row.below.values())
    if row.rounds:
        rows = [each for each in rows if each.state in ("running", "waiting", "failed")]
    for each in rows[:most]:
        yield 1, each
        for depth, below in shown_below(each, most=most):
            yield depth + 1, below
    if len(rows) > most:
        yield 1, BoardRow("", f"… and {len(rows) - most:,} more", state="more")
