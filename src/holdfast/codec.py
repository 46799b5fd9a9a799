"""Values to bytes and back: MessagePack, zstd, SHA-256. Data is never code.

`encode` accepts exactly the values that come back equal (dataclasses, structs and models come back
as the dicts they hold); anything else is refused with its path before a byte is written.
`pack` and `unpack` are the body codec: the name in `encoding` says how stored bytes were made.
"""

import dataclasses
import hashlib
import math
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

import msgspec
import zstandard

from holdfast.errors import IntegrityError, UnsupportedValue, ValueTooLarge

MAX_DEPTH: Final = 200
PLAIN: Final = "mp"
ZSTD: Final = "zstd"
ZSTD_WORDS: Final = "zstd1"
_COMPRESS_FROM: Final = 96
_WORDS_UP_TO: Final = 8192

# What small bodies are full of. A body of this encoding is read with just these bytes: they are
# never changed; other words are another encoding.
WORDS: Final = (
    b"success error status artifact tool_call_id refusal logprobs finish_reason stop length "
    b"model_name model_provider system_fingerprint token_usage completion_tokens prompt_tokens "
    b"input_token_details output_token_details cache_read reasoning "
    b"\xacinput_tokens\xadoutput_tokens\xactotal_tokens"
    b"\xa4role\xa4user\xa4role\xa9assistant\xa5tools\xa4args\xa2id\xa4kind\xa4text\xa5parts"
    b"langchain_core.messages.system\xadSystemMessage\xa6system"
    b"langchain_core.messages.tool\xabToolMessage\x8a\xa4tool\xactool_call_id\xa8artifact\xc0"
    b"langgraph.types\xa9Interrupt\xa5value\xa2id\x94\xafmodel_construct"
    b"\x92\x03\xc4\xad\xc7\xaa\x05\x94\xbdlangchain_core.messages.human\xacHumanMessage\x86"
    b"\xa7content\xa0\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa5human"
    b"\xa4name\xc0\xa2id\xd9$\x92\x03\xc4\xd4\xc7\xd1\x05\x94\xbalangchain_core.messages.ai"
    b"\xa9AIMessage\x89\xa7content\xa0\xb1additional_kwargs\x80\xb1response_metadata\x80"
    b"\xa4type\xa2ai\xa4name\xc0\xa2id\xd9$\xaatool_calls\x90\xb2invalid_tool_calls\x90"
    b"\xaeusage_metadata\xc0\xb3model_validate_json"
    b"\xa8messages\x91\x93\xff\x00\x92\xc7\x11\x01\x92\xcd\x93\xa9__start__\x00\x02\xc7\x11"
    b"\x01\x92\xcd\x93\xa9__start__\x00\x03\xadbranch:to:\x91\x93\xff\x00\x91\xc0\x83"
    b"\xa5@head\x96\xc4\x10\x04\xcf\x00\x06\x83\xa9__start__\xcd\xa8messages\xcd\xadbranch:to:"
    b"\x92\xadbranch:to:\xa8messages\xa0\xa6@forms\x82\xa8messages\xa4list\xadbranch:to:"
    b"\xa5value\xaf@seen:__start__\x92\xa9__start__\x81\xa9__start__\xcd\x91\xa9__start__"
)

EXT_REF: Final = 1
_EXT_DATETIME: Final = 2
_EXT_UUID: Final = 3
_EXT_DECIMAL: Final = 4
_EXT_TUPLE: Final = 5

_INT_RANGE: Final = range(-(2**63), 2**64)
_encoder: Final = msgspec.msgpack.Encoder()
_canonical: Final = msgspec.msgpack.Encoder(order="deterministic")


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Names a value that is stored already: the body of entry `seq`, or what is at `path` in it."""

    seq: int
    path: tuple[str | int, ...] = ()


class _Unsupported(Exception):
    """A value that cannot be stored; `path` grows while the walk unwinds."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason = reason
        self.hint = hint
        self.path: list[str] = []


def encode(value: object, *, name: str = "value", limit: int | None = None) -> bytes:
    """The MessagePack of `value`; raises UnsupportedValue naming the path of what is refused.

    Raises ValueTooLarge if it has more than `limit` bytes.
    """
    is_plain = type(value) is str and value.isascii()
    data = _encoder.encode(value if is_plain else _plain(value, name))
    if limit is not None and len(data) > limit:
        check_size(data, name, limit)
    return data


def check_size(data: bytes, name: str, limit: int) -> None:
    """Raise ValueTooLarge if `data` is more than one entry stores."""
    if len(data) > limit:
        raise ValueTooLarge(
            f"{name} has {len(data):,} bytes; at most {limit:,} are stored "
            "(setting max_body_bytes). Keep it elsewhere and store where it is"
        )


def canonical_digest(value: object, *, name: str = "value") -> bytes:
    """SHA-256 of `value` with its keys sorted: equal data, equal digest."""
    return sha256(_canonical.encode(_plain(value, name)))


def stored_digest(data: bytes | msgspec.Raw, without: Mapping[str, Collection[str]]) -> bytes:
    """The canonical digest of a dict made by `encode`, less some names in those it holds."""
    value: Any = decode(data, keeps_extensions=True)
    for key, names in without.items():
        inside: Any = value.get(key, {})
        value[key] = {name: each for name, each in inside.items() if name not in names}
    return sha256(_canonical.encode(value))


def decode(data: bytes | msgspec.Raw, *, keeps_extensions: bool = False) -> Any:
    """The value of MessagePack made by `encode`; raises IntegrityError for anything else.

    With `keeps_extensions`, what is no plain MessagePack is left as it is stored.
    """
    try:
        return (_as_stored if keeps_extensions else _decoder).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError) as error:
        raise IntegrityError(f"stored bytes are not a Holdfast value: {error}") from error


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def pack(data: bytes) -> tuple[str, bytes]:
    """How to store `data`, and the stored bytes: compressed where that makes them smaller."""
    if len(data) < _COMPRESS_FROM:
        return PLAIN, data
    is_small = len(data) <= _WORDS_UP_TO
    compressor = _zstd.with_words if is_small else _zstd.compressor
    squeezed = compressor.compress(data)
    if len(squeezed) < len(data):
        return (ZSTD_WORDS if is_small else ZSTD), squeezed
    return PLAIN, data


def unpack(encoding: str, stored: bytes) -> bytes:
    """Return what `pack` was given. Raises IntegrityError if it cannot be decoded.

    Only for bytes whose digest was checked: what somebody else wrote may be a bomb.
    """
    if encoding == PLAIN:
        return stored
    if encoding not in (ZSTD, ZSTD_WORDS):
        raise IntegrityError(f"stored bytes are encoded as {encoding!r}, which is unknown here")
    is_small = encoding == ZSTD_WORDS
    decompressor = _zstd.reading_words if is_small else _zstd.decompressor
    try:
        return decompressor.decompress(stored)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"stored bytes cannot be decompressed: {error}") from error


class _Zstd(threading.local):
    """One context per thread: making one costs as much as a small body."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()
        words = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        words.precompute_compress(level=1)  # pyright: ignore[reportUnknownMemberType] - untyped there
        self.with_words = zstandard.ZstdCompressor(level=1, dict_data=words)
        self.reading_words = zstandard.ZstdDecompressor(dict_data=words)


_zstd: Final = _Zstd()


def _plain(value: object, name: str) -> object:
    try:
        return (_CONVERT.get(type(value)) or _walk_other)(value, 0)
    except _Unsupported as refused:
        path = name + "".join(reversed(refused.path))
        hint = f"; {refused.hint}" if refused.hint else ""
        raise UnsupportedValue(f"{path}: {refused.reason}{hint}") from None
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise UnsupportedValue(f"{name} cannot be read, its code raised {raised}") from error


def _keep(value: object, depth: int) -> object:
    return value


def _int(value: object, depth: int) -> object:
    if value not in _INT_RANGE:
        raise _Unsupported("this integer needs more than 64 bits", "store it as a string")
    return value


def _float(value: object, depth: int) -> object:
    if not math.isfinite(cast(float, value)):
        raise _Unsupported(f"{value} is not a finite number", "store None or a string instead")
    return value


def _str(value: object, depth: int) -> object:
    text = cast(str, value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _Unsupported(f"the string has a lone surrogate at index {error.start}") from None
    return text


def _list(value: object, depth: int) -> object:
    return _walk_items(cast("list[object]", value), depth + 1)


def _tuple(value: object, depth: int) -> object:
    items = _walk_items(list(cast("tuple[object, ...]", value)), depth + 1)
    # With sorted keys: these bytes are part of digests, where equal data must be equal.
    return msgspec.msgpack.Ext(_EXT_TUPLE, _canonical.encode(items))


# Containers are only copied when something in them must be replaced: most of what agents store is
# plain, and is encoded directly. Both loops look at what is most common without a call.


def _walk_items(items: list[object], depth: int) -> list[object]:
    if depth > MAX_DEPTH:
        raise _too_deep()
    replaced: list[object] | None = None
    index = 0
    try:
        for index, item in enumerate(items):
            kind = type(item)
            if (kind is str and cast(str, item).isascii()) or kind in _ALWAYS_PLAIN:
                continue
            plain = (_CONVERT.get(kind) or _walk_other)(item, depth)
            if plain is not item:
                replaced = replaced or list(items)
                replaced[index] = plain
    except _Unsupported as refused:
        refused.path.append(f"[{index}]")
        raise
    return items if replaced is None else replaced


def _dict(value: object, depth: int) -> object:
    depth += 1
    if depth > MAX_DEPTH:
        raise _too_deep()
    items = cast("dict[object, object]", value)
    replaced: dict[object, object] | None = None
    key: object = None
    try:
        for key, item in items.items():
            if type(key) is not str:
                raise _Unsupported(f"dict keys must be strings, not {type(key).__name__}")
            if not key.isascii():
                _str(key, depth)
            kind = type(item)
            if (kind is str and cast(str, item).isascii()) or kind in _ALWAYS_PLAIN:
                continue
            plain = (_CONVERT.get(kind) or _walk_other)(item, depth)
            if plain is not item:
                replaced = replaced or dict(items)
                replaced[key] = plain
    except _Unsupported as refused:
        refused.path.append(f"[{_shown(key)}]")
        raise
    return items if replaced is None else replaced


def _shown(key: object) -> str:
    if isinstance(key, str):
        return '"' + key.encode("ascii", "backslashreplace").decode()[:80] + '"'
    return repr(key)[:80]


def _too_deep() -> _Unsupported:
    return _Unsupported(f"nested deeper than {MAX_DEPTH} levels", "is it a cycle?")


def _datetime(value: object, depth: int) -> object:
    return msgspec.msgpack.Ext(_EXT_DATETIME, cast(datetime, value).isoformat().encode())


def _uuid(value: object, depth: int) -> object:
    return msgspec.msgpack.Ext(_EXT_UUID, cast(UUID, value).bytes)


def _decimal(value: object, depth: int) -> object:
    if not cast(Decimal, value).is_finite():
        raise _Unsupported(f"{value} is not a finite number", "store None or a string instead")
    return msgspec.msgpack.Ext(_EXT_DECIMAL, str(value).encode())


def _ref(value: object, depth: int) -> object:
    ref = cast(Ref, value)
    if depth:
        raise _Unsupported("a stored entry can be named as a whole item or value only")
    return msgspec.msgpack.Ext(EXT_REF, _encoder.encode([ref.seq, list(ref.path)]))


def _walk_other(value: object, depth: int) -> object:
    """Subclasses and objects that are data: as the plain values they hold."""
    if isinstance(value, Enum):
        held = cast(object, value.value)
        return (_CONVERT.get(type(held)) or _walk_other)(held, depth)
    if isinstance(value, msgspec.Struct):
        return _dict(_fields(value), depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dict({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, depth)
    if hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump"):
        return _dict(cast(Any, value).model_dump(), depth)
    for kind, convert in _CONVERT.items():
        if kind is not bool and kind is not type(None) and isinstance(value, kind):
            return convert(_as_base(value, kind), depth)
    raise _Unsupported(
        f"{type(value).__name__} is not supported", _HINTS.get(type(value), _SUPPORTED)
    )


def _fields(value: msgspec.Struct) -> dict[str, object]:
    """What a struct holds, and the tag that distinguishes it in its union."""
    fields = msgspec.structs.asdict(value)
    config = value.__struct_config__
    if config.tag is None or config.tag_field is None:
        return fields
    return {config.tag_field: config.tag, **fields}


def _as_base(value: object, kind: type) -> object:
    make = cast("Callable[[object], object]", kind)
    return make(value) if kind in (str, int, float, bytes, dict, list) else value


_SUPPORTED: Final = (
    "store plain data: None, bool, int, float, str, bytes, list, tuple, dict, datetime, UUID or "
    "Decimal, or a dataclass, msgspec.Struct or Pydantic model of such"
)
_HINTS: Final[dict[type, str]] = {
    set: "use a sorted list",
    frozenset: "use a sorted list",
    complex: "store its two parts",
    bytearray: "use bytes",
}

_ALWAYS_PLAIN: Final = frozenset({bool, type(None), bytes})

_CONVERT: Final[dict[type, Callable[[object, int], object]]] = {
    str: _str,
    int: _int,
    dict: _dict,
    list: _list,
    bool: _keep,
    type(None): _keep,
    float: _float,
    bytes: _keep,
    datetime: _datetime,
    UUID: _uuid,
    Decimal: _decimal,
    tuple: _tuple,
    Ref: _ref,
}


def _restore_ref(data: memoryview) -> Ref:
    seq, path = msgspec.msgpack.decode(data, type=tuple[int, tuple[str | int, ...]])
    return Ref(seq, path)


_RESTORE: Final[dict[int, Callable[[memoryview], object]]] = {
    EXT_REF: _restore_ref,
    _EXT_DATETIME: lambda data: datetime.fromisoformat(str(data, "utf-8")),
    _EXT_UUID: lambda data: UUID(bytes=bytes(data)),
    _EXT_DECIMAL: lambda data: Decimal(str(data, "utf-8")),
    _EXT_TUPLE: lambda data: tuple(_decoder.decode(data)),
}


def _restore(code: int, data: memoryview) -> object:
    restore = _RESTORE.get(code)
    if restore is None:
        raise ValueError(f"extension type {code} is unknown here")
    return restore(data)


_decoder: Final = msgspec.msgpack.Decoder(ext_hook=_restore)
_as_stored: Final = msgspec.msgpack.Decoder()  # keeps extensions, to be encoded again
