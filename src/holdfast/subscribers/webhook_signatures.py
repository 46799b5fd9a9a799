"""Signatures of what is posted, in the way of Standard Webhooks: HMAC-SHA256 over id, time, body.

    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

Any library for that verifies them; `verify_webhook` does so without one. Receivers read headers in
several ways, so an id is sent unchanged only if all of them read the same.
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
    """Return the headers that sign a body and its time. A bad secret raises SignatureInvalid."""
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
    """Return the events of a request that was signed with the secret, and recently.

    Raises SignatureInvalid for any other. `now` is in seconds since 1970. To find duplicates,
    compare the `id` of each event.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        id_, timestamp, given = found[ID], found[TIMESTAMP], found[SIGNATURE]
    except KeyError as error:
        raise SignatureInvalid(f"the request has no header {error}") from None
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise SignatureInvalid("its timestamp is no number of seconds")
    expected = _signature(secret, id=id_, timestamp=timestamp, body=body).encode()
    # Several, while a secret is changed. All are compared, each in constant time.
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
        decoded: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise SignatureInvalid("its body is no JSON") from error
    return cast("list[dict[str, Any]]", decoded if isinstance(decoded, list) else [decoded])


def _signature(secret: str, *, id: str, timestamp: str, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode(errors="replace") + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    """Return the key of a secret: base64 after whsec_, as others write them, else its bytes."""
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
