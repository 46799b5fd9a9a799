"""Reads a continuation prompt as a careful receiver would: knows its layout, shares no code."""

import re
from dataclasses import dataclass, field
from typing import Any

BORDER = re.compile(r"=== holdfast record ([0-9a-f]{32}) (begin|end) ===")


@dataclass
class Parsed:
    before: str
    after: str
    code: str
    origin: dict[str, str] = field(default_factory=dict)
    sections: dict[str, list[str]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)


def parse(text: str) -> Parsed:
    """Raises ValueError for anything but one whole frame in which every line has its mark."""
    lines = text.split("\n")
    if lines != text.splitlines():
        raise ValueError("a line is broken by something other than a newline")
    borders = [at for at, line in enumerate(lines) if "=== holdfast record" in line[:30]]
    if len(borders) != 2:
        raise ValueError(f"there are {len(borders)} borders")
    begin, end = (BORDER.fullmatch(lines[at]) for at in borders)
    if not begin or not end or (begin[2], end[2]) != ("begin", "end") or begin[1] != end[1]:
        raise ValueError("the borders do not belong together")
    parsed = Parsed(
        before="\n".join(lines[: borders[0]]),
        after="\n".join(lines[borders[1] + 1 :]),
        code=begin[1],
    )
    for line in lines[borders[0] + 1 : borders[1]]:
        _read(parsed, line)
    return parsed


def _read(parsed: Parsed, line: str) -> None:
    mark, _, said = line.partition(" ")
    title = next(reversed(parsed.sections), "")
    if mark == "@" and not title:
        name, _, value = said.partition(": ")
        _once(parsed.origin, name)[name] = value
    elif mark == "#":
        _once(parsed.sections, said)[said] = []
    elif mark == "~" and title:
        parsed.remarks.setdefault(title, []).append(said)
    elif mark == "|" and said.startswith("- "):
        parsed.sections[title].append(said[2:])
    elif mark == "|" and said.startswith("  "):
        parsed.sections[title][-1] += "\n" + said[2:]
    elif mark == "+":
        parsed.sections[title][-1] += said
    else:
        raise ValueError(f"nobody says who speaks: {line!r}")


def _once(there: dict[str, Any], name: str) -> dict[str, Any]:
    if name in there:
        raise ValueError(f"{name} is there twice")
    return there
