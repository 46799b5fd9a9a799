"""Tokens back to a value. They may be damaged or forged: never trusted."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple, cast

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Send

from holdfast.errors import CheckpointCorrupted
from holdfast.integrations.langgraph.values import tokens
from holdfast.integrations.langgraph.values.forms import DeltaSnapshot
from holdfast.integrations.langgraph.values.messages import MESSAGES
from holdfast.integrations.langgraph.values.serde import MSGPACK, StrictSerializer

_NATIVE: Final = frozenset((type(None), bool, int, float, str))
_decoder: Final = msgspec.msgpack.Decoder()


class SeenValue(NamedTuple):
    """An object that was made, and where its tokens begin and end."""

    made: Any
    start: int
    end: int


class Assembler:
    """One value on its way back. `made` has what earlier ones made of the same tokens, to share."""

    def __init__(
        self,
        serde: SerializerProtocol,
        given: list[msgspec.Raw | bytes],
        made: dict[bytes, Any] | None = None,
    ) -> None:
        self._serde = serde
        self._plain = serde if type(serde) is StrictSerializer else None
        self._given = given
        self._decoded = list(_decode(given))
        self._at = 0
        self._made = made
        self.met: list[SeenValue] = []

    def only(self) -> Any:
        """The one value of these tokens."""
        value = self._build(0)
        if self._at != len(self._decoded):
            raise CheckpointCorrupted("the tokens of a stored value go on after its end")
        return value

    def items(self) -> tuple[list[Any], list[int]]:
        """The items of these tokens, and where each ends."""
        items: list[Any] = []
        ends: list[int] = []
        while self._at < len(self._decoded):
            start = self._at
            item = self._build(0)
            items.append(item)
            ends.append(self._at)
            if type(item) is dict:
                self.met.append(SeenValue(item, start, self._at))
        return items, ends

    def _build(self, depth: int) -> Any:
        start = self._at
        token = self._next()
        if type(token) is list:
            return self._opened(cast("list[Any]", token), start, depth)
        if self._plain is None:
            raise CheckpointCorrupted("a stored value was not written by this saver's serializer")
        if type(token) is bytes:
            return self._atom(start, MSGPACK, token)
        _check(type(token) in _NATIVE)
        return token

    def _opened(self, token: list[Any], start: int, depth: int) -> Any:
        shape = tuple(map(type, token))
        if shape == (int, str, bytes) and token[0] == tokens.ATOM:
            return self._atom(start, token[1], token[2])
        if depth > tokens.MAX_DEPTH:
            raise CheckpointCorrupted(f"a stored value is nested deeper than {tokens.MAX_DEPTH}")
        _check(self._plain is not None and shape[:1] == (int,))
        expected, opened = self._openings.get(token[0], ((), None))
        if opened is None or shape != expected:
            raise CheckpointCorrupted("a stored value begins in no known way")
        return opened(self, token[-1], depth + 1)

    def _next(self) -> Any:
        if self._at >= len(self._decoded):
            raise CheckpointCorrupted("the tokens of a stored value end too early")
        token = self._decoded[self._at]
        self._at += 1
        return token

    def _atom(self, start: int, kind: str, data: bytes) -> Any:
        return self._once(start, self._serde.loads_typed, (kind, data))

    def _once(self, start: int, make: Callable[[Any], Any], stored: tuple[Any, ...]) -> Any:
        """What `make` makes of the tokens since `start`, or has made of the same before."""
        if self._made is None:
            made = make(stored)
            if type(made) in MESSAGES:
                self.met.append(SeenValue(made, start, self._at))
            return made
        key = b"".join(map(bytes, self._given[start : self._at]))
        try:
            return self._made[key]
        except KeyError:
            return self._made.setdefault(key, make(stored))

    def _list(self, size: int, depth: int) -> Any:
        return self._children(size, depth)

    def _dict(self, keys: list[Any], depth: int) -> Any:
        _check(all(type(key) is str for key in keys) and len(set(keys)) == len(keys))
        return dict(zip(keys, self._children(len(keys), depth), strict=True))

    def _message(self, shell: bytes, depth: int) -> Any:
        text = self._next()
        _check(type(text) is str)
        return self._once(self._at - 2, self._filled, (shell, text))

    def _filled(self, stored: tuple[bytes, str]) -> Any:
        shell, text = stored
        message = self._serde.loads_typed((MSGPACK, shell))
        _check(type(message) in MESSAGES)
        message.__dict__["content"] = text
        return message

    def _send(self, node: str, depth: int) -> Any:
        return Send(node, self._build(depth))

    def _snapshot(self, form: int, depth: int) -> Any:
        return DeltaSnapshot(self._build(depth))

    def _children(self, size: int, depth: int) -> list[Any]:
        _check(0 <= size <= len(self._decoded) - self._at)
        return [self._build(depth) for _ in range(size)]

    # The types of the parts of a token, and what to do with its last one.
    _openings: ClassVar[
        dict[int, tuple[tuple[type, ...], Callable[["Assembler", Any, int], Any]]]
    ] = {
        tokens.ITEMS: ((int, int), _list),
        tokens.ENTRIES: ((int, list), _dict),
        tokens.SHELL: ((int, bytes), _message),
        tokens.SEND: ((int, str), _send),
        tokens.SNAPSHOT: ((int,), _snapshot),
    }


def _decode(given: Iterable[msgspec.Raw | bytes]) -> Iterable[Any]:
    try:
        yield from map(_decoder.decode, given)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointCorrupted(f"a token of a stored value is damaged: {error}") from error


def _check(is_right: bool) -> None:
    if not is_right:
        raise CheckpointCorrupted("the tokens of a stored value do not fit together")
