"""What of a security context may be stored: references to secrets, never a secret itself."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, cast

from holdfast.telemetry import log

REFERENCE: Final = "secret://"
LEFT_OUT: Final = "[a secret, not stored]"
_SHORTEST: Final = 4
_LONG: Final = 16
_OPEN_KEY: Final = re.compile(
    "(^|[^a-z])(id|user|sub|subject|name|mail|email|tenant|roles?|groups?|types?|scopes?|iss"
    "|issuer|aud|audience|exp|iat|expires?(_at|_in)?)$",
    re.I,
)
_SECRET_KEY: Final = re.compile(
    "token|secret|passw|credential|authori[sz]ation|jwt|key|cookie", re.I
)

Remint = Callable[[str], object | Awaitable[object]]
"""Makes the value that a reference stands for, such as a fresh token."""


def is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(REFERENCE)


def references_of(security_context: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Return for each key the reference to its value; a value without one is left out."""
    kept: dict[str, str] = {}
    for key, value in security_context.items():
        reference = value if is_reference(value) else known.get(key)
        if reference is None:
            log.warning(
                "security_context[%r] is not stored, because no reference to it is known; give "
                "one as security_references[%r] = 'secret://…' to have it again after a pause",
                key,
                key,
            )
        else:
            kept[key] = reference
    return kept


def secrets_in(security_context: Mapping[str, Any]) -> list[str]:
    """Return all texts in it that are not references, at any depth; the longest first.

    Left out are those of fewer than four characters, and those under a key that names an identity
    or a kind, as `user_id` does: they may be in the state for good reason. Everything below a key
    that says it is secret counts, whatever it is called.
    """
    found: list[str] = []
    _collect(security_context, found, is_below=False)
    return sorted(set(found), key=len, reverse=True)


def _collect(value: object, found: list[str], *, is_below: bool) -> None:
    if isinstance(value, bytes | bytearray):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        if len(value) >= _SHORTEST and not is_reference(value):
            found.append(value)
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[object, object]", value).items():
            is_open = _OPEN_KEY.search(str(key)) is not None
            if is_open and not is_below and not _is_mapping(each):
                continue
            says_so = not is_open and _SECRET_KEY.search(str(key)) is not None
            _collect(each, found, is_below=is_below or says_so)
    elif isinstance(value, list | tuple):
        for each in cast("Iterable[object]", value):
            _collect(each, found, is_below=is_below)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def without(value: Any, secrets: Sequence[str]) -> Any:
    """A copy of plain data in which no text contains one of the secrets.

    A key is changed if it is a secret, or contains a long one: a short one may be in any name.
    """
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, LEFT_OUT)
        return value
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {_key(key, secrets): without(each, secrets) for key, each in pairs}
    if isinstance(value, list | tuple):
        return [without(each, secrets) for each in cast("Iterable[Any]", value)]
    return value


def _key(key: Any, secrets: Sequence[str]) -> Any:
    return without(key, [each for each in secrets if each == key or len(each) >= _LONG])


async def reminted(references: Mapping[str, str], remint: Remint | None) -> dict[str, Any]:
    """Return the present values of references; without a hook they stay references."""
    if remint is None:
        return dict(references)
    made: dict[str, Any] = {}
    for key, reference in references.items():
        value = remint(reference)
        made[key] = await value if isawaitable(value) else value
    return made
