"""Values on their way to PostgreSQL: many rows as one array per column, in its binary format.

The driver's own arrays cost more than the rows they carry: a batch of a thousand turns would take
twice as long.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

_TEXT, _INT8, _BYTEA, _UUID = 25, 20, 17, 2950
_head: Final = struct.Struct("!iiIii").pack
_size: Final = struct.Struct("!i").pack
_sized_int8: Final = struct.Struct("!iq").pack
_NULL: Final = b"\xff\xff\xff\xff"
_to_json: Final = msgspec.json.Encoder()


class Packed:
    """A parameter that is packed already."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Texts(Packed):
    """text[]"""


class Int8s(Packed):
    """bigint[]"""


class ByteaArray(Packed):
    """bytea[]"""


class Uuids(Packed):
    """uuid[]"""


class Records(Packed):
    """json, an array of objects."""


def texts(values: Iterable[str]) -> Texts:
    return Texts(_array(_TEXT, [value.encode() for value in values]))


def int8s(values: Sequence[int]) -> Int8s:
    packed = [_sized_int8(8, value) for value in values]
    return Int8s(b"".join([_head(1, 0, _INT8, len(packed), 1), *packed]))


def blobs(values: Sequence[bytes | None]) -> ByteaArray:
    return ByteaArray(_array(_BYTEA, values))


def uuids(values: Iterable[UUID]) -> Uuids:
    return Uuids(_array(_UUID, [value.bytes for value in values]))


def records(rows: Sequence[Any]) -> Records:
    """Structs or dicts; bytes in them are base64."""
    return Records(_to_json.encode(rows))


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    if not values:
        return _head(0, 0, oid, 0, 1)[:12]
    parts = [_head(1, int(None in values), oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(_size(len(value)))
            parts.append(value)
    return b"".join(parts)


class _PackedDumper(Dumper):
    """Hands packed bytes to the server unchanged."""

    format = Format.BINARY

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _TextsDumper(_PackedDumper):
    oid = 1009


class _Int8sDumper(_PackedDumper):
    oid = 1016


class _BlobsDumper(_PackedDumper):
    oid = 1001


class _UuidsDumper(_PackedDumper):
    oid = 2951


class _RecordsDumper(_PackedDumper):
    format = Format.TEXT
    oid = 114


class _TextDumper(StrBinaryDumper):
    """Typed as text, so that a statement has one form whatever it is given."""

    oid = _TEXT


def adapt(connection: "AsyncConnection[Any]") -> None:
    """Teach a connection our parameters; numbers are always bigint, so statements have one form."""
    for kind, dumper in (
        (Texts, _TextsDumper),
        (Int8s, _Int8sDumper),
        (ByteaArray, _BlobsDumper),
        (Uuids, _UuidsDumper),
        (Records, _RecordsDumper),
        (int, Int8BinaryDumper),
        (str, _TextDumper),
        (bytes, BytesBinaryDumper),
    ):
        connection.adapters.register_dumper(kind, dumper)
