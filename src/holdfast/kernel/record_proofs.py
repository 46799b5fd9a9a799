"""The hash of a record's content, without the hash itself and the signature over it."""

from typing import Any, Final, cast

import msgspec

from holdfast import codec
from holdfast.errors import IntegrityError
from holdfast.kernel import record_schema
from holdfast.kernel.record_schema import Fields
from holdfast.kernel.records import Record

_NOT_HASHED: Final = {"compliance": ("hash", "signature")}


def hash_of(record: Record) -> str:
    """SHA-256, in hex, of a record's fields with their keys sorted, as MessagePack."""
    return hash_of_stored(codec.encode(record_schema.fields_of(record), name="record"))


def hash_of_stored(body: bytes | msgspec.Raw) -> str:
    """Return the same for a stored record of any version of the schema."""
    return codec.stored_digest(body, _NOT_HASHED).hex()


def with_hash(record: Record) -> Record:
    """A record whose hash is that of its content."""
    proof = msgspec.structs.replace(record.compliance, hash=hash_of(record))
    return msgspec.structs.replace(record, compliance=proof)


def verified(body: bytes | msgspec.Raw) -> Record:
    """The record that is stored, if its hash is right; raises IntegrityError."""
    fields: Any = codec.decode(body)
    compliance: Any = cast(Fields, fields).get("compliance") if isinstance(fields, dict) else None
    if not isinstance(compliance, dict):
        raise IntegrityError("what is stored is no record")
    if cast(Fields, compliance).get("hash") != hash_of_stored(body):
        raise IntegrityError("the hash of the record is not that of its content")
    return record_schema.record_of(cast(Fields, fields))
