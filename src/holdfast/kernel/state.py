"""The fold of checkpoints into a state, and the rule that keeps loading cheap.

`Parts` holds every item as the bytes that are stored, with where they lie, so that it can be
decoded, compared with a new state, or written down as a base. Loading reads the base and what came
after it; a base is worth writing when that is more than twice what is alive, and it halves it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast import codec
from holdfast.errors import IntegrityError
from holdfast.kernel import checkpoints
from holdfast.kernel.checkpoints import END, Base, Delta, LogSegment, Splice
from holdfast.kernel.journal import ORIGIN, Position

SLACK_BYTES: Final = 65_536
ITEM_PATH: Final = 3
"""How long the path of a name is that names an item of a checkpoint's delta."""
_EXT_BYTES: Final = frozenset({0xC7, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})


class StoredLog:
    """A log's items as stored, and the segments of the journal they lie in."""

    __slots__ = ("items", "segments")

    def __init__(self) -> None:
        self.items: list[msgspec.Raw] = []
        self.segments: list[LogSegment] = []

    def splice(self, splice: Splice, seq: int, number: int) -> None:
        count = len(splice.items)
        start = len(self.items) if splice.start == END else splice.start
        if not 0 <= start <= start + splice.delete <= len(self.items):
            raise IntegrityError(f"a change reaches beyond the {len(self.items)} items of a log")
        if start == len(self.items):
            tail: list[LogSegment] = []
        else:
            self.segments, rest = _split(self.segments, start)
            _, tail = _split(rest, splice.delete)
        self.items[start : start + splice.delete] = splice.items
        if count:
            self.segments.append(LogSegment(seq, number, 0, count))
        self.segments += tail


def _split(segments: list[LogSegment], at: int) -> tuple[list[LogSegment], list[LogSegment]]:
    """The segments of the first `at` items, and those of the rest."""
    for index, segment in enumerate(segments):
        length = segment.stop - segment.start
        if at < length:
            middle = segment.start + at
            left = [LogSegment(segment.seq, segment.splice, segment.start, middle)] if at else []
            right = LogSegment(segment.seq, segment.splice, middle, segment.stop)
            return segments[:index] + left, [right, *segments[index + 1 :]]
        at -= length
    return segments, []


class Parts:
    """A run's state at one version."""

    def __init__(self) -> None:
        self.version = 0
        self.position: Position | None = ORIGIN
        """Where the checkpoint of the version is in the journal; None if it was not read."""
        self.base_seq = 0
        self.logs: dict[str, StoredLog] = {}
        self.values: dict[str, msgspec.Raw] = {}
        self.bodies: dict[int, bytes] = {}  # of the entries that live items and values name
        self.recorded: dict[int, bytes] = {}  # of entries since this version, to be named next
        self._names: dict[int, int] = {}  # how many live items and values name an entry
        self._values_of: dict[int, dict[str, msgspec.Raw]] = {}
        self._delta_of: dict[int, Delta] = {}
        self._inline_bytes = 0
        self._delta_bytes = 0
        self._base_from = SLACK_BYTES
        self._entry_bytes: dict[int, int] = {}

    def apply(self, delta: Delta, *, at: Position, version: int, size: int) -> None:
        """Fold in the checkpoint of the entry at a position, whose body has `size` bytes."""
        seq = at.seq
        for name in delta.dropped:
            self._drop(name)
        for name, splices in delta.logs.items():
            log = self.logs.setdefault(name, StoredLog())
            for number, splice in enumerate(splices):
                self._name(splice.items)
                if splice.delete:
                    self._forget(log.items[splice.start : splice.start + splice.delete])
                log.splice(splice, seq, number)
        for name, raw in delta.values.items():
            self._name((raw,))
            self._forget_value(name)
            self.values[name] = raw
        self.recorded.clear()
        # All of a delta is alive when it comes; counting its items one by one would cost more
        # than the few bytes of names and lengths are worth.
        self._inline_bytes += size
        self.version, self.position = version, at
        self._delta_bytes += size
        self._entry_bytes[seq] = size

    def apply_base(self, base: Base, sources: Mapping[int, Delta], *, seq: int, size: int) -> None:
        """Begin from a base; `sources` are the deltas of the entries its segments name."""
        self.base_seq, self.position = seq, None
        for name, segments in base.logs.items():
            log = self.logs.setdefault(name, StoredLog())
            for segment in segments:
                splice = sources[segment.seq].logs[name][segment.splice]
                log.items += splice.items[segment.start : segment.stop]
            log.segments = list(segments)
            self._name(log.items)
            self._inline_bytes += _inline_size(log.items)
        self.values = dict(base.values)
        self._name(base.values.values())
        self._inline_bytes += _inline_size(base.values.values())
        self._delta_bytes += size

    def name_source(self, seq: int, size: int) -> None:
        """Account for an entry that had to be read because a base names it."""
        self._delta_bytes += size
        self._entry_bytes[seq] = size

    def named_entries(self) -> set[int]:
        """The seqs of entries that live items and values name."""
        return set(self._names)

    def data_of(self, raw: msgspec.Raw) -> msgspec.Raw:
        """The MessagePack of an item or value, looked up where the entry is only named."""
        ref = as_ref(raw)
        if ref is None:
            return raw
        body = self.bodies[ref.seq]
        if not ref.path:
            return msgspec.Raw(body)
        if len(ref.path) == ITEM_PATH:
            return self._item_of(ref, body)
        values = self._values_of.get(ref.seq)
        if values is None:
            values = self._values_of[ref.seq] = checkpoints.decode_values(body)
        return values[str(ref.path[0])]

    def _item_of(self, ref: codec.Ref, body: bytes) -> msgspec.Raw:
        """An item of a log as another checkpoint's delta has it."""
        delta = self._delta_of.get(ref.seq)
        if delta is None:
            delta = self._delta_of[ref.seq] = checkpoints.decode_delta(body)
        return item_at(delta, ref)

    def decode(self) -> dict[str, Any]:
        """The state as plain values, logs as lists, in the order the parts were made."""
        state: dict[str, Any] = {
            name: [codec.decode(self.data_of(raw)) for raw in log.items]
            for name, log in self.logs.items()
        }
        for name, raw in self.values.items():
            state[name] = codec.decode(self.data_of(raw))
        return state

    def decode_part(self, name: str, default: Any = None) -> Any:
        """One part as a plain value, a log as a list."""
        if name in self.logs:
            return [codec.decode(self.data_of(raw)) for raw in self.logs[name].items]
        return codec.decode(self.data_of(self.values[name])) if name in self.values else default

    @property
    def live_bytes(self) -> int:
        """How much of it is alive, but for names and lengths."""
        return self._inline_bytes + sum(map(len, self.bodies.values()))

    def worthwhile_base(self) -> Base | None:
        """A base, if loading reads twice what is alive and a base would halve that."""
        if self._delta_bytes <= max(self._base_from, 2 * self._inline_bytes + SLACK_BYTES):
            return None
        named = sum(len(self.bodies[seq]) for seq in self.named_entries())
        read = self._delta_bytes + named
        base = Base({name: log.segments for name, log in self.logs.items()}, dict(self.values))
        after = named + len(checkpoints.encode_body(base)) + self._bytes_of(self._sources())
        if read > 2 * (self._inline_bytes + named) and read >= 2 * after:
            return base
        # Not worth it yet: look again when there is half as much more to read.
        self._base_from = self._delta_bytes + self._delta_bytes // 2
        return None

    def begin_at_base(self, seq: int, size: int) -> None:
        """Note that a base of this very state was written as entry `seq`."""
        sources = self._sources()
        self.base_seq = seq
        self._delta_bytes = size + self._bytes_of(sources)
        self._entry_bytes = {s: n for s, n in self._entry_bytes.items() if s in sources}
        self._base_from = SLACK_BYTES

    def _sources(self) -> set[int]:
        return {segment.seq for log in self.logs.values() for segment in log.segments}

    def _bytes_of(self, seqs: set[int]) -> int:
        return sum(self._entry_bytes.get(seq, 0) for seq in seqs)

    def _drop(self, name: str) -> None:
        log = self.logs.pop(name, None)
        if log is not None:
            self._forget(log.items)
        self._forget_value(name)

    def _forget_value(self, name: str) -> None:
        raw = self.values.pop(name, None)
        if raw is not None:
            self._forget((raw,))

    def _name(self, raws: Iterable[msgspec.Raw]) -> None:
        """Count the entries that new items or values name, and keep what was recorded for them."""
        for ref in filter(None, map(as_ref, raws)):
            self._names[ref.seq] = self._names.get(ref.seq, 0) + 1
            if ref.seq in self.recorded:
                self.bodies[ref.seq] = self.recorded[ref.seq]

    def _forget(self, raws: Collection[msgspec.Raw]) -> None:
        """Drop items or values, and bodies that nothing names any more."""
        self._inline_bytes -= _inline_size(raws)
        for ref in filter(None, map(as_ref, raws)):
            self._names[ref.seq] -= 1
            if not self._names[ref.seq]:
                del self._names[ref.seq]
                self.bodies.pop(ref.seq, None)
                self._values_of.pop(ref.seq, None)
                self._delta_of.pop(ref.seq, None)


def item_at(delta: Delta, ref: codec.Ref) -> msgspec.Raw:
    """The item that a name of an item says: log, splice, index."""
    log, splice, index = ref.path
    return delta.logs[str(log)][int(splice)].items[int(index)]


def _inline_size(raws: Iterable[msgspec.Raw]) -> int:
    """Return the bytes of items in their entries; one that only names another is small."""
    return sum(memoryview(raw).nbytes for raw in raws)


def as_ref(raw: msgspec.Raw) -> codec.Ref | None:
    """The entry an item names, or None if it is the item itself."""
    view = memoryview(raw)
    if view[0] not in _EXT_BYTES:
        return None
    value = codec.decode(raw)
    return value if isinstance(value, codec.Ref) else None


class LogDiff(msgspec.Struct, frozen=True, gc=False):
    """How a log changed: so many items at its head are equal, then these went and those came."""

    kept: int
    removed: list[Any]
    added: list[Any]


class StateDiff(msgspec.Struct, frozen=True, gc=False):
    """How one state differs from another."""

    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]
    logs: dict[str, LogDiff]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed or self.logs)


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> StateDiff:
    """What changed between two states, part by part."""
    changed = {n: (before[n], after[n]) for n in before if n in after and before[n] != after[n]}
    logs = {n: pair for n, pair in changed.items() if all(isinstance(v, list) for v in pair)}
    return StateDiff(
        added={n: v for n, v in after.items() if n not in before},
        removed={n: v for n, v in before.items() if n not in after},
        changed={n: pair for n, pair in changed.items() if n not in logs},
        logs={n: _diff_logs(*pair) for n, pair in logs.items()},
    )


def _diff_logs(before: list[Any], after: list[Any]) -> LogDiff:
    kept = sum(1 for _ in _common(before, after))
    return LogDiff(kept=kept, removed=before[kept:], added=after[kept:])


def _common(before: list[Any], after: list[Any]) -> Iterator[Any]:
    for old, new in zip(before, after, strict=False):
        if old != new:
            return
        yield old
