"""Records as data: what may be given, what is stored, and what older and newer versions wrote.

A caller that gives a record gets an error for any field that is not in the schema. A reader of a
record of a newer version keeps unknown fields in `extra`, and writes them back.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from holdfast.errors import IntegrityError, RecordInvalid, SchemaMismatch
from holdfast.kernel.records import VERSION, Record

Fields = dict[str, Any]
SECTIONS: Final = (
    "metadata",
    "execution_state",
    "context_summary",
    "metrics",
    "recovery",
    "compliance",
)
_OWN_NAMES: Final = frozenset({"version", *SECTIONS})
# Set by the service, never by a caller.
OWNED: Final = (
    "metadata.checkpoint_id",
    "metadata.task_id",
    "metadata.agent_id",
    "metadata.timestamp",
    "compliance.event_log_ref",
    "compliance.hash",
    "compliance.signature",
)
_COUNTS: Final = (
    "metrics.tokens_consumed",
    "metrics.tools_invoked",
    "metrics.tests_status.passed",
    "metrics.tests_status.failed",
    "metrics.tests_status.skipped",
)
_MOST: Final = 2**63 - 1
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder()


# What is given.


def given(state: Record | Mapping[str, Any]) -> Fields:
    """Return a caller's data as fields. Raises RecordInvalid for what a caller may not set."""
    if isinstance(state, Record):
        return _without_owned(fields_of(state))
    if not isinstance(cast(object, state), Mapping):
        raise RecordInvalid(f"a state is a Record or a mapping, not {type(state).__name__}")
    for name in state:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS[1:])
            raise RecordInvalid(f"there is no section {str(name)[:80]!r}; there are {known}")
        if not isinstance(state[name], Mapping | msgspec.Struct):
            raise RecordInvalid(f"{name} must be an object, not {type(state[name]).__name__}")
    fields: Fields = {name: _data(section) for name, section in state.items()}
    for path in OWNED:
        section, _, name = path.partition(".")
        if name in fields.get(section, {}):
            raise RecordInvalid(f"{path} is written by the service; leave it out")
    _check_known(fields)
    return fields


def _data(value: Any) -> Any:
    """Structs as dicts, and tuples as lists: as JSON has them."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        return {name: _data(item) for name, item in held.items()}
    if isinstance(value, list | tuple):
        return [_data(item) for item in cast("Sequence[Any]", value)]
    return value


def _check_known(fields: Fields) -> None:
    """Raise for a field that the schema does not have, naming its path."""
    try:
        msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise RecordInvalid(f"the record does not fit schema {VERSION}: {error}") from error


def _without_owned(fields: Fields) -> Fields:
    for path in OWNED:
        section, _, name = path.partition(".")
        fields[section].pop(name, None)
    fields.pop("version", None)
    return fields


def merged(fields: Fields, partial: Fields) -> Fields:
    """Fields with those of `partial` in their place; lists are replaced, objects are merged."""
    result = dict(fields)
    for name, value in partial.items():
        before = result.get(name)
        is_both = isinstance(before, dict) and isinstance(value, dict)
        result[name] = merged(cast(Fields, before), cast(Fields, value)) if is_both else value
    return result


def changed(before: Fields, after: Fields, path: str = "") -> list[str]:
    """The paths of fields that differ, sorted."""
    found: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new, here = before.get(name), after.get(name), f"{path}{name}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(cast(Fields, old), cast(Fields, new), f"{here}.")
        elif old != new:
            found.append(here)
    return found


def checked(fields: Fields, *, agent_types: tuple[str, ...]) -> Record:
    """The record of fields that are about to be stored; raises RecordInvalid for what cannot be."""
    record = _converted(fields, RecordInvalid)
    for path in _COUNTS:
        if not 0 <= _at(record, path) <= _MOST:
            raise RecordInvalid(f"{path} must not be negative, or above {_MOST}")
    if not 1 <= record.metadata.iteration <= _MOST:
        raise RecordInvalid("metadata.iteration counts from 1")
    if not 0.0 <= record.metrics.tests_status.coverage_percent <= 100.0:
        raise RecordInvalid("metrics.tests_status.coverage_percent is from 0 to 100")
    if record.metadata.agent_type not in agent_types:
        raise RecordInvalid(
            f"metadata.agent_type {record.metadata.agent_type[:80]!r} is not one of "
            f"{', '.join(agent_types)}; CheckpointService(hf, agent_types=…) knows others"
        )
    return record


def _at(record: Record, path: str) -> Any:
    found: Any = record
    for name in path.split("."):
        found = getattr(found, name)
    return found


# What is stored.


def fields_of(record: Record) -> Fields:
    """Return a record in its stored form: what a newer version wrote is back in its place."""
    fields: Fields = {name: _section(getattr(record, name)) for name in ("version", *SECTIONS)}
    return _with_extra(fields, record.extra) if record.extra else fields


def _section(value: Any) -> Any:
    try:
        return _DECODER.decode(_ENCODER.encode(value))
    except (UnicodeEncodeError, OverflowError):
        return _data(value)  # it cannot be stored; the attempt reports where


def record_of(fields: Fields) -> Record:
    """The record of stored fields, brought to this version of the schema."""
    if fields.get("version") == VERSION and fields.keys() <= _OWN_NAMES:
        try:
            return msgspec.convert(fields, Record)
        except msgspec.ValidationError:
            pass  # the check below finds the reason
    fields = _migrated(_data(fields))
    extra: Fields = {}
    known = _known(fields, Record, extra)
    known.pop("extra", None)
    record = _converted(known, IntegrityError)
    return msgspec.structs.replace(record, extra=extra)


def _converted(fields: Fields, error_type: type[Exception]) -> Record:
    try:
        return msgspec.convert({n: v for n, v in fields.items() if n != "extra"}, Record)
    except msgspec.ValidationError as error:
        raise error_type(f"the record does not fit schema {VERSION}: {error}") from error


def _known(value: Any, kind: Any, extra: Fields) -> Any:
    """What the schema has a field for; the rest goes into `extra`, by the names that lead to it."""
    types, item_type = _inside(kind)
    known: Any = value
    if isinstance(value, dict) and types:
        held = cast(Fields, value)
        extra |= {name: item for name, item in held.items() if name not in types}
        known = {
            name: _known_inside(item, types[name], extra, name)
            for name, item in held.items()
            if name in types
        }
    elif isinstance(value, list) and item_type is not None:
        items = enumerate(cast("list[Any]", value))
        known = [_known_inside(item, item_type, extra, str(index)) for index, item in items]
    return known


@lru_cache(maxsize=64)
def _inside(kind: Any) -> tuple[dict[str, Any], Any]:
    """The types of a struct's fields, or that of the structs in a list."""
    match msgspec.inspect.type_info(kind):
        case msgspec.inspect.StructType(cls):
            return {field.name: field.type for field in msgspec.structs.fields(cls)}, None
        case msgspec.inspect.VarTupleType(msgspec.inspect.StructType(cls)):
            return {}, cls
        case _:
            return {}, None


def _known_inside(value: Any, kind: Any, extra: Fields, name: str) -> Any:
    more: Fields = {}
    known = _known(value, kind, more)
    if more:
        extra[name] = more
    return known


def _with_extra(value: Any, extra: Fields) -> Any:
    if isinstance(value, list):
        items = list(cast("list[Any]", value))
        for index, more in extra.items():
            if index.isdecimal() and int(index) < len(items):
                items[int(index)] = _with_extra(items[int(index)], more)
        return items
    fields = dict(cast(Fields, value))
    for name, more in extra.items():
        held = fields.get(name)
        is_inside = isinstance(held, dict | list) and isinstance(more, dict)
        fields[name] = _with_extra(held, cast(Fields, more)) if is_inside else more
    return fields


# Other versions.


def _migrated(fields: Fields) -> Fields:
    version = str(fields.get("version", ""))
    while version in MIGRATIONS:
        version, migrate = MIGRATIONS[version]
        fields = {**migrate(fields), "version": version}
    major, _, minor = version.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise IntegrityError(f"the record has schema version {version[:80]!r}, which cannot be")
    if major != VERSION.partition(".")[0]:
        raise SchemaMismatch(
            f"the record has schema {version}, and this version of Holdfast knows {VERSION}: "
            "a newer one wrote it. Upgrade Holdfast here"
        )
    return fields


def _from_0_9(fields: Fields) -> Fields:
    """Before 1.0 items and decisions were texts, and the counts of tests lay in the metrics."""
    state = dict(fields.get("execution_state", {}))
    for name in ("completed_items", "pending_items", "blocked_items"):
        texts = state.get(name, [])
        state[name] = [{"id": t, "text": t} if isinstance(t, str) else t for t in texts]
    summary = dict(fields.get("context_summary", {}))
    decisions = summary.get("key_decisions", [])
    summary["key_decisions"] = [{"text": d} if isinstance(d, str) else d for d in decisions]
    metrics = dict(fields.get("metrics", {}))
    if "tests" in metrics:
        metrics["tests_status"] = metrics.pop("tests")
    return {**fields, "execution_state": state, "context_summary": summary, "metrics": metrics}


MIGRATIONS: Final[dict[str, tuple[str, Callable[[Fields], Fields]]]] = {
    "0.9": ("1.0", _from_0_9),
}
"""From each older version to the next, and how."""
