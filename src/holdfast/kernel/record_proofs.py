"""The hash of a record: what it tells, without the hash itself and the signature over it."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from holdfast import codec
from holdfast.errors import IntegrityError
from holdfast.kernel.records import Record

PART: Final = "holdfast.record"
Fields = dict[str, Any]
_NOT_HASHED: Final = ("hash", "signature")


def fields_of(record: Record) -> Fields:
    """A record as it is stored."""
    fields: Fields = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name != "extra"}


def hash_of_fields(fields: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of a record's fields with their keys sorted, as MessagePack."""
    compliance = dict(fields.get("compliance", {}))
    for name in _NOT_HASHED:
        compliance.pop(name, None)
    return codec.canonical_digest({**fields, "compliance": compliance}, name="record").hex()


def sealed(record: Record) -> Record:
    """A record whose hash is that of its content."""
    proof = msgspec.structs.replace(record.compliance, hash=hash_of_fields(fields_of(record)))
    return msgspec.structs.replace(record, compliance=proof)


def verified(fields: object) -> Record:
    """The record of stored fields, if its hash is right; raises IntegrityError."""
    if not isinstance(fields, dict):
        raise IntegrityError("what is stored is no record")
    known = cast(Fields, fields)
    told: Any = known.get("compliance", {})
    if told.get("hash") != hash_of_fields(known):
        raise IntegrityError("the hash of the record is not that of its content")
    return msgspec.convert(known, Record)
