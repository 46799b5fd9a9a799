"""What may name a run, an agent, a tool, a wait: the same rule for every name, in every store."""

from typing import Final

from holdfast.errors import InvalidIdentifier, MisuseError, ValueTooLarge

MAX_LENGTH: Final = 255
MAX_TEXT: Final = 4000
MAX_COUNT: Final = 2**31


def check(value: object, *, what: str) -> str:
    """Give back `value` if it can name something in every store, else raise InvalidIdentifier."""
    if not isinstance(value, str):
        raise InvalidIdentifier(f"{what} must be a string, not {type(value).__name__}")
    if not value or len(value) > MAX_LENGTH:
        raise InvalidIdentifier(f"{what} must have 1 to {MAX_LENGTH} characters, not {len(value)}")
    if not value.isprintable():
        bad = next(c for c in value if not c.isprintable())
        raise InvalidIdentifier(f"{what} contains U+{ord(bad):04X}, which is not printable")
    return value


def check_optional(value: str | None, *, what: str) -> str | None:
    """The same for a name that may be left out."""
    return None if value is None else check(value, what=what)


def check_text(value: str, *, what: str) -> str:
    """Give back a remark if it can be stored: short enough, and valid Unicode without NUL."""
    if len(value) > MAX_TEXT:
        raise MisuseError(f"{what} has {len(value)} characters; at most {MAX_TEXT} are stored")
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise MisuseError(f"{what} contains a NUL or a lone surrogate")
    return value


def check_count(value: int, *, what: str) -> int:
    """Give back a number that can count something: a limit, a version, a position."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise MisuseError(f"{what} must be a whole number from 0 to {MAX_COUNT}, not {value!r}")
    return value


def check_size(body: bytes, *, most: int, what: str) -> bytes:
    """Give back bytes that are not too many, else raise ValueTooLarge."""
    if len(body) > most:
        raise ValueTooLarge(
            f"{what} has {len(body)} bytes; max_body_bytes allows {most}: keep the content "
            "elsewhere and send where it is"
        )
    return bytes(body)
