"""Signatures of webhooks: only what was sent just now by whoever has the secret is taken."""

import base64
import hashlib
import hmac
import json
import traceback

import pytest

from holdfast import verify_webhook
from holdfast.errors import SignatureInvalid
from holdfast.subscribers.webhook_signatures import sign

SECRET = "a secret"
NOW = 1_800_000_000
BODY = json.dumps([{"id": "a/1"}]).encode()


def headers(
    secret: bytes = SECRET.encode(), at: object = NOW, body: bytes = BODY
) -> dict[str, str]:
    digest = hmac.digest(secret, f"a/1..a/1.{at}.".encode() + body, hashlib.sha256)
    return {
        "Webhook-Id": "a/1..a/1",
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def test_request_that_is_signed_gives_its_events() -> None:
    assert verify_webhook(SECRET, headers(), BODY, now=NOW) == [{"id": "a/1"}]
    changing = headers()
    changing["Webhook-Signature"] = f"v1,old {changing['Webhook-Signature']}"
    assert verify_webhook(SECRET, changing, BODY, now=NOW + 299) == [{"id": "a/1"}]


def test_secret_behind_whsec_is_base64_as_standard_webhooks_has_it() -> None:
    key = b"\x00\x01binary"
    secret = f"whsec_{base64.b64encode(key).decode()}"
    assert verify_webhook(secret, headers(key), BODY, now=NOW)


@pytest.mark.parametrize("secret", ["whsec_q!z", "whsec_\u00e9", "whsec_\udcff", "\udcff"])
def test_secret_of_no_use_is_told_without_any_of_it(secret: str) -> None:
    with pytest.raises(SignatureInvalid, match="no base64") as raised:
        verify_webhook(secret, headers(), BODY, now=NOW)
    tail = secret.removeprefix("whsec_")
    told = "".join(traceback.format_exception(raised.value))
    assert tail not in told
    assert ascii(tail)[1:-1] not in told


@pytest.mark.parametrize("id_", ["café/1..café/2", " a/1..a/2", "a b/1..a b/1", "日本/1..z/9"])
def test_id_that_headers_cannot_carry_is_sent_as_its_digest(id_: str) -> None:
    signed = sign(SECRET, id=id_, timestamp=NOW, body=BODY)
    assert signed["webhook-id"] == hashlib.sha256(id_.encode()).hexdigest()
    assert signed == sign(SECRET, id=id_, timestamp=NOW, body=BODY)
    assert verify_webhook(SECRET, signed, BODY, now=NOW) == [{"id": "a/1"}]


def test_plain_id_is_sent_as_it_is() -> None:
    signed = sign(SECRET, id="a%20:~/1..b/2", timestamp=NOW, body=BODY)
    assert signed["webhook-id"] == "a%20:~/1..b/2"
    assert sign(SECRET, id="a/1..a/1", timestamp=NOW, body=BODY) == {
        name.lower(): value for name, value in headers().items()
    }


@pytest.mark.parametrize(
    ("secret", "given", "body", "now", "why"),
    [
        ("another", headers(), BODY, NOW, "not signed with this secret"),
        (SECRET, headers(), BODY.replace(b"a/1", b"a/2"), NOW, "changed on the way"),
        (SECRET, headers() | {"Webhook-Id": "b"}, BODY, NOW, "changed on the way"),
        (SECRET, headers() | {"Webhook-Timestamp": str(NOW + 1)}, BODY, NOW, "changed on"),
        (SECRET, headers(), BODY, NOW + 301, "more than 300 seconds ago"),
        (SECRET, headers(), BODY, NOW - 301, "or ahead"),
        (SECRET, headers(at="soon"), BODY, NOW, "no number"),
        (SECRET, {}, BODY, NOW, "no header 'webhook-id'"),
        (SECRET, headers() | {"Webhook-Signature": "v1,\udcff"}, BODY, NOW, "not signed"),
        (SECRET, headers() | {"Webhook-Id": "\udcff"}, BODY, NOW, "changed on the way"),
        ("", headers(b""), BODY, NOW, "empty"),
        ("whsec_", headers(b""), BODY, NOW, "empty"),
        (SECRET, headers(body=b"{"), b"{", NOW, "no JSON"),
    ],
)
def test_any_other_request_is_refused(
    secret: str, given: dict[str, str], body: bytes, now: float, why: str
) -> None:
    with pytest.raises(SignatureInvalid, match=why):
        verify_webhook(secret, given, body, now=now)
