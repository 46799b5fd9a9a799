"""The limit on what one entry stores."""

from holdfast import codec
from holdfast.errors import ValueTooLarge


def check_size(data: bytes, name: str, limit: int) -> None:
    """Raise ValueTooLarge if `data` is more than is stored."""
    if len(data) > limit:
        raise ValueTooLarge(
            f"{name} has {len(data):,} bytes; at most {limit:,} are stored "
            "(setting max_body_bytes). Keep it elsewhere and store where it is"
        )


def encoded(value: object, name: str, limit: int) -> bytes:
    """Encode a value. Raises ValueTooLarge if it has more than `limit` bytes."""
    data = codec.encode(value, name=name)
    check_size(data, name, limit)
    return data
