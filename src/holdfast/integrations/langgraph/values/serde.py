"""Strict serialization: what is stored comes back as what it was, or not at all.

LangGraph's serializer imports what stored data names, and where that is forbidden it gives back
something else without a word. This one writes and reads the same bytes, but makes only types of a
list, and raises: TypeNotAllowed for a type that is not on it, UnsupportedValue for an object that
cannot be made again, CheckpointCorrupted for bytes that are no stored value. It refuses at the
time of writing what it could not read.
"""

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.errors import CheckpointCorrupted, TypeNotAllowed
from holdfast.integrations.langgraph.values.allowed import Allowed, TypeOrName
from holdfast.integrations.langgraph.values.msgpack_reader import MsgpackReader
from holdfast.integrations.langgraph.values.msgpack_writer import MsgpackWriter

MSGPACK: Final = "msgpack"


def strict_serde(allow: Iterable[TypeOrName] = ()) -> "StrictSerializer":
    """A serializer that makes only LangGraph's safe types and those of `allow`."""
    return StrictSerializer(allow)


def strict_encrypted(
    cipher: CipherProtocol, allow: Iterable[TypeOrName] = ()
) -> "EncryptedStrictSerializer":
    """`strict_serde` with a cipher: what is stored without it is refused."""
    return EncryptedStrictSerializer(cipher, allow)


class StrictSerializer(JsonPlusSerializer):
    """A JsonPlusSerializer that makes only types of a list, and raises instead of degrading."""

    def __init__(self, allow: Iterable[TypeOrName] = ()) -> None:
        # The base class reads the environment unless it gets a value; that value is not used.
        super().__init__(allowed_msgpack_modules=None)
        self._allowed = Allowed(allow)
        self._reader = MsgpackReader(self._allowed)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[TypeOrName]) -> Self:
        """A serializer that makes the types of `extra_allowlist` too."""
        extra = tuple(extra_allowlist)
        if not extra:
            return self
        clone = copy.copy(self)
        clone._allowed = self._allowed.also(extra)
        clone._reader = MsgpackReader(clone._allowed)
        return clone

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", obj
        if isinstance(obj, bytearray):
            return "bytearray", bytes(obj)
        writer = MsgpackWriter(self._allowed)
        data = writer.pack(obj)
        if writer.doubtful:
            self.unpack(data)
        return MSGPACK, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        if kind == MSGPACK:
            return self.unpack(stored)
        load = _LOADS.get(kind)
        if load is None:
            raise TypeNotAllowed(
                f"a stored value is of type {kind!r:.80}, which is not read here; "
                "nothing was made of it"
            )
        return load(stored)

    def pack_shell(self, message: BaseMessage) -> bytes:
        """The MessagePack of a message with nothing for its content."""
        writer = MsgpackWriter(self._allowed)
        data = writer.pack_shell(message)
        if writer.doubtful:
            self.unpack(data)
        return data

    def unpack(self, data: bytes) -> Any:
        """The value of stored MessagePack."""
        return self._reader.unpack(data)


class EncryptedStrictSerializer(StrictSerializer):
    """A StrictSerializer whose bytes are encrypted, and that reads nothing else.

    It derives from the serializer it encrypts: LangGraph replaces a subclass of its
    EncryptedSerializer by that class, which reads what is not encrypted.
    """

    def __init__(self, cipher: CipherProtocol, allow: Iterable[TypeOrName] = ()) -> None:
        super().__init__(allow)
        self._cipher = cipher

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        name, encrypted = self._cipher.encrypt(data)
        return f"{kind}+{name}", encrypted

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _, name = data[0].partition("+")
        if not name:
            raise TypeNotAllowed(
                "a stored value is not encrypted, so it was not read. "
                "Read it with the serializer it was written with, and store it again"
            )
        try:
            opened = self._cipher.decrypt(name, data[1])
        except Exception as error:
            raise CheckpointCorrupted(
                f"a stored value cannot be decrypted ({type(error).__name__}). "
                "Is it the key that it was written with?"
            ) from error
        return super().loads_typed((kind, opened))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, object_hook=_plain)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupted(f"stored bytes are not JSON: {error}") from error


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    if "lc" in value and "type" in value:
        raise TypeNotAllowed(
            f"stored JSON asks for an object, {value.get('id')!r:.80}; nothing was made of it. "
            "Only plain JSON is read here"
        )
    return value


_LOADS: Final[dict[str, Callable[[bytes], Any]]] = {
    "null": lambda data: None,
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "json": _json,
}
