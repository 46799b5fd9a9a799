"""What the store holds as plain data for output: keys are the fields' names, and stay.

Moments become ISO 8601 strings (None for none), digests and other bytes hex, ids strings.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, cast
from uuid import UUID

import msgspec

from holdfast.clock import MICROSECONDS
from holdfast.engine.reading.journal import body_of
from holdfast.errors import IntegrityError
from holdfast.kernel import indexes
from holdfast.kernel.journal import Entry
from holdfast.kernel.waits import Wait
from holdfast.terminal.text import moment

Record = dict[str, Any]


def record_of(value: msgspec.Struct) -> Record:
    """A row as plain data, without what only decides how a run is tried again."""
    return {
        field.name: _plain(field.name, getattr(value, field.name))
        for field in msgspec.structs.fields(value)
        if field.name != "losses"
    }


def wait_record(wait: Wait) -> Record:
    """A wait: what its peer said last as data, and how long a sign of life lasts in seconds."""
    record = record_of(wait)
    patience = record.pop("patience")
    return record | {
        "claimed_until": moment(wait.claimed_until),
        "patience_seconds": patience / MICROSECONDS if patience else None,
        "progress": progress_of(wait),
    }


def progress_of(wait: Wait) -> Any:
    """What the peer said last; None if it said nothing, or that cannot be read."""
    try:
        return msgspec.json.decode(wait.progress) if wait.progress else None
    except msgspec.DecodeError:
        return None


def _plain(name: str, value: Any) -> Any:
    match value:
        case int() if name == "at" or name == "deadline" or name.endswith("_at"):
            return moment(value)
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case bytes():
            return value.hex()
        case msgspec.Struct():
            return record_of(value)
        case tuple() | list():
            return [_plain("", item) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def entry_record(entry: Entry, *, is_intact: bool, with_body: bool) -> Record:
    """An entry of the journal; of a damaged one, what can be read."""
    record: Record = {
        "run_id": entry.run_id,
        "seq": entry.seq,
        "kind": entry.kind,
        "at": moment(entry.at),
        "actor": entry.actor,
        "facts": _facts(entry),
        "body_bytes": None if entry.body is None else len(entry.body),
        "link": entry.link.hex(),
        "intact": is_intact,
        "erased": is_intact and entry.body is None,
    }
    if with_body:
        record["body"] = readable_body(entry) if is_intact else None
    return record


def _facts(entry: Entry) -> Record | None:
    try:
        return record_of(indexes.facts_of(entry))
    except IntegrityError:
        return None


def readable_body(entry: Entry) -> Any:
    """What an entry that was checked holds; None if it was erased, or cannot be read."""
    try:
        return body_of(entry)
    except IntegrityError:
        return None
