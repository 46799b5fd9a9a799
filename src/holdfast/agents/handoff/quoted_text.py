"""A frame for text of others: what is inside is quoted data, whatever it says. Pure.

    === holdfast record CODE begin ===
    @ name: value     where the record comes from
    # Title           a section
    | text            a line of data; `+ text` continues a line that was too long
    ~ text            a remark of Holdfast
    === holdfast record CODE end ===

The first character of a line says who speaks; data cannot choose it. CODE is made from all that the
frame holds, so nothing inside can know it. Characters that are not seen are made visible, and
what the protocols of vendors read as marks is broken up by a space.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

MAX_LINE: Final = 500
"""Longer lines are broken, so that no line hides what follows it."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that print nothing although they count as letters or marks."""
_SIGNS: Final = re.compile(r"[<>\[:=`~]")
"""Every mark has one of them."""
_ROLES: Final = "system|developer|user|human|assistant|model|tool|function|ipython"
_TAGS: Final = (
    rf"{_ROLES}|s|inst|sys|bos|eos|im_start|im_end|start_of_turn|end_of_turn|think|thinking|"
    r"antml|invoke|parameter|tool_call|tool_calls|tool_result|tool_response|function_calls|"
    r"function_results|instructions?|prompt|message|result|document|context|record|holdfast"
)
_MARKS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"<(?=[|\uff5c])"), "< "),
    (re.compile(r"(?<=[|\uff5c])>"), " >"),
    (re.compile(rf"<(?=\s{{0,3}}/?\s{{0,3}}(?:{_TAGS})\b)", re.IGNORECASE), "< "),
    (
        re.compile(
            r"\[(?=\s{0,3}/?\s{0,3}(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_))", re.IGNORECASE
        ),
        "[ ",
    ),
    (re.compile(rf"^(\W*)({_ROLES})(\s*):", re.IGNORECASE), r"\1\2\3 :"),
    (re.compile(r"((?<!=)={3,}\s{0,9}holdfast)(?=\s{1,9}record)", re.IGNORECASE), r"\1 (quoted)"),
    (re.compile(r"(?<=``)`|(?<=~~)~"), r" \g<0>"),
)


class Section(msgspec.Struct, frozen=True):
    """A piece of a frame: a title by Holdfast, data, and remarks about it."""

    title: str
    entries: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def frame(origin: Iterable[tuple[str, str]], sections: Sequence[Section]) -> tuple[str, str]:
    """Return the code of a frame, and its lines as one text."""
    lines = [f"@ {name}: {visible(value)[:MAX_LINE]}" for name, value in origin]
    for section in sections:
        lines.append(f"# {section.title}")
        for entry in section.entries:
            lines.extend(_quoted(entry))
        lines.extend(f"~ {remark}" for remark in section.remarks)
    body = "\n".join(lines)
    code = _code_for(body)
    return code, f"=== holdfast record {code} begin ===\n{body}\n=== holdfast record {code} end ==="


def visible(text: str) -> str:
    """A text on one line, without what cannot be seen and what others read as marks."""
    shown = text.replace("\t", "    ")
    if not shown.isprintable() or _HIDDEN.search(shown):
        shown = "".join(map(_shown, shown))
    if _SIGNS.search(shown):
        for mark, broken in _MARKS:
            shown = mark.sub(broken, shown)
    return shown


def _quoted(entry: str) -> Iterator[str]:
    """The lines of one piece of data: an item of a list."""
    for at, line in enumerate(entry.splitlines() or [""]):
        text = ("- " if at == 0 else "  ") + visible(line)
        yield f"| {text[:MAX_LINE]}"
        for start in range(MAX_LINE, len(text), MAX_LINE):
            yield f"+ {text[start : start + MAX_LINE]}"


def _shown(character: str) -> str:
    if _HIDDEN.match(character) or unicodedata.category(character) in _UNSEEN:
        return f"\\u{{{ord(character):x}}}"
    return character


def _code_for(body: str) -> str:
    """A code that is not in the body, made from it: nobody who wrote into it could know it."""
    for number in range(2**32):
        digest = hashlib.sha256(f"{number}\n{body}".encode()).hexdigest()[:32]
        if digest not in body:
            return digest
    raise AssertionError("a text cannot hold all of its own digests")
