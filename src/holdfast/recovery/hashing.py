"""The hash of a record: what it tells, without the hash itself and the signature over it."""

from collections.abc import Mapping
from typing import Any

from holdfast import codec
from holdfast.kernel.records import Record
from holdfast.recovery import schema

_NOT_HASHED = ("hash", "signature")


def hash_of(record: Record) -> str:
    """SHA-256, in hex, of a record's fields with their keys sorted, as MessagePack."""
    return hash_of_fields(schema.fields_of(record))


def hash_of_fields(fields: Mapping[str, Any]) -> str:
    """The same for a record as it is stored, whatever version of the schema that is."""
    compliance = dict(fields.get("compliance", {}))
    for name in _NOT_HASHED:
        compliance.pop(name, None)
    return codec.canonical_digest({**fields, "compliance": compliance}, name="record").hex()
