"""Edits: what the next checkpoint will change, given piece by piece or found by comparison.

Every value is encoded when it is given, so that a later mutation of the caller's object cannot
reach the journal, and nothing unsupported gets as far as a commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

import msgspec

from holdfast import codec, names
from holdfast.codec import Ref
from holdfast.errors import MisuseError
from holdfast.kernel import checkpoints
from holdfast.kernel.checkpoints import END, Delta, Splice
from holdfast.kernel.state import Parts, as_ref

SPLIT_BYTES: Final = 256
_PART: Final = "the name of a part of the state"
OWN_PARTS: Final = "holdfast."
"""How the names of parts begin that Holdfast keeps itself."""


class Edits:
    """Changes to a run's state since its last version, in the order they were made."""

    __slots__ = (
        "_dropped",
        "_has_tokens",
        "_lengths",
        "_logs",
        "_max_bytes",
        "_parts",
        "_values",
        "item_bytes",
        "value_bytes",
    )

    def __init__(self, parts: Parts, *, max_bytes: int) -> None:
        self._parts = parts
        self._max_bytes = max_bytes
        self._logs: dict[str, list[Splice]] = {}
        self._lengths: dict[str, int] = {}
        self._values: dict[str, msgspec.Raw] = {}
        self._dropped: list[str] = []
        self._has_tokens = False
        self.item_bytes = 0
        self.value_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not (self._logs or self._values or self._dropped)

    def clear(self) -> None:
        """Forget all of them."""
        for changes in (self._logs, self._lengths, self._values, self._dropped):
            changes.clear()
        self._has_tokens = False
        self.item_bytes = self.value_bytes = 0

    def append(self, log: str, items: Iterable[object]) -> None:
        """Add items to the end of a log; a log that does not exist is begun."""
        length = self._length(log)
        self._append_raws(log, self._encode_items(log, items, length), length)

    def append_encoded(self, log: str, data: bytes) -> None:
        """Add an item to the end of a log that `codec.encode` has encoded already."""
        length = self._length(log)
        if len(data) > self._max_bytes:
            codec.check_size(data, f'state["{log}"][{length}]', self._max_bytes)
        self._append_raws(log, [msgspec.Raw(data)], length)

    def _append_raws(self, log: str, raws: list[msgspec.Raw], length: int) -> None:
        self.item_bytes += sum(map(_size, raws))
        splices = self._logs.setdefault(log, [])
        if splices and splices[-1].start == END:
            splices[-1].items.extend(raws)
        else:
            splices.append(Splice(END, 0, raws))
        self._lengths[log] = length + len(raws)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object] = ()) -> None:
        """Replace `delete` items from `start` on by `items`."""
        names.check_count(start, what="start")
        names.check_count(delete, what="delete")
        length = self._length(log)
        if not 0 <= start <= start + delete <= length:
            raise MisuseError(
                f"log {log!r} has {length} items; {start} to {start + delete} is not among them"
            )
        raws = self._encode_items(log, items, start)
        self.item_bytes += sum(map(_size, raws))
        self._logs.setdefault(log, []).append(Splice(start, delete, raws))
        self._lengths[log] = length - delete + len(raws)

    def set(self, name: str, value: object) -> None:
        """Give a value part this value; an equal one is not written again."""
        if name not in self._values and name not in self._parts.values:
            names.check(name, what=_PART)
        if self._has_log(name):
            raise MisuseError(f"{name!r} is a log; append to it, or drop it before setting a value")
        self.put(name, self._encode(value, f'state["{name}"]'))

    def put(self, name: str, raw: msgspec.Raw) -> None:
        """Give a value part this value, which is encoded already."""
        if self._values.get(name) == raw:
            return
        stored = None if name in self._dropped else self._parts.values.get(name)
        if stored is not None and self._parts.data_of(stored) == raw:
            self._values.pop(name, None)
            return
        self._values[name] = raw
        self.value_bytes += _size(raw)

    def drop(self, name: str) -> None:
        """Remove a part from the state."""
        is_stored = name in self._parts.values and name not in self._dropped
        if self._has_log(name) or name in self._values or is_stored:
            self._logs.pop(name, None)
            self._values.pop(name, None)
            self._lengths[name] = 0
            if name not in self._dropped:
                self._dropped.append(name)
            return
        raise MisuseError(f"there is no part {name!r} to drop")

    def replace_all(self, state: Mapping[str, object]) -> None:
        """Make the whole state equal to `state`, writing only what differs.

        A list is a log unless the part is a value already, anything else is a value; an item that
        was changed in place is noticed.
        """
        if not hasattr(state, "items"):
            raise MisuseError(f"a state is a dict of its parts, not {type(state).__name__}")
        for name, value in state.items():
            if isinstance(value, list) and name not in self._parts.values:
                self._replace_log(name, cast("list[object]", value))
                continue
            if self._has_log(name):
                self.drop(name)
            self.set(name, cast(object, value))
        for name in [*self._parts.logs, *self._parts.values]:
            if name not in state and name not in self._dropped:
                self.drop(name)

    def restore(
        self, logs: Mapping[str, Sequence[msgspec.Raw]], values: Mapping[str, msgspec.Raw]
    ) -> None:
        """Make the whole state equal to parts that were stored: a log is a log, a value a value."""
        for name in (*self._parts.logs, *self._parts.values):
            is_other_kind = name in (values if name in self._parts.logs else logs)
            if is_other_kind or not (name in logs or name in values):
                self.drop(name)
        for name, items in logs.items():
            self._put_log(name, items)
        for name, raw in values.items():
            self.put(name, raw)

    def change_log(self, name: str, changes: Iterable["Change"]) -> None:
        """Splice items that are encoded already into a log; begin the log if it does not exist."""
        length = self._length(name)
        splices = self._logs.setdefault(name, [])
        for start, delete, items in changes:
            self.item_bytes += sum(map(_size, items))
            is_end = start == length and not delete
            splices.append(Splice(END if is_end else start, delete, items))
            length += len(items) - delete
        self._lengths[name] = length

    def replace(self, name: str, value: object, *, is_log: bool) -> None:
        """Give a part another content; a log is given all of its items."""
        if not is_log:
            self.set(name, value)
        elif isinstance(value, list):
            self._replace_log(name, cast("list[object]", value))
        else:
            raise MisuseError(f"{name!r} is a log: give the list of its items, not {value!r}")

    def split(self, seq: int, seq_of: Callable[[int], int] | None = None) -> tuple[Delta, bytes]:
        """The delta, and the body of a STATE_VALUES entry at `seq` to go before it, if any.

        Values that outweigh the log items beside them get a separate entry: reading the items
        must not mean reading every value the run ever had. `seq_of` gives entries that were named
        by a token the seq they have by now.
        """
        values, logs = dict(self._values), dict(self._logs)
        if self._has_tokens and seq_of is not None:
            values = {name: _placed(raw, seq_of) for name, raw in values.items()}
            logs = {name: _placed_items(splices, seq_of) for name, splices in logs.items()}
        body = b""
        if self.value_bytes > max(self.item_bytes, SPLIT_BYTES) and self.item_bytes:
            body = checkpoints.encode_body(values)
            values = {name: msgspec.Raw(codec.encode(Ref(seq, (name,)))) for name in values}
        return Delta(logs, values, list(self._dropped)), body

    def _replace_log(self, name: str, value: Sequence[object]) -> None:
        length = self._length(name)
        self._put_log(name, self._encode_items(name, value, 0), length)

    def _put_log(self, name: str, new: Sequence[msgspec.Raw], length: int = 0) -> None:
        if not self._has_log(name):
            self._append_raws(name, list(new), length)
            return
        old = [self._parts.data_of(raw) for raw in self._parts.logs[name].items]
        for start, delete, items in find_splices(old, new):
            self.item_bytes += sum(map(_size, items))
            if start == len(old) and not delete:
                start = END
            self._logs.setdefault(name, []).append(Splice(start, delete, items))

    def _encode_items(self, log: str, items: Iterable[object], start: int) -> list[msgspec.Raw]:
        return [
            self._encode(item, f'state["{log}"][{index}]')
            for index, item in enumerate(items, start)
        ]

    def _encode(self, value: object, name: str) -> msgspec.Raw:
        if isinstance(value, Ref) and (value.path or value.seq not in self._parts.recorded):
            raise MisuseError(
                f"{name} names entry {value.seq}, which was not recorded "
                "since the last checkpoint of this lease; give the value itself"
            )
        self._has_tokens |= isinstance(value, Ref) and value.seq < 0
        return msgspec.Raw(codec.encode(value, name=name, limit=self._max_bytes))

    def _has_log(self, name: str) -> bool:
        if name in self._logs:
            return True
        return name in self._parts.logs and name not in self._dropped

    def _length(self, log: str) -> int:
        if log in self._logs and log in self._lengths:
            return self._lengths[log]
        if log in self._parts.logs and log not in self._lengths:
            return len(self._parts.logs[log].items)
        names.check(log, what=_PART)
        is_stored_value = log in self._parts.values and log not in self._dropped
        if is_stored_value or log in self._values:
            raise MisuseError(f"{log!r} is a value, not a log; drop it before appending to it")
        return self._lengths.get(log, 0)


def _placed(raw: msgspec.Raw, seq_of: Callable[[int], int]) -> msgspec.Raw:
    ref = as_ref(raw)
    if ref is None or ref.seq >= 0:
        return raw
    return msgspec.Raw(codec.encode(Ref(seq_of(ref.seq))))


def _placed_items(splices: list[Splice], seq_of: Callable[[int], int]) -> list[Splice]:
    return [Splice(s.start, s.delete, [_placed(raw, seq_of) for raw in s.items]) for s in splices]


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


Change = tuple[int, int, list[msgspec.Raw]]


def find_splices(old: Sequence[msgspec.Raw], new: Sequence[msgspec.Raw]) -> list[Change]:
    """Splices that turn `old` into `new`: cheap for appends, edits in place and sliding windows."""
    head = _count_equal(old, new)
    if head == len(old):
        return [(head, 0, list(new[head:]))] if head < len(new) else []
    ways: list[list[Change]] = [[(head, len(old) - head, list(new[head:]))]]
    if len(old) == len(new):
        changed = (i for i in range(head, len(old)) if old[i] != new[i])
        ways.append([(i, 1, [new[i]]) for i in changed])
    gone = _find_slide(old, new, head)
    if gone:
        end = len(old) - gone
        ways.append([(head, gone, []), (end, 0, list(new[end:]))])
    return min(ways, key=lambda way: sum(len(items) for _, _, items in way))


def _count_equal(old: Sequence[msgspec.Raw], new: Sequence[msgspec.Raw]) -> int:
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            return index
    return min(len(old), len(new))


def _find_slide(old: Sequence[msgspec.Raw], new: Sequence[msgspec.Raw], head: int) -> int:
    """How many items after the common head went, if what followed them is still there; else 0."""
    if head == len(new):
        return 0
    for start in range(head + 1, len(old)):
        if old[start] == new[head] and old[start:] == new[head : head + len(old) - start]:
            return start - head
    return 0
