"""What a mutant is: one replacement in one file, with a name that survives other changes."""

import hashlib
from dataclasses import dataclass
from itertools import groupby
from typing import Self


@dataclass(frozen=True)
class Mutant:
    """Replace the bytes `start:end` of a file below `src/holdfast`."""

    id: str
    area: str
    path: str
    line: int
    operator: str
    block: str  # what a test must reach: a block of code, or a named statement
    before: str
    after: str
    start: int
    end: int
    replacement: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    @property
    def change(self) -> str:
        return f"{self.before} → {self.after}"


@dataclass(frozen=True)
class Edit:
    """A replacement that an operator proposes."""

    operator: str
    block: str
    start: int
    end: int
    replacement: str


class SourceFile:
    """A file's bytes, and the mutants that edits of it make."""

    def __init__(self, path: str, area: str, source: bytes) -> None:
        self.path, self.area, self.source = path, area, source
        self._seen: dict[str, int] = {}

    def mutant(self, edit: Edit) -> Mutant:
        """Name an edit by what it does and where in its block, not by its line's number."""
        first = self.source.rfind(b"\n", 0, edit.start) + 1
        last = self.source.find(b"\n", edit.end)
        last = len(self.source) if last < 0 else last
        before = self.source[first:last].decode()
        after = (
            self.source[first : edit.start]
            + edit.replacement.encode()
            + self.source[edit.end : last]
        ).decode()
        said = "|".join([self.path, edit.block, edit.operator, before.strip(), after.strip()])
        nth = self._seen[said] = self._seen.get(said, 0) + 1
        digest = hashlib.sha256(f"{said}|{nth}".encode()).hexdigest()
        return Mutant(
            id=digest[:10],
            area=self.area,
            path=self.path,
            line=self.source.count(b"\n", 0, edit.start) + 1,
            operator=edit.operator,
            block=edit.block,
            before=_one_line(before),
            after=_one_line(after),
            start=edit.start,
            end=edit.end,
            replacement=edit.replacement,
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Plan:
    """Which mutants are tried, and in which order: the same for the same seed and source."""

    seed: int
    weights: dict[str, int]

    @classmethod
    def default(cls, seed: int) -> Self:
        return cls(seed, WEIGHTS)

    def order(self, candidates: list[Mutant]) -> list[Mutant]:
        """Interleave areas by weight, and in an area its operators: any prefix is spread."""
        placed: list[tuple[float, str, Mutant]] = []
        for area, weight in self.weights.items():
            mine = self._spread([each for each in candidates if each.area == area])
            placed += [((n + 0.5) / weight, area, each) for n, each in enumerate(mine)]
        return [each for _, _, each in sorted(placed, key=lambda place: place[:2])]

    def _spread(self, candidates: list[Mutant]) -> list[Mutant]:
        def kind(each: Mutant) -> tuple[bool, str]:
            return each.path.endswith(".sql"), each.operator

        groups = [
            sorted(group, key=self._chance)
            for _, group in groupby(sorted(candidates, key=kind), key=kind)
        ]
        turns = [
            (turn, self._chance(each), each) for group in groups for turn, each in enumerate(group)
        ]
        return [each for *_, each in sorted(turns, key=lambda item: item[:2])]

    def _chance(self, each: Mutant) -> str:
        return hashlib.sha256(f"{self.seed}|{each.id}".encode()).hexdigest()


# How many of 420 mutants are of each area. The first three keep the promises.
WEIGHTS = {
    "kernel": 80,
    "stores": 110,
    "engine": 80,
    "agents": 55,
    "records": 20,
    "peers": 20,
    "workflows": 35,
    "compat": 20,
}
