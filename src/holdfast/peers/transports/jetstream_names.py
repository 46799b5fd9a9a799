"""The location of NATS and the credentials, and the names of queues and keys on a server.

A queue or a key may be any name; on the server each is one token of a subject.
"""

import hashlib
import importlib.util
import ssl
from dataclasses import fields
from typing import Any, Final

from holdfast.broker_urls import NatsUrl, read_nats
from holdfast.errors import InvalidSetting

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST_TOKEN: Final = 120


class NatsLocation(NatsUrl):
    """A NATS URL, with the names that our streams and subjects have there."""

    @property
    def dead_stream(self) -> str:
        return f"{self.stream}_DEAD"

    @property
    def bodies(self) -> str:
        """The bucket of bodies that are too large for a message."""
        return f"{self.stream}_BODIES"

    def queue(self, queue: str) -> str:
        return f"{self.prefix}.queue.{token(queue)}"

    def dead(self, queue: str) -> str:
        return f"{self.prefix}.dead.{token(queue)}"

    def later(self, queue: str, key: str) -> str:
        return f"{self.prefix}.later.{token(queue)}.{token(key)}"

    def connecting(self) -> dict[str, Any]:
        """Return the options to log in with; raises InvalidSetting for unusable files."""
        if unreadable := self.unreadable():
            raise InvalidSetting("; ".join(unreadable))
        options: dict[str, Any] = {}
        if self.user and self.password:
            options |= {"user": self.user, "password": self.password}
        elif self.user:
            options["token"] = self.user
        if self.creds:
            if importlib.util.find_spec("nkeys") is None:
                raise InvalidSetting("creds= in the NATS URL needs nkeys: pip install nkeys")
            options["user_credentials"] = self.creds
        if self.is_encrypted:
            options["tls"] = _trusting(self.ca)
        return options


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError:
        raise InvalidSetting(
            f"ca={ca} in the NATS URL holds no certificates; name a file in PEM"
        ) from None


def token(name: str) -> str:
    """Encode a name as one token: bytes but letters, digits, _ and - become `=` and two digits.
    One that would be too long for a server's own names ends in its hash.
    """
    encoded = "".join(chr(b) if b in _PLAIN else f"={b:02x}" for b in name.encode())
    if len(encoded) <= _LONGEST_TOKEN:
        return encoded
    return f"{encoded[:60]}=h{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def message_id(queue: str, key: str) -> str:
    """Return the id that the server deduplicates by, in the whole stream."""
    return f"{token(queue)}/{token(key)}"


def locate_nats(url: str) -> NatsLocation:
    """Parse a NATS URL; raises InvalidSetting if it is invalid. No error quotes a password."""
    found = read_nats(url)
    return NatsLocation(**{each.name: getattr(found, each.name) for each in fields(found)})
