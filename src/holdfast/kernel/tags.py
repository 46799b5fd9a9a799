"""Tags of a mark as JSON text: the same text in every store, and the tags again.

Tags are JSON data. Not every store can hold U+0000 inside of JSON, so it is written as U+001A and
`0`, and U+001A itself as U+001A and `1`.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from holdfast.errors import UnsupportedValue

_encoder: Final = msgspec.json.Encoder(order="sorted")
_decoder: Final = msgspec.json.Decoder()
_ESCAPED: Final = "\\u001a"
_TO_ESCAPE: Final = ("\\u0000", _ESCAPED)


def encode(tags: Mapping[str, Any]) -> str:
    """The text that is stored: sorted keys, no blanks; raises UnsupportedValue for other data."""
    try:
        text = _text(tags)
        if _decoder.decode(text) != _listed(tags):
            raise ValueError("something in them is not JSON")
        # Facts are MessagePack, whose whole numbers end at 64 bits.
        msgspec.msgpack.encode(tags)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UnsupportedValue(
            f"tags are JSON data (None, bool, int of 64 bits, finite float, str, list, dict with "
            f"keys of type str), and these are not: {error}"
        ) from error
    if any(character in text for character in _TO_ESCAPE):
        return _text(_replaced(tags, _escaped))
    return text


def decode(text: str) -> dict[str, Any]:
    """The tags of a stored text."""
    found = _decoder.decode(text)
    return cast("dict[str, Any]", _replaced(found, _unescaped) if _ESCAPED in text else found)


def is_matched(tags: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether tags have all that is wanted, where None is as good as missing.

    As Python compares, but that True is not 1 and False is not 0.
    """
    return all(_is_equal(tags.get(key), value) for key, value in wanted.items())


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        ours, theirs = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return ours.keys() == theirs.keys() and all(_is_equal(ours[k], theirs[k]) for k in ours)
    if isinstance(left, list) and isinstance(right, list):
        these, those = cast("list[Any]", left), cast("list[Any]", right)
        return len(these) == len(those) and all(map(_is_equal, these, those))
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _text(tags: Any) -> str:
    return _encoder.encode(tags).decode()


def _listed(value: Any) -> Any:
    """With lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_listed(item) for item in cast("list[Any]", value)]
    return value


def _replaced(value: Any, replace: Any) -> Any:
    """The same data with every text in it replaced."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {replace(key): _replaced(item, replace) for key, item in items}
    if isinstance(value, list | tuple):
        return [_replaced(item, replace) for item in cast("list[Any]", value)]
    return value


def _escaped(text: str) -> str:
    return text.replace("\x1a", "\x1a1").replace("\x00", "\x1a0")


def _unescaped(text: str) -> str:
    return text.replace("\x1a0", "\x00").replace("\x1a1", "\x1a")
