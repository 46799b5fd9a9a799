"""Reading definitions from YAML or JSON, with the line of everything that is in them.

Values are those of YAML 1.2, so `yes` and `no` are texts: only `true` and `false` are truths.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.config import documents
from holdfast.config.documents import ListNode, Node, Scalar
from holdfast.errors import WorkflowInvalid
from holdfast.workflows.checks import checker, shape
from holdfast.workflows.checks.problems import WorkflowProblem
from holdfast.workflows.definitions import sources
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.definitions.sources import DefinitionSource, Place

LIMITS: Final = documents.FileLimits(
    bytes=1024 * 1024, depth=40, nodes=50_000, noun="a workflow", extra="workflows"
)
_INT: Final = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Final[dict[str, Any]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_LONGEST: Final = 100
_INTEGERS: Final = range(-(2**63), 2**64)


class ParsedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text as plain data. `is_whole` says that nothing of it is missing."""

    data: Any
    source: DefinitionSource
    problems: list[WorkflowProblem] = []
    is_whole: bool = True


def load(path: str | Path) -> Workflow:
    """A definition from a file of YAML or JSON; raises WorkflowInvalid with every mistake in it.

    What depends on a kit, such as the types of blocks, is checked when the workflow is started.
    """
    return _workflow(read(path))


def loads(text: str, file: str = "") -> Workflow:
    """The same from a text; `file` is what messages call it, and where files next to it are."""
    return _workflow(parse(text.encode(errors="replace"), file))


def read(path: str | Path) -> ParsedText:
    """A file as plain data; raises WorkflowInvalid if it cannot be opened."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LIMITS.bytes + 1)
    except (OSError, ValueError) as error:
        reason = f"this file cannot be read: {getattr(error, 'strerror', None) or error}"
        problem = WorkflowProblem(reason=reason, file=str(path), where=str(path))
        raise WorkflowInvalid(f"{path}: {reason}", problems=(problem,)) from error
    return parse(content, str(path))


def parse(content: bytes, file: str = "") -> ParsedText:
    """A text as plain data, and everything that is wrong with it as a text."""
    document = documents.parse(_spaced(content), LIMITS)
    values = _NodeValues()
    data = None if document.root is None else values.of(document.root, ())
    source = DefinitionSource(file=file, lines=values.lines)
    faults = [(fault.line, fault.message) for fault in document.faults] + values.faults
    problems = [WorkflowProblem(reason=why, line=line, file=file) for line, why in sorted(faults)]
    is_whole = document.root is not None
    return ParsedText(data=data, source=source, problems=problems, is_whole=is_whole)


def _workflow(document: ParsedText) -> Workflow:
    draft = shape.drafted(document.data, document.source) if document.is_whole else None
    problems = list(document.problems)
    if draft is not None:
        problems += [*draft.problems, *checker.mistakes_of(draft)]
    problems.sort(key=lambda each: each.line)
    if draft is None or problems:
        raise WorkflowInvalid("\n".join(map(str, problems)), problems=tuple(problems))
    sources.remember(draft.workflow, document.source)
    return draft.workflow


def _spaced(content: bytes) -> bytes:
    """JSON as YAML takes it: tabs, which JSON can have between values only, are spaces."""
    if b"\t" not in content or not content.lstrip().startswith((b"{", b"[")):
        return content
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return content
    return content.replace(b"\t", b" ")


class _NodeValues:
    """Makes values of nodes."""

    def __init__(self) -> None:
        self.lines: dict[Place, int] = {}
        self.faults: list[tuple[int, str]] = []

    def of(self, node: Node, place: Place) -> Any:
        self.lines.setdefault(place, node.line)
        if isinstance(node, Scalar):
            return self._scalar(node)
        if isinstance(node, ListNode):
            return [self.of(item, (*place, at)) for at, item in enumerate(node.items)]
        made: dict[str, Any] = {}
        for key, (line, value) in node.items.items():
            if key in node.plain and not self._is_text(key, line):
                continue
            self.lines[*place, key] = line
            made[self._whole(key, line)] = self.of(value, (*place, key))
        return made

    def _is_text(self, key: str, line: int) -> bool:
        if key == "<<":
            self.faults.append((line, "`<<` (merging) is not allowed; write the keys out"))
        elif key in _WORDS or _INT.fullmatch(key) or _FLOAT.fullmatch(key):
            self.faults.append((line, f"a key must be a text; write it as '{key}' with quotes"))
        else:
            return True
        return False

    def _scalar(self, node: Scalar) -> Any:
        text = node.text
        if not node.is_plain:
            return self._whole(text, node.line)
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return self._integer(text, node.line)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if abs(number) != float("inf"):
                return number
        elif not _NO_NUMBER.fullmatch(text):
            return self._whole(text, node.line)
        self.faults.append((node.line, "this is no number that can be kept; quote it to be a text"))
        return 0

    def _integer(self, text: str, line: int) -> int:
        if len(text) <= _LONGEST:
            number = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            if number in _INTEGERS:
                return number
        self.faults.append((line, "this number has more than 64 bits; quote it to be a text"))
        return 0

    def _whole(self, text: str, line: int) -> str:
        """A text whose pairs of surrogates, as JSON writes them, are the characters they mean."""
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.faults.append((line, "this text has half of a character (a lone surrogate)"))
            return text.encode(errors="replace").decode()
