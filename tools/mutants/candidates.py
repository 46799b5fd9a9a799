"""All mutants of the source."""

from collections.abc import Iterator
from pathlib import Path

from tools.mutants import python_edits, sql_edits
from tools.mutants.mutant import WEIGHTS, Mutant, SourceFile

PACKAGE = Path("src", "holdfast")


def candidates(root: Path) -> list[Mutant]:
    """Every mutant of the areas below a tree's `src/holdfast`."""
    return [each for area in WEIGHTS for each in _of_area(root / PACKAGE, area)]


def _of_area(package: Path, area: str) -> Iterator[Mutant]:
    for file in sorted((package / area).rglob("*.py")):
        path = file.relative_to(package).as_posix()
        source = SourceFile(path, area, file.read_bytes())
        yield from map(source.mutant, python_edits.edits(path, source.source))
    for file in sorted((package / area).glob("*/sql/*.sql")):
        source = SourceFile(file.relative_to(package).as_posix(), area, file.read_bytes())
        backend = file.parent.parent.name
        yield from map(source.mutant, sql_edits.edits(backend, source.source))
