"""YAML as plain nodes that know their lines. The only module that names PyYAML.

Safe by what is missing: no tag means anything, nothing is constructed, and there are limits to a
file's size, its depth and its number of nodes, aliases expanded. A message never quotes a value.
Definitions of workflows are read by it too, with their own limits.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError

MAX_BYTES: Final = 256 * 1024
_SAFE_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_QUOTED: Final = re.compile(r" ?(?:'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\")")
# What PyYAML finds, in its words and in ours; True if it is where the problem began that helps.
_IN_WORDS: Final = (
    (
        "expected the node content, but found '<stream end>'",
        "the file ends before a list [ or a block { is closed",
        False,
    ),
    ("expected the node content", "a value is missing here, or must be in quotes", False),
    (
        "mapping values are not allowed",
        "a `:` where no key can be; quote a text that has one, and check the indentation",
        False,
    ),
    ("expected ',' or ']'", "the list that begins here with [ lacks a comma or its ]", True),
    ("expected ',' or '}'", "the block that begins here with { lacks a comma or its }", True),
    ("expected <block end>", "this does not fit the lines above; check the indentation", False),
    ("could not find expected ':'", "a key without its `:`", True),
    ("found unexpected end of stream", "the quote that begins here is not closed", True),
    ("found character '\\t'", "a tab; indent with spaces", False),
    ("that cannot start any token", "a text cannot begin with this character; quote it", False),
    ("found undefined tag handle", "tags (!…) are not allowed; quote text that begins so", False),
)


class Scalar(msgspec.Struct, frozen=True):
    """One value as written, and whether without quotes."""

    text: str
    line: int
    is_plain: bool = True
    size: int = 1


class ListNode(msgspec.Struct, frozen=True):
    """A list."""

    line: int
    items: tuple["Node", ...] = ()
    size: int = 1


class MappingNode(msgspec.Struct, frozen=True):
    """A mapping: each key with its line and its node, in order; which keys have no quotes."""

    line: int
    items: dict[str, tuple[int, "Node"]] = {}
    plain: frozenset[str] = frozenset()
    size: int = 1


Node = Scalar | ListNode | MappingNode


class FileLimits(msgspec.Struct, frozen=True):
    """How large a file may be, what it is called, and which extra of ours brings PyYAML."""

    bytes: int = MAX_BYTES
    depth: int = 16
    nodes: int = 20_000
    noun: str = "a configuration"
    extra: str = "config"


CONFIGURATION: Final = FileLimits()


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with the text, and where."""

    line: int
    message: str


class ConfigDocument(msgspec.Struct, frozen=True):
    """What a file holds, and what is wrong with it; no root if it could not be read to its end."""

    root: Node | None
    faults: tuple[Fault, ...] = ()


class _Unreadable(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(line, message)


def parse(content: bytes, limits: FileLimits = CONFIGURATION) -> ConfigDocument:
    """Read one YAML document; report every fault that does not end the reading."""
    yaml = _yaml(limits)
    reader: _YamlReader | None = None
    text = ""
    try:
        text = _decoded(content, limits)
        reader = _YamlReader(yaml, yaml.parse(text, Loader=yaml.SafeLoader), limits)
        root = reader.document()
    except _Unreadable as error:
        return ConfigDocument(None, (*_faults_of(reader), error.fault))
    except yaml.YAMLError as error:
        return ConfigDocument(None, (*_faults_of(reader), _in_words(error, text)))
    except (ValueError, ArithmeticError):  # what PyYAML's scanner lets through
        return ConfigDocument(
            None, (*_faults_of(reader), Fault(1, "this is not YAML: a bad escape"))
        )
    return ConfigDocument(root, tuple(reader.faults))


def _in_words(error: Any, text: str) -> Fault:
    """Describe what PyYAML found, without the values that it quotes."""
    problem = getattr(error, "problem", None)
    mark = getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        line = text.count("\n", 0, getattr(error, "position", None) or 0) + 1
        return Fault(line, "this is not YAML: it holds a character that YAML does not allow")
    why = _QUOTED.sub(_harmless, problem)
    for theirs, ours, is_where_it_began in _IN_WORDS:
        if theirs in problem:
            why = ours
            mark = (error.context_mark if is_where_it_began else None) or mark
            break
    return Fault(mark.line + 1, f"this is not YAML: {why}")


def _harmless(quoted: re.Match[str]) -> str:
    """Return a character or a part of YAML, readable; nothing if it may be part of a value."""
    word = quoted["single"] or quoted["double"] or ""
    if word.startswith("<"):  # as in <stream end>
        return f" the {word.strip('<>').replace('stream', 'file')}"
    return quoted[0] if len(word) == 1 else ""


def _faults_of(reader: "_YamlReader | None") -> list[Fault]:
    return [] if reader is None else reader.faults


def _decoded(content: bytes, limits: FileLimits) -> str:
    if len(content) > limits.bytes:
        raise _Unreadable(1, f"{limits.noun} has at most {limits.bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _Unreadable(line, "this is not UTF-8; save the file in that encoding") from None


def _yaml(limits: FileLimits) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise MisuseError(
            f"{limits.noun} in a file needs PyYAML: pip install 'holdfast[{limits.extra}]'"
        )
    return importlib.import_module("yaml")


class _YamlReader:
    """Makes nodes of PyYAML's events."""

    def __init__(self, yaml: Any, events: Iterator[Any], limits: FileLimits) -> None:
        self._yaml = yaml
        self._limits = limits
        self._events = events
        self._anchors: dict[str, Node] = {}
        self._nodes = 0
        self.faults: list[Fault] = []

    def document(self) -> Node | None:
        next(self._events)  # the stream's start
        event = next(self._events)
        if isinstance(event, self._yaml.StreamEndEvent):
            return MappingNode(1)
        root = self._node(next(self._events), depth=0)
        next(self._events)  # the document's end
        event = next(self._events)
        if not isinstance(event, self._yaml.StreamEndEvent):
            raise _Unreadable(_line(event), "a second document begins here; keep one")
        return root

    def _node(self, event: Any, *, depth: int) -> Node:
        line = _line(event)
        if depth > self._limits.depth:
            raise _Unreadable(line, f"this is nested deeper than {self._limits.depth} levels")
        if isinstance(event, self._yaml.AliasEvent):
            return self._aliased(event)
        self._count(1, line)
        if event.tag is not None:
            self.faults.append(Fault(line, "tags (!…) are not allowed; quote text that begins so"))
        if isinstance(event, self._yaml.ScalarEvent):
            node: Node = Scalar(event.value, line, event.style is None)
        elif isinstance(event, self._yaml.SequenceStartEvent):
            node = self._listing(line, depth)
        else:
            node = self._block(line, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _aliased(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise _Unreadable(
                _line(event), "this alias (*…) has no anchor; quote text that begins with *"
            )
        node = self._anchors[event.anchor]
        self._count(node.size, _line(event))
        return node

    def _count(self, size: int, line: int) -> None:
        self._nodes += size
        if self._nodes > self._limits.nodes:
            most = f"{self._limits.nodes:,}"
            raise _Unreadable(line, f"there are more than {most} values, aliases expanded")

    def _listing(self, line: int, depth: int) -> ListNode:
        items = tuple(
            self._node(event, depth=depth + 1) for event in self._until(self._yaml.SequenceEndEvent)
        )
        return ListNode(line, items, 1 + sum(item.size for item in items))

    def _block(self, line: int, depth: int) -> MappingNode:
        items: dict[str, tuple[int, Node]] = {}
        plain: set[str] = set()
        size = 1
        for event in self._until(self._yaml.MappingEndEvent):
            key = self._node(event, depth=depth + 1)
            value = self._node(next(self._events), depth=depth + 1)
            size += key.size + value.size
            if not isinstance(key, Scalar):
                message = (
                    "a key must be a word; put what has {{ … }} in quotes, if it is meant as such"
                )
                self.faults.append(Fault(_line(event), message))
            elif key.text in items:
                first, _ = items[key.text]
                again = f"{shown_key(key.text)} is given twice; the first is in line {first}"
                self.faults.append(Fault(_line(event), again))
            else:
                items[key.text] = (_line(event), value)
                if key.is_plain:
                    plain.add(key.text)
        return MappingNode(line, items, frozenset(plain), size)

    def _until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event


def _line(event: Any) -> int:
    return event.start_mark.line + 1


def shown_key(key: str) -> str:
    """Return a key as a message may name it: one that is not a word may be a misplaced value."""
    return key if _SAFE_KEY.fullmatch(key) else "a key that is no word"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` if a known word is similar, else nothing."""
    found = difflib.get_close_matches(word[:64], list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
