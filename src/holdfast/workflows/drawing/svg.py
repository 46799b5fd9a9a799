"""A workflow as a drawing: an SVG file that needs nothing else, readable on light and dark pages.

Colour alone never shows a state: each has its mark, and the legend says what it means.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.workflows.definitions.definition import Block, Workflow
from holdfast.workflows.drawing import style
from holdfast.workflows.drawing.layout import BOX_HEIGHT, Box, DependencyLine, Layout, arrange
from holdfast.workflows.drawing.style import BlockLook, BlockState
from holdfast.workflows.drawing.text_width import escaped, shortened, width_of

_FONT: Final = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_PAPER: Final = "#ffffff"
_BAND: Final = "#f3f5f8"
_FRAME: Final = "#d5dae1"
_LINE: Final = "#64748b"

_MARGIN: Final = 36.0
_TITLE_BOTTOM: Final = 54.0
_BAND_TOP: Final = 38.0
"""From the top of a wave's band to its first box."""
_BAND_SIDE: Final = 14.0
_NARROWEST: Final = 220.0

_NAME_SIZE: Final = 13.0
_TYPE_SIZE: Final = 11.0
_MARK_SIZE: Final = 9.5
_TEXT_LEFT: Final = 50.0
_TEXT_RIGHT: Final = 12.0
_BADGE: Final = 24.0
"""What a state's mark takes at the right of a box."""
_BOX_WIDTHS: Final = (124.0, 260.0)
_STACK: Final = 4.0


class _Part(NamedTuple):
    """An entry of the legend: what is drawn 22 wide round a middle line, and the word for it."""

    drawn: str
    word: str

    @property
    def width(self) -> float:
        return 22 + 7 + width_of(self.word, _TYPE_SIZE) + 20


def svg(workflow: Workflow, states: Mapping[str, BlockState] | None = None) -> str:
    """The workflow as an SVG document: a column for each wave, boxes coloured by their state."""
    blocks = {block.id: block for block in workflow.blocks}
    all_states = style.complete(workflow, states)
    layout = arrange(workflow, lambda names: _column_width([blocks[n] for n in names], all_states))
    parts = _legend_parts(layout, all_states)
    width = max(_NARROWEST, layout.width + 2 * _MARGIN)
    rows = _rows(parts, width - 2 * (_MARGIN - _BAND_SIDE))
    bands_height = _BAND_TOP + max(layout.height, BOX_HEIGHT) + 20
    legend_top = _TITLE_BOTTOM + bands_height + 16
    height = legend_top + 22 * len(rows) + (10 if rows else 6)
    drawn = [
        *_frame(workflow, all_states, width, height),
        f'<g transform="translate({_n(_MARGIN)} {_n(_TITLE_BOTTOM)})">',
        *_bands(layout, bands_height),
        f'<g transform="translate(0 {_n(_BAND_TOP)})">',
        *_lines(layout),
        *(
            _box(blocks[n], box, all_states[n] if all_states else None)
            for n, box in layout.boxes.items()
        ),
        "</g></g>",
        *_legend(rows, _MARGIN - _BAND_SIDE, legend_top),
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _column_width(blocks: Sequence[Block], states: Mapping[str, BlockState] | None) -> float:
    badge = 0.0 if states is None else _BADGE
    needed = [
        max(width_of(b.id, _NAME_SIZE, is_bold=True) + badge, _about_width(b)) for b in blocks
    ]
    least, most = _BOX_WIDTHS
    return math.ceil(min(most, max([least, *(_TEXT_LEFT + n + _TEXT_RIGHT for n in needed)])))


def _about(block: Block) -> str:
    return " · ".join(each for each in (block.type, style.subject_of(block)) if each)


def _about_width(block: Block) -> float:
    return width_of(_about(block), _TYPE_SIZE) + _marks_width(block)


def _marks_width(block: Block) -> float:
    return sum(_mark_width(word) + 5 for word in style.marks_of(block))


def _mark_width(word: str) -> float:
    return width_of(word, _MARK_SIZE) + 10


def _frame(
    workflow: Workflow, states: Mapping[str, BlockState] | None, width: float, height: float
) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" font-family="{_FONT}">'
    )
    yield f"<title>{escaped(workflow.name)}</title>"
    yield f"<desc>{escaped(_described(workflow, states))}</desc>"
    yield (
        f'<rect x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(height - 1)}" rx="12" '
        f'fill="{_PAPER}" stroke="{_FRAME}"/>'
    )
    room = width - 2 * (_MARGIN - _BAND_SIDE)
    name = shortened(workflow.name, room, 16, is_bold=True)
    version = f"version {workflow.version}" if workflow.version else ""
    if width_of(name, 16, is_bold=True) + 12 + width_of(version, 12) > room:
        version = ""
    faint = f'<tspan dx="10" font-size="12" font-weight="400" fill="{style.FAINT_INK}">'
    yield (
        f'<text x="{_n(_MARGIN - _BAND_SIDE)}" y="35" font-size="16" font-weight="650" '
        f'fill="{style.INK}">{escaped(name)}'
        f"{faint + escaped(version) + '</tspan>' if version else ''}</text>"
    )


def _described(workflow: Workflow, states: Mapping[str, BlockState] | None) -> str:
    """The picture in words, for those who cannot see it."""
    summary = workflow.description.strip() or f"A workflow of {len(workflow.blocks)} blocks."
    if states is None:
        return summary
    counts = [(state, list(states.values()).count(state)) for state in style.STATES]
    return f"{summary} {', '.join(f'{count} {state}' for state, count in counts if count)}."


def _bands(layout: Layout, height: float) -> Iterator[str]:
    for number, band in enumerate(layout.bands, 1):
        left, width = band.x - _BAND_SIDE, band.width + 2 * _BAND_SIDE
        yield (
            f'<rect data-wave="{number}" x="{_n(left)}" y="0" width="{_n(width)}" '
            f'height="{_n(height)}" rx="10" fill="{_BAND}"/>'
        )
        yield (
            f'<text x="{_n(band.x)}" y="23" font-size="{_n(_TYPE_SIZE)}" font-weight="600" '
            f'letter-spacing="0.4" fill="{style.FAINT_INK}">wave {number}</text>'
        )


def _lines(layout: Layout) -> Iterator[str]:
    """The lines, those that are only an order below the others, and an arrow where they end."""
    yield f'<g fill="none" stroke="{_LINE}" stroke-width="1.5">'
    for link, way in sorted(layout.ways.items(), key=lambda each: each[0].required):
        yield _line(link, way)
    yield "</g>"
    targets = dict.fromkeys(link.target for link in layout.ways)
    heads = [f"M{_n(b.x)} {_n(b.middle)}l-8 -4.2v8.4Z" for b in map(layout.boxes.get, targets) if b]
    if heads:
        yield f'<path fill="{_LINE}" d="{"".join(heads)}"/>'


def _line(link: DependencyLine, way: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = way
    drawn = f"M{_n(x)} {_n(y)}"
    for at, (to_x, to_y) in enumerate(rest):
        if at % 2 or y == to_y:
            drawn += f"H{_n(to_x)}"
        else:
            end = to_x - 8 if at == len(rest) - 1 else to_x
            half = (x + end) / 2
            drawn += f"C{_n(half)} {_n(y)} {_n(half)} {_n(to_y)} {_n(end)} {_n(to_y)}"
            drawn += f"H{_n(to_x)}" if end != to_x else ""
        x, y = to_x, to_y
    dashes = "" if link.required else ' stroke-dasharray="5 4"'
    word = "after" if link.required else "after, however it ends:"
    return (
        f'<path data-from="{escaped(link.source)}" data-to="{escaped(link.target)}" '
        f'd="{drawn}"{dashes}>'
        f"<title>{escaped(f'{link.target} {word} {link.source}')}</title></path>"
    )


def _box(block: Block, box: Box, state: BlockState | None) -> str:
    look = style.STATES[state] if state else style.PLAIN
    x, y = box.x, box.y
    attribute = f' data-state="{state}"' if state else ""
    dashes = ' stroke-dasharray="4 3"' if state == "skipped" else ""
    paint = f'fill="{look.fill}" stroke="{look.line}" stroke-width="1.4"{dashes}'
    size = f'width="{_n(box.width)}" height="{_n(BOX_HEIGHT)}" rx="9"'
    drawn = [
        f'<g data-block="{escaped(block.id)}"{attribute}>',
        f"<title>{_tooltip(block, state)}</title>",
    ]
    if block.is_loop:
        drawn.append(f'<rect x="{_n(x + _STACK)}" y="{_n(y + _STACK)}" {size} {paint}/>')
    drawn += [
        f'<rect x="{_n(x)}" y="{_n(y)}" {size} {paint}/>',
        f'<rect x="{_n(x + 10)}" y="{_n(y + 11)}" width="32" height="32" rx="8" '
        f'fill="{_PAPER if state else _BAND}" stroke="{look.line}" stroke-opacity="0.35"/>',
        f'<path transform="translate({_n(x + 16)} {_n(y + 17)})" d="{style.kind_of(block).icon}" '
        f'fill="none" stroke="{style.INK}" stroke-width="1.4" stroke-linejoin="round" '
        'stroke-linecap="round"/>',
        *_words(block, box, has_badge=state is not None),
    ]
    if state:
        drawn.append(_badge(look, box.right - 17, y + 18, is_open=state == "not yet"))
    return "".join([*drawn, "</g>"])


def _words(block: Block, box: Box, *, has_badge: bool) -> Iterator[str]:
    left, room = box.x + _TEXT_LEFT, box.width - _TEXT_LEFT - _TEXT_RIGHT
    name_room = room - (_BADGE if has_badge else 0)
    name = shortened(block.id, name_room, _NAME_SIZE, is_bold=True)
    yield (
        f'<text x="{_n(left)}" y="{_n(box.y + 23)}" font-size="{_n(_NAME_SIZE)}" '
        f'font-weight="600" fill="{style.INK}">{escaped(name)}</text>'
    )
    about_room = room - _marks_width(block)
    about = _about(block) if _about_width(block) <= room else block.type
    about = shortened(about, about_room, _TYPE_SIZE)
    yield (
        f'<text x="{_n(left)}" y="{_n(box.y + 40.5)}" font-size="{_n(_TYPE_SIZE)}" '
        f'fill="{style.FAINT_INK}">{escaped(about)}</text>'
    )
    at = box.right - _TEXT_RIGHT - _marks_width(block) + 5
    for word in style.marks_of(block):
        width = _mark_width(word)
        yield (
            f'<rect x="{_n(at)}" y="{_n(box.y + 30)}" width="{_n(width)}" height="14" rx="7" '
            f'fill="{_PAPER}" stroke="{_LINE}" stroke-width="0.8"/>'
            f'<text x="{_n(at + width / 2)}" y="{_n(box.y + 40.4)}" text-anchor="middle" '
            f'font-size="{_n(_MARK_SIZE)}" fill="{style.INK}">{word}</text>'
        )
        at += width + 5


def _tooltip(block: Block, state: BlockState | None) -> str:
    """All that there is no room for."""
    lines = [f"{block.id} ({_about(block)})", block.description.strip()]
    if block.is_loop:
        lines.append(f"for each of {_excerpt(block.for_each)}, {block.for_each_mode}")
    if block.condition is not None:
        lines.append(f"if {_excerpt(block.condition)}")
    if state:
        lines.append(state)
    return escaped("\n".join(line for line in lines if line))


def _excerpt(given: object) -> str:
    text = str(given).strip()
    return text if len(text) <= 200 else f"{text[:199]}…"


def _badge(look: BlockLook, x: float, y: float, *, is_open: bool) -> str:
    fill, ink = (_PAPER, look.line) if is_open else (look.line, _PAPER)
    inside = ink if look.drawn.endswith("Z") else "none"
    return (
        f'<circle cx="{_n(x)}" cy="{_n(y)}" r="8" fill="{fill}" stroke="{look.line}" '
        'stroke-width="1.2"/>'
        f'<path transform="translate({_n(x - 4)} {_n(y - 4)})" d="{look.drawn}" fill="{inside}" '
        f'stroke="{ink}" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round"/>'
    )


def _legend_parts(layout: Layout, states: Mapping[str, BlockState] | None) -> list[_Part]:
    """What the picture has, and nothing else."""
    present = set((states or {}).values())
    parts = [
        _Part(_badge(look, 11, 0, is_open=state == "not yet"), state)
        for state, look in style.STATES.items()
        if state in present
    ]
    if any(not link.required for link in layout.ways):
        line = f'<path d="M0 0H22" stroke="{_LINE}" stroke-width="1.5"'
        parts.append(_Part(f"{line}/>", "after its success"))
        parts.append(_Part(f'{line} stroke-dasharray="5 4"/>', "after its end"))
    return parts


def _rows(parts: Sequence[_Part], width: float) -> list[list[_Part]]:
    rows: list[list[_Part]] = []
    left = 0.0
    for part in parts:
        if not rows or left + part.width > width:
            rows.append([])
            left = 0.0
        rows[-1].append(part)
        left += part.width
    return rows


def _legend(rows: Sequence[Sequence[_Part]], left: float, top: float) -> Iterator[str]:
    for number, row in enumerate(rows):
        at, middle = left, top + 22 * number + 4
        for part in row:
            yield (
                f'<g transform="translate({_n(at)} {_n(middle)})">{part.drawn}'
                f'<text x="29" y="3.8" font-size="{_n(_TYPE_SIZE)}" fill="{style.FAINT_INK}">'
                f"{escaped(part.word)}</text></g>"
            )
            at += part.width
