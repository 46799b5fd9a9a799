"""The items of a run's logs at its latest versions, each version as cheap as what it changed.

A log that only grows is one list; a version knows how much of it was there. Items that only name an
entry are looked up once, when they are folded in.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.codec import Ref
from holdfast.kernel import checkpoints, state
from holdfast.kernel.checkpoints import END, Delta, Splice

KEPT_VERSIONS: Final = 256

Items = list[msgspec.Raw]


class LogView(NamedTuple):
    """The state at one version. Of each list, the first so many items belong to it."""

    logs: dict[str, tuple[Items, int]]
    values: dict[str, msgspec.Raw]

    def items(self, log: str) -> Items:
        """Return a log's items as a new list."""
        line, length = self.logs[log]
        return line[:length]


NOTHING: Final = LogView({}, {})


def view_of(parts: state.Parts) -> LogView:
    """Return the view of a loaded state, with names in place of what they name."""
    logs = {name: (list(log.items), len(log.items)) for name, log in parts.logs.items()}
    return LogView(logs, dict(parts.values))


class LogFold:
    """Views of the latest versions, or of some."""

    def __init__(self, only: frozenset[int] | None = None) -> None:
        self._only = only
        self.views: OrderedDict[int, LogView] = OrderedDict()
        self.newest = NOTHING

    def begin(self, version: int, view: LogView) -> None:
        """Start from a whole state."""
        self._keep(version, view)

    def apply(self, version: int, delta: Delta) -> None:
        """Add the next version: the newest one with a delta applied."""
        logs, values = dict(self.newest.logs), dict(self.newest.values)
        for name in delta.dropped:
            logs.pop(name, None)
            values.pop(name, None)
        for name, splices in delta.logs.items():
            for splice in splices:
                logs[name] = _spliced(*logs.get(name, ([], 0)), splice)
        values.update(delta.values)
        self._keep(version, LogView(logs, values))

    def refs(self) -> set[Ref]:
        """Return the entries, and parts of entries, that items and values name."""
        found = (state.as_ref(raw) for raw in self._raws())
        return {ref for ref in found if ref is not None}

    def resolve(self, raw_of: Callable[[Ref], msgspec.Raw]) -> None:
        """Replace names with what they name."""
        for line in self._lines():
            for index, raw in enumerate(line):
                if (ref := state.as_ref(raw)) is not None:
                    line[index] = raw_of(ref)
        for view in self.views.values():
            for name, raw in view.values.items():
                if (ref := state.as_ref(raw)) is not None:
                    view.values[name] = raw_of(ref)

    def _keep(self, version: int, view: LogView) -> None:
        self.newest = view
        if self._only is None or version in self._only:
            self.views[version] = view
        while self._only is None and len(self.views) > KEPT_VERSIONS:
            self.views.popitem(last=False)

    def _lines(self) -> Iterator[Items]:
        seen: set[int] = set()
        for view in self.views.values():
            for line, _ in view.logs.values():
                if id(line) not in seen:
                    seen.add(id(line))
                    yield line

    def _raws(self) -> Iterator[msgspec.Raw]:
        for line in self._lines():
            yield from line
        for view in self.views.values():
            yield from view.values.values()


def _spliced(line: Items, length: int, splice: Splice) -> tuple[Items, int]:
    start = length if splice.start == END else splice.start
    if start == length and len(line) == length:
        line.extend(splice.items)
        return line, len(line)
    made = [*line[:start], *splice.items, *line[start + splice.delete : length]]
    return made, len(made)


class NamedEntries:
    """Bodies of entries, and what is in them by its name."""

    def __init__(self, bodies: Mapping[int, bytes]) -> None:
        self._bodies = bodies
        self._values: dict[int, dict[str, msgspec.Raw]] = {}
        self._deltas: dict[int, Delta] = {}

    def raw_of(self, ref: Ref) -> msgspec.Raw:
        body = self._bodies[ref.seq]
        if not ref.path:
            return msgspec.Raw(body)
        if len(ref.path) == state.ITEM_PATH:
            if ref.seq not in self._deltas:
                self._deltas[ref.seq] = checkpoints.decode_delta(body)
            return state.item_at(self._deltas[ref.seq], ref)
        if ref.seq not in self._values:
            self._values[ref.seq] = checkpoints.decode_values(body)
        return self._values[ref.seq][str(ref.path[0])]


def changes_between(old: Items, new: Items) -> list[tuple[int, int, Items]]:
    """Return splices that turn one list of items into another; shared items are found fast."""
    if old == new:
        return []
    head = _common_head(old, new)
    if head == len(old):
        return [(head, 0, new[head:])]
    rest_old, rest_new = old[head:], new[head:]
    return [
        (start + head, delete, list(items)) for start, delete, items in _splices(rest_old, rest_new)
    ]


def _common_head(old: Items, new: Items) -> int:
    """Count the equal items at the head, by halving: lists are compared much faster than one
    item at a time, and equal items are mostly the same objects."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _splices(old: Items, new: Items) -> Iterable[tuple[int, int, Sequence[msgspec.Raw]]]:
    tail = 0
    while tail < min(len(old), len(new)) and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if len(old) == len(new):
        changed = [i for i in range(len(old)) if old[i] != new[i]]
        return [(i, 1, [new[i]]) for i in changed]
    end = len(new) - tail
    return [(0, len(old) - tail, new[:end])]
