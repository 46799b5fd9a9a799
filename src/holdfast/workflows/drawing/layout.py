"""The places of a workflow's blocks in a picture, and the ways of the lines between them.

Waves are columns from left to right; a wave with many blocks has several. A line that passes a
column has its own lane there, so that no line crosses a box. Pure: numbers in, numbers out.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.errors import MisuseError
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.definitions.waves import waves_of

BOX_HEIGHT: Final = 54.0
_LANE_HEIGHT: Final = 2.0
_SPACE: Final = {(False, False): 22.0, (True, False): 16.0, (True, True): 9.0}
"""Between two neighbours of a column, by whether one is a lane, and whether both are."""

_GAP: Final = 56.0
_EMPTY_GAP: Final = 26.0
_WIDEST_GAP: Final = 150.0
_FEWEST_ROWS: Final = 10
_SWEEPS: Final = 12


class DependencyLine(NamedTuple):
    """A dependency: `target` comes after `source`."""

    source: str
    target: str
    required: bool


class Box(NamedTuple):
    """A block's place; x and y are those of its corner above, on the left."""

    x: float
    y: float
    width: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.y + BOX_HEIGHT / 2


class Band(NamedTuple):
    """The columns of a wave."""

    x: float
    width: float


class Layout(NamedTuple):
    """A picture's geometry. A way is curved to its 2nd point, straight to the 3rd, and so on."""

    width: float
    height: float
    boxes: dict[str, Box]
    ways: dict[DependencyLine, list[tuple[float, float]]]
    bands: list[Band]


class _DrawingLane(NamedTuple):
    """The way of a block's lines through a column."""

    source: str
    required: bool
    column: int


_Node = str | _DrawingLane
_Pairs = list[tuple[_Node, _Node]]


class _Grid(NamedTuple):
    """Columns of blocks and lanes, and what is joined between each column and the next."""

    columns: list[list[_Node]]
    joined: list[_Pairs]
    column_of: dict[str, int]


def waves_in(workflow: Workflow) -> list[list[str]]:
    """The waves of a workflow that is drawn; raises MisuseError for a cycle."""
    try:
        return waves_of(workflow.blocks)
    except ValueError as error:
        raise MisuseError(
            f"workflow {workflow.name} has no waves to draw, but {error}; break the cycle"
        ) from error


def links_of(workflow: Workflow) -> list[DependencyLine]:
    """The dependencies between the blocks of a workflow, each once."""
    known = {block.id for block in workflow.blocks}
    found: dict[tuple[str, str], bool] = {}
    for block in workflow.blocks:
        for each in block.dependencies:
            if each.block in known and each.block != block.id:
                pair = (each.block, block.id)
                found[pair] = found.get(pair, False) or each.required
    return [
        DependencyLine(source, target, required) for (source, target), required in found.items()
    ]


def arrange(workflow: Workflow, width_of: Callable[[Sequence[str]], float]) -> Layout:
    """Find the places of all blocks; `width_of` returns the width of a column with these."""
    waves = waves_in(workflow)
    links = links_of(workflow)
    split = [_split(wave, links, _rows(len(workflow.blocks))) for wave in waves]
    grid = _grid([column for wave in split for column in wave], links)
    columns = _ordered(grid)
    middles = _middles(columns, grid.joined)
    widths = [width_of([node for node in column if isinstance(node, str)]) for column in columns]
    lefts = _lefts(widths, grid.joined, middles)
    boxes = {
        name: Box(lefts[at], middles[name] - BOX_HEIGHT / 2, widths[at])
        for name, at in grid.column_of.items()
    }
    ways = {link: _way(link, grid.column_of, lefts, widths, middles) for link in links}
    bands: list[Band] = []
    at = 0
    for wave in split:
        last = at + len(wave) - 1
        bands.append(Band(lefts[at], lefts[last] + widths[last] - lefts[at]))
        at = last + 1
    return Layout(
        width=lefts[-1] + widths[-1] if lefts else 0.0,
        height=max((middle + _height(node) / 2 for node, middle in middles.items()), default=0.0),
        boxes=boxes,
        ways=ways,
        bands=bands,
    )


def _rows(count: int) -> int:
    """How many blocks a column has at most, so that a picture is not much higher than wide."""
    return max(_FEWEST_ROWS, math.ceil(1.6 * math.sqrt(count)))


def _split(wave: Sequence[str], links: Sequence[DependencyLine], rows: int) -> list[list[str]]:
    """The columns of a wave. Those on which others depend come last: their lines are short."""
    count = math.ceil(len(wave) / rows)
    if count <= 1:
        return [list(wave)]
    sources = {link.source for link in links}
    ordered = sorted(wave, key=lambda name: name in sources)
    size = math.ceil(len(wave) / count)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


def _grid(blocks: Sequence[Sequence[str]], links: Sequence[DependencyLine]) -> _Grid:
    column_of = {name: at for at, column in enumerate(blocks) for name in column}
    columns: list[list[_Node]] = [list(column) for column in blocks]
    joined: list[dict[tuple[_Node, _Node], None]] = [{} for _ in blocks]
    for link in links:
        before: _Node = link.source
        for at in range(column_of[link.source] + 1, column_of[link.target]):
            lane = _DrawingLane(link.source, link.required, at)
            joined[at - 1][before, lane] = None
            before = lane
        joined[column_of[link.target] - 1][before, link.target] = None
    for at, pairs in enumerate(joined):
        found = dict.fromkeys(node for _, node in pairs if isinstance(node, _DrawingLane))
        if found:
            columns[at + 1] += found
    return _Grid(columns, [list(pairs) for pairs in joined], column_of)


def _ordered(grid: _Grid) -> list[list[_Node]]:
    """Columns in an order with few crossings: each node near the middle of what it is joined to."""
    columns = [list(column) for column in grid.columns]
    best, fewest = columns, _crossings(columns, grid.joined)
    forth = [_beside(pairs, backward=False) for pairs in grid.joined]
    back = [_beside(pairs, backward=True) for pairs in grid.joined]
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        columns = [list(column) for column in columns]
        count = len(columns)
        if sweep % 2 == 0:
            for at in range(1, count):
                columns[at] = _sorted_by(columns[at], columns[at - 1], forth[at - 1])
        else:
            for at in range(count - 2, -1, -1):
                columns[at] = _sorted_by(columns[at], columns[at + 1], back[at])
        crossings = _crossings(columns, grid.joined)
        if crossings < fewest:
            best, fewest = columns, crossings
    return best


def _beside(pairs: _Pairs, *, backward: bool) -> dict[_Node, list[_Node]]:
    found: dict[_Node, list[_Node]] = {}
    for left, right in pairs:
        key, other = (left, right) if backward else (right, left)
        found.setdefault(key, []).append(other)
    return found


def _sorted_by(
    column: Sequence[_Node], fixed: Sequence[_Node], beside: Mapping[_Node, Sequence[_Node]]
) -> list[_Node]:
    """A column by the mean place of each node's neighbours; one without them stays about."""
    place = {node: (at + 0.5) / len(fixed) for at, node in enumerate(fixed)}
    wanted: dict[_Node, float] = {}
    for at, node in enumerate(column):
        near = beside.get(node)
        own = (at + 0.5) / len(column)
        wanted[node] = sum(place[each] for each in near) / len(near) if near else own
    return sorted(column, key=wanted.__getitem__)


def _crossings(columns: Sequence[Sequence[_Node]], joined: Sequence[_Pairs]) -> int:
    """How many pairs of lines cross."""
    total = 0
    for at, pairs in enumerate(joined):
        if not pairs:
            continue
        left = {node: number for number, node in enumerate(columns[at])}
        right = {node: number for number, node in enumerate(columns[at + 1])}
        seen: list[int] = []
        for _, end in sorted((left[a], right[b]) for a, b in pairs):
            total += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return total


def _middles(columns: Sequence[Sequence[_Node]], joined: Sequence[_Pairs]) -> dict[_Node, float]:
    """The height of each node's middle: near its neighbours', with room to the next of a column."""
    offsets = [_offsets(column) for column in columns]
    found: dict[_Node, float] = {
        node: offset - (below[-1] if below else 0.0) / 2
        for column, below in zip(columns, offsets, strict=True)
        for node, offset in zip(column, below, strict=True)
    }
    forth = [{}, *(_beside(pairs, backward=False) for pairs in joined)]
    back = [_beside(pairs, backward=True) for pairs in joined]
    for sweep in range(_SWEEPS):
        sides = (forth, back) if sweep == _SWEEPS - 1 else (back,) if sweep % 2 else (forth,)
        numbers = range(len(columns))
        for at in reversed(numbers) if sweep % 2 else numbers:
            wanted = [_mean(node, [side[at] for side in sides], found) for node in columns[at]]
            found.update(zip(columns[at], _spread(wanted, offsets[at]), strict=True))
    top = min((middle - _height(node) / 2 for node, middle in found.items()), default=0.0)
    return {node: round(middle - top, 1) for node, middle in found.items()}


def _mean(
    node: _Node, sides: Sequence[Mapping[_Node, Sequence[_Node]]], middles: Mapping[_Node, float]
) -> float:
    near = [each for side in sides for each in side.get(node, ())]
    if isinstance(node, _DrawingLane):
        # A lane that continues as a lane should be straight there; its ends may bend.
        near = [each for each in near if isinstance(each, _DrawingLane)] or near
    return sum(middles[each] for each in near) / len(near) if near else middles[node]


def _height(node: _Node) -> float:
    return BOX_HEIGHT if isinstance(node, str) else _LANE_HEIGHT


def _offsets(column: Sequence[_Node]) -> list[float]:
    """How far the middle of each node is below the first one's, packed as close as may be."""
    found: list[float] = []
    for at, node in enumerate(column):
        if at == 0:
            found.append(0.0)
            continue
        above = column[at - 1]
        lanes = isinstance(above, _DrawingLane), isinstance(node, _DrawingLane)
        room = _SPACE[any(lanes), all(lanes)]
        found.append(found[-1] + (_height(above) + _height(node)) / 2 + room)
    return found


def _spread(wanted: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """Places as near to those wanted as may be, in order and at least as far apart as `offsets`.

    Neighbours that would be too close form a group at the mean of what they want.
    """
    groups: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        total, size = want - offset, 1
        while groups and groups[-1][0] / groups[-1][1] >= total / size:
            before, count = groups.pop()
            total, size = total + before, size + count
        groups.append((total, size))
    bases = [total / size for total, size in groups for _ in range(size)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]


def _lefts(
    widths: Sequence[float], joined: Sequence[_Pairs], middles: Mapping[_Node, float]
) -> list[float]:
    """The left sides of the columns; where lines are steep there is more room between two."""
    found: list[float] = []
    left = 0.0
    for width, pairs in zip(widths, joined, strict=True):
        found.append(left)
        steepest = max((abs(middles[a] - middles[b]) for a, b in pairs), default=0.0)
        left += width + (min(_WIDEST_GAP, _GAP + steepest / 8) if pairs else _EMPTY_GAP)
    return [round(each, 1) for each in found]


def _way(
    link: DependencyLine,
    column_of: Mapping[str, int],
    lefts: Sequence[float],
    widths: Sequence[float],
    middles: Mapping[_Node, float],
) -> list[tuple[float, float]]:
    first, last = column_of[link.source], column_of[link.target]
    way = [(lefts[first] + widths[first], middles[link.source])]
    for at in range(first + 1, last):
        middle = middles[_DrawingLane(link.source, link.required, at)]
        way += [(lefts[at], middle), (lefts[at] + widths[at], middle)]
    return [*way, (lefts[last], middles[link.target])]
