"""What may name a run, an agent, a tool, a wait: the same rule for every name, in every store."""

from typing import Final

from holdfast.errors import InvalidIdentifier

MAX_LENGTH: Final = 255


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
