"""What pictures say, read from their text alone: the judge of drawings, with no code of theirs."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: "Rect") -> bool:
        return (
            self.x < other.right
            and other.x < self.right
            and self.y < other.bottom
            and other.y < self.bottom
        )

    def contains(self, other: "Rect") -> bool:
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def has_inside(self, point: Point) -> bool:
        return self.x < point[0] < self.right and self.y < point[1] < self.bottom


@dataclass(frozen=True)
class Text:
    said: str
    where: Rect


@dataclass
class DrawnBox:
    where: Rect
    state: str | None
    title: str
    is_stacked: bool
    texts: list[Text] = field(default_factory=list[Text])


@dataclass
class DrawnLine:
    points: list[Point]
    is_dashed: bool


@dataclass
class Drawing:
    """A picture in its own coordinates."""

    page: Rect
    boxes: dict[str, DrawnBox]
    lines: dict[tuple[str, str], DrawnLine]
    bands: list[Rect]
    texts: list[Text]
    rects: list[Rect]


def read_svg(document: str) -> Drawing:
    root = ET.fromstring(document)
    page = Rect(*map(float, root.attrib["viewBox"].split()))
    assert (page.width, page.height) == (float(root.attrib["width"]), float(root.attrib["height"]))
    drawing = Drawing(page, {}, {}, [], [], [])
    for element, origin in _walk(root, (0.0, 0.0)):
        if element.tag == f"{SVG}text":
            drawing.texts.append(_text(element, origin))
        elif element.tag == f"{SVG}rect":
            drawing.rects.append(_rect(element, origin))
            if "data-wave" in element.attrib:
                drawing.bands.append(_rect(element, origin))
        elif "data-block" in element.attrib:
            name = element.attrib["data-block"]
            assert name not in drawing.boxes, f"{name} is drawn twice"
            drawing.boxes[name] = _box(element, origin)
        elif "data-from" in element.attrib:
            pair = element.attrib["data-from"], element.attrib["data-to"]
            assert pair not in drawing.lines, f"{pair} is drawn twice"
            is_dashed = "stroke-dasharray" in element.attrib
            drawing.lines[pair] = DrawnLine(_points(element.attrib["d"], origin), is_dashed)
    return drawing


def _walk(element: ET.Element, origin: Point) -> Iterator[tuple[ET.Element, Point]]:
    yield element, origin
    for child in element:
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", child.get("transform", "translate(0 0)"))
        assert moved is not None
        yield from _walk(child, (origin[0] + float(moved[1]), origin[1] + float(moved[2])))


def _rect(element: ET.Element, origin: Point) -> Rect:
    x, y, width, height = (float(element.attrib[k]) for k in ("x", "y", "width", "height"))
    return Rect(origin[0] + x, origin[1] + y, width, height)


def _box(group: ET.Element, origin: Point) -> DrawnBox:
    title = group.find(f"{SVG}title")
    assert title is not None
    assert title.text
    cards = [_rect(e, origin) for e in group.findall(f"{SVG}rect") if e.get("rx") == "9"]
    front = min(cards, key=lambda card: (card.x, card.y))
    texts = [_text(e, origin) for e in group.findall(f"{SVG}text")]
    return DrawnBox(front, group.get("data-state"), title.text, len(cards) > 1, texts)


def _text(element: ET.Element, origin: Point) -> Text:
    said = "".join(element.itertext())
    size = float(element.attrib["font-size"])
    width = sum(arial(letter) for letter in said) * size
    x, y = origin[0] + float(element.attrib["x"]), origin[1] + float(element.attrib["y"])
    left = x - width / 2 if element.get("text-anchor") == "middle" else x
    return Text(said, Rect(left, y - size, width, size * 1.25))


def arial(letter: str) -> float:
    """How wide a letter is in bold Arial, about."""
    if letter in "ijl.,:;'|!()[] ft":
        return 0.333
    if letter in "mwMW@%":
        return 0.95
    if ord(letter) > 0x2E80:
        return 1.0
    return 0.722 if letter.isupper() else 0.611


def _points(drawn: str, origin: Point) -> list[Point]:
    """Points along a path, close enough to each other to see what it meets."""
    found: list[Point] = []
    assert re.fullmatch(r"(?:[MHC][-\d. ]+)+", drawn)
    for letter, numbers in re.findall(r"([MHC])([-\d. ]+)", drawn):
        given = list(map(float, numbers.split()))
        if letter == "M":
            assert not found
            found.append((given[0], given[1]))
            continue
        x, y = found[-1]
        if letter == "H":
            found += [(x + (given[0] - x) * step / 16, y) for step in range(1, 17)]
            continue
        ax, ay, bx, by, to_x, to_y = given
        for step in range(1, 33):
            t = step / 32
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            across = sum(w * v for w, v in zip(weights, (x, ax, bx, to_x), strict=True))
            down = sum(w * v for w, v in zip(weights, (y, ay, by, to_y), strict=True))
            found.append((across, down))
    return [(origin[0] + x, origin[1] + y) for x, y in found]


@dataclass
class Flowchart:
    title: str
    waves: list[list[str]]
    labels: dict[str, list[str]]
    shapes: dict[str, str]
    edges: list[tuple[str, str, bool]]
    classes: dict[str, str]


_NODE = re.compile(r' {8}(b\d+)(\[\[|\[\(|\(\[|\{\{|\[|\()"([^"\n]*)"(\]\]|\)\]|\]\)|\}\}|\]|\))')
_CLOSED_BY = {"[[": "]]", "[(": ")]", "([": "])", "{{": "}}", "[": "]", "(": ")"}
_LABEL = re.compile(r"(?:[\w ·…✓✗▶»■?-]|#\d+;)*")
_EDGE = re.compile(r" {4}(b\d+) (-->|-\.->) (b\d+)")
_CLASS = re.compile(r" {4}class (b\d+(?:,b\d+)*) (\w+)")
_CLASS_DEF = re.compile(r" {4}classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#\w{6}")


def read_mermaid(text: str) -> Flowchart:
    """A flowchart as we write it, and in no other way."""
    opening, title, closing, kind, *lines = text.removesuffix("\n").split("\n")
    assert (opening, closing, kind) == ("---", "---", "flowchart LR")
    chart = Flowchart(title.removeprefix("title: "), [], {}, {}, [], {})
    defined: set[str] = set()
    is_in_wave = False
    for line in lines:
        if line == f'    subgraph w{len(chart.waves) + 1}["wave {len(chart.waves) + 1}"]':
            chart.waves.append([])
            is_in_wave = True
        elif line == "    end":
            assert is_in_wave
            is_in_wave = False
        elif is_in_wave:
            if line != "        direction TB":
                _read_node(line, chart)
        elif found := _EDGE.fullmatch(line):
            assert {found[1], found[3]} <= chart.labels.keys()
            chart.edges.append((found[1], found[3], found[2] == "-->"))
        elif found := _CLASS_DEF.fullmatch(line):
            defined.add(found[1])
        else:
            found = _CLASS.fullmatch(line)
            assert found, line
            assert found[2] in defined
            chart.classes |= dict.fromkeys(found[1].split(","), found[2])
    assert not is_in_wave
    return chart


def _read_node(line: str, chart: Flowchart) -> None:
    found = _NODE.fullmatch(line)
    assert found, line
    assert _CLOSED_BY[found[2]] == found[4]
    key = found[1]
    assert key not in chart.labels
    first, *rest = found[3].split("<br/>")
    assert first.startswith("<b>")
    assert first.endswith("</b>")
    words = [first.removeprefix("<b>").removesuffix("</b>"), *rest]
    assert all(_LABEL.fullmatch(word) for word in words), words
    unescaped = [re.sub(r"#(\d+);", lambda code: chr(int(code[1])), word) for word in words]
    chart.labels[key] = unescaped
    chart.shapes[key] = found[2]
    chart.waves[-1].append(key)
