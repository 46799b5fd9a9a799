"""One-place edits of named SQL statements: a condition, a conflict, a lock that is missing.

A condition is weakened to `(condition OR TRUE)`: its parameters stay, so that the driver does not
notice and only a test can.
"""

import re
from collections.abc import Iterator

from tools.mutants.mutant import Edit

_STATEMENT = re.compile(r"^-- name: ([a-z_]+)\n(?:-- .+\n)+", re.MULTILINE)
_WORD = re.compile(r"'(?:[^']|'')*'|--[^\n]*|[A-Za-z_][A-Za-z_0-9]*|[()]")
_ENDS = re.compile(
    "GROUP|ORDER|LIMIT|RETURNING|FOR|WINDOW|UNION|EXCEPT|INTERSECT|ON|WHERE|HAVING|SELECT"
)
_DROPPED = {
    "drop a lock": r"\s+FOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED| NOWAIT)?",
    "drop ON CONFLICT": r"\s+ON CONFLICT(?: \([^()]*\))? DO NOTHING",
    "drop ORDER": r" DESC\b",
    "wait for locks": r" SKIP LOCKED",
}
_SWAPPED = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " <> ": " = "}
_UPDATE = re.compile(r"UPDATE (\w+)(?: (\w+))?\s+SET ")
_ASSIGNED = re.compile(r"(?:(?<=\bSET )|(?<=, ))(\w+) = ([\w.$?':|+ ]+)(?=[,\n])")
# The session's setting is kept, so a database that says otherwise would lose commits.
_DURABLE = re.compile(r"WHEN 'off' THEN 'on'")


def edits(backend: str, source: bytes) -> Iterator[Edit]:
    """Every edit of a file of named statements that we know to make."""
    text = source.decode("ascii")  # so that places in the text are places in the file
    headers = list(_STATEMENT.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        end = following.start() if following else len(text)
        statement = _Statement(text, header.end(), end, f"{backend}/{header[1]}")
        yield from statement.edits()


class _Statement:
    def __init__(self, text: str, start: int, end: int, name: str) -> None:
        self._text, self._start, self._end, self._name = text, start, end, name

    def edits(self) -> Iterator[Edit]:
        for start, end in self._conditions():
            said = self._text[start:end]
            yield self._edit("drop a condition", start, end, f"({said} OR TRUE)")
        for operator, pattern in _DROPPED.items():
            for start, end in self._found(pattern):
                yield self._edit(operator, start, end, "")
        for strong, weak in _SWAPPED.items():
            for start, end in self._found(re.escape(strong)):
                yield self._edit("swap a comparison", start, end, weak)
        for start, end in self._found(_DURABLE.pattern):
            yield self._edit("weaken SQL", start, end, "WHEN 'off' THEN 'off'")
        yield from self._without_columns()

    def _edit(self, operator: str, start: int, end: int, text: str) -> Edit:
        return Edit(operator, self._name, start, end, text)

    def _found(self, pattern: str) -> Iterator[tuple[int, int]]:
        for found in re.compile(pattern).finditer(self._text, self._start, self._end):
            yield found.span()

    def _conditions(self) -> Iterator[tuple[int, int]]:
        """The operands of AND below each WHERE."""
        words = list(_WORD.finditer(self._text, self._start, self._end))
        for index, word in enumerate(words):
            if word[0] == "WHERE":
                yield from self._operands(words[index + 1 :], word.end())

    def _operands(self, words: list[re.Match[str]], start: int) -> Iterator[tuple[int, int]]:
        depth, begun, end = 0, start, self._text.rfind(";", start, self._end)
        found: list[tuple[int, int]] = []
        for word in words:
            said = word[0]
            if depth == 0 and (said == ")" or _ENDS.fullmatch(said)):
                end = word.start()
                break
            depth += {"(": 1, ")": -1, "CASE": 1, "END": -1}.get(said, 0)
            if said == "AND" and depth == 0:
                found.append((begun, word.start()))
                begun = word.end()
        found.append((begun, end if end > begun else self._end))
        for first, last in found:
            said = self._text[first:last]
            is_whole = "BETWEEN" not in said and "--" not in said and " OR " not in said
            if is_whole and said.strip():
                lead = len(said) - len(said.lstrip())
                yield first + lead, first + len(said.rstrip())

    def _without_columns(self) -> Iterator[Edit]:
        """Each column that an UPDATE sets, if the value is simple.

        `a = x` becomes `a = CASE WHEN TRUE THEN table.a ELSE x END`, so parameters stay.
        """
        updated = _UPDATE.search(self._text, self._start, self._end)
        if updated is None:
            return
        table = updated[2] or updated[1]
        for assigned in _ASSIGNED.finditer(self._text, self._start, self._end):
            column, value = assigned.groups()
            kept = f"{column} = CASE WHEN TRUE THEN {table}.{column} ELSE {value} END"
            yield self._edit("skip a write", *assigned.span(), kept)
