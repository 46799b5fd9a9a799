"""What is wrong with a definition: where, why, and what to do about it."""

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake. `line` is 0 where a definition was not read from a text."""

    reason: str
    where: str = ""
    line: int = 0
    suggestion: str = ""
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.where}: "
        advice = f"; {self.suggestion}" if self.suggestion else ""
        return f"{place}{self.reason}{advice}"
