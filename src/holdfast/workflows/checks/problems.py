"""What is wrong with a definition: where, why, and what to do about it."""

import msgspec

from holdfast.workflows.definitions.sources import DefinitionSource, Place, shown


class WorkflowProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake. `line` is 0 where a definition was not read from a text."""

    reason: str
    where: str = ""
    line: int = 0
    suggestion: str = ""
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file or 'line'}:{self.line}: " if self.line else f"{self.where}: "
        place = place if self.line or self.where else ""
        advice = f"; {self.suggestion}" if self.suggestion else ""
        return f"{place}{self.reason}{advice}"


class Findings:
    """The mistakes of one definition; it finds the lines of their places."""

    def __init__(self, source: DefinitionSource) -> None:
        self.source = source
        self.problems: list[WorkflowProblem] = []
        self.places: set[Place] = set()

    def tell(self, place: Place, reason: str, suggestion: str = "") -> None:
        """Add a mistake."""
        self.places.add(place)
        self.problems.append(
            WorkflowProblem(
                reason=reason,
                where=shown(place),
                line=self.source.line_of(place),
                suggestion=suggestion,
                file=self.source.file,
            )
        )
