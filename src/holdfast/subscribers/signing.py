"""Signatures of what is posted, in the way of Standard Webhooks: HMAC-SHA256 over id, time, body.

    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

Any library for that verifies them; `verify_webhook` does so without one. Receivers read headers in
several ways, so an id is sent as it is only if all of them read the same.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from holdfast.clock import MICROSECONDS, wall
from holdfast.errors import SignatureInvalid

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
_PREFIX: Final = "whsec_"
_PLAIN: Final = re.compile(r"[!-~]+")


def sign(secret: str, *, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that show who sent a body, and when; raises SignatureInvalid for a bad secret."""
    if not _PLAIN.fullmatch(id):
        id = hashlib.sha256(id.encode()).hexdigest()
    return {
        ID: id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: _signature(secret, id=id, timestamp=str(timestamp), body=body),
    }


def verify_webhook(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = 300.0,
    now: float | None = None,
) -> list[dict[str, Any]]:
    """The events of a request that was sent by whoever has the secret, and lately.

    Raises SignatureInvalid for any other. `now` is in seconds since 1970. What was sent twice is
    told by the `id` of each event.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        id_, timestamp, given = found[ID], found[TIMESTAMP], found[SIGNATURE]
    except KeyError as error:
        raise SignatureInvalid(f"the request has no header {error}") from None
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise SignatureInvalid("its timestamp is no number of seconds")
    expected = _signature(secret, id=id_, timestamp=timestamp, body=body).encode()
    # Several, while a secret is changed. All are compared, each in a time that tells nothing.
    matches = [
        hmac.compare_digest(expected, each.encode(errors="replace")) for each in given.split(" ")
    ]
    if not any(matches):
        raise SignatureInvalid("it was not signed with this secret, or was changed on the way")
    current = wall() / MICROSECONDS if now is None else now
    if abs(current - int(timestamp)) > tolerance_seconds:
        raise SignatureInvalid(
            f"it was signed more than {tolerance_seconds:g} seconds ago, or ahead"
        )
    try:
        told: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise SignatureInvalid("its body is no JSON") from error
    return cast("list[dict[str, Any]]", told if isinstance(told, list) else [told])


def _signature(secret: str, *, id: str, timestamp: str, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode(errors="replace") + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    """The key that a secret is: base64 behind whsec_, as others write them, else its bytes."""
    coded = secret.removeprefix(_PREFIX)
    try:
        key = secret.encode() if coded == secret else base64.b64decode(coded, validate=True)
    except ValueError:
        # Without its cause, which names characters of the secret.
        raise SignatureInvalid(
            f"the secret is no text in UTF-8, or what follows {_PREFIX} in it is no base64"
        ) from None
    if not key:
        raise SignatureInvalid("the secret is empty")
    return key
