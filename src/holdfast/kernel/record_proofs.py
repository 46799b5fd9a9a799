"""The hash of a record: what it tells, without the hash itself and the signature over it."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from holdfast import codec
from holdfast.errors import IntegrityError
from holdfast.kernel import record_schema
from holdfast.kernel.record_schema import Fields
from holdfast.kernel.records import Record

_NOT_HASHED: Final = ("hash", "signature")


def hash_of(record: Record) -> str:
    """SHA-256, in hex, of a record's fields with their keys sorted, as MessagePack."""
    return hash_of_fields(record_schema.fields_of(record))


def hash_of_fields(fields: Mapping[str, Any]) -> str:
    """The same for a record as it is stored, whatever version of the schema that is."""
    compliance = dict(fields.get("compliance", {}))
    for name in _NOT_HASHED:
        compliance.pop(name, None)
    return codec.canonical_digest({**fields, "compliance": compliance}, name="record").hex()


def with_hash(record: Record) -> Record:
    """A record whose hash is that of its content."""
    proof = msgspec.structs.replace(record.compliance, hash=hash_of(record))
    return msgspec.structs.replace(record, compliance=proof)


def verified(fields: object) -> Record:
    """The record of stored fields, if its hash is right; raises IntegrityError."""
    if not isinstance(fields, dict):
        raise IntegrityError("what is stored is no record")
    known = cast(Fields, fields)
    told: Any = known.get("compliance", {})
    if told.get("hash") != hash_of_fields(known):
        raise IntegrityError("the hash of the record is not that of its content")
    return record_schema.record_of(known)
