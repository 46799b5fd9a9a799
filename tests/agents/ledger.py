"""What was done outside, counted by something that knows nothing of Holdfast: lines in a file.

A line is one write to a file opened for appending, so that lines of several processes, and of ones
that are killed, are whole or not there.
"""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    what: str
    run: str
    turn: int
    key: str
    by: str = ""


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, what: str, run: str, turn: int, key: str = "-", *, by: object = "") -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{what} {run} {turn} {key} {by}\n".encode())
        finally:
            os.close(file)

    def lines(self) -> list[Line]:
        if not self.path.exists():
            return []
        split = (line.split() for line in self.path.read_text().splitlines())
        return [Line(what, run, int(turn), *more) for what, run, turn, *more in split]

    def has(self, what: str, key: str) -> bool:
        return any((line.what, line.key) == (what, key) for line in self.lines())

    def count(self, what: str) -> Counter[tuple[str, int]]:
        """How often something was done in each turn of each run."""
        return Counter((line.run, line.turn) for line in self.lines() if line.what == what)


def faults(ledger: Ledger, runs: dict[str, int], *, kills: int) -> list[str]:
    """What is wrong with a ledger after runs of so many turns have completed, in words."""
    wanted = {(run, turn) for run, turns in runs.items() for turn in range(turns)}
    found: list[str] = []
    charges = ledger.count("charge")
    found += [f"{place} was charged {n} times" for place, n in charges.items() if n > 1]
    found += [f"{place} was never charged" for place in wanted - set(charges)]
    found += [f"{place} was charged, and nobody asked" for place in set(charges) - wanted]
    notes = ledger.count("note")
    found += [f"{place} was never noted" for place in wanted - set(notes)]
    keys = {(line.run, line.turn, line.key) for line in ledger.lines() if line.what == "note"}
    by_place = Counter((run, turn) for run, turn, _ in keys)
    found += [f"{place} was noted under {n} keys" for place, n in by_place.items() if n > 1]
    models = ledger.count("model")
    found += [f"the model was never asked in {place}" for place in wanted - set(models)]
    extra = sum(n - 1 for n in models.values())
    if extra > kills:
        found.append(f"{extra} replies were paid for again, and only {kills} workers were killed")
    return found
