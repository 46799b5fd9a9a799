"""What a NATS URL says, and how queues and keys are called on a server.

    nats://user:password@host:4222,other:4222?replicas=3&stream=HOLDFAST&creds=/etc/nats.creds

A queue or a key may be any name; on the server each is one token of a subject.
"""

import hashlib
import re
import ssl
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidSetting

SCHEMES: Final = ("nats", "tls")
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST_TOKEN: Final = 120
_OPTIONS: Final = {"stream", "prefix", "replicas", "creds", "ca", "patience"}


@dataclass(frozen=True, kw_only=True)
class NatsLocation:
    """Where the servers are, and what our streams are called there."""

    servers: tuple[str, ...]
    shown: str
    user: str = ""
    password: str = field(default="", repr=False)
    creds: str = ""
    ca: str = ""
    stream: str = "HOLDFAST"
    prefix: str = "holdfast"
    replicas: int = 1
    patience: float = 30.0

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
        """The options that a connection needs to be let in."""
        options: dict[str, Any] = {}
        if self.user and self.password:
            options |= {"user": self.user, "password": self.password}
        elif self.user:
            options["token"] = self.user
        if self.creds:
            options["user_credentials"] = self.creds
        if self.ca or self.servers[0].startswith("tls:"):
            options["tls"] = ssl.create_default_context(cafile=self.ca or None)
        return options


def token(name: str) -> str:
    """A name as one token: letters, digits, _ and - as they are, other bytes as `=` and two digits.

    One that would be too long for a server's own names ends in its hash.
    """
    encoded = "".join(chr(b) if b in _PLAIN else f"={b:02x}" for b in name.encode())
    if len(encoded) <= _LONGEST_TOKEN:
        return encoded
    return f"{encoded[:60]}=h{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def message_id(queue: str, key: str) -> str:
    """What the server deduplicates by, in the whole stream."""
    return f"{token(queue)}/{token(key)}"


def locate_nats(url: str) -> NatsLocation:
    """Read a NATS URL; raises InvalidSetting for what is none. No error quotes a password."""
    parts = urlsplit(_joined(url))
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - _OPTIONS)
    if unknown:
        raise InvalidSetting(
            f"the NATS URL has {', '.join(unknown)}, which is not known; "
            f"it may have {', '.join(sorted(_OPTIONS))}"
        )
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    servers = tuple(f"{parts.scheme}://{host}" for host in hosts.split(",") if host)
    if not servers or parts.path.strip("/"):
        raise InvalidSetting("a NATS URL looks like nats://user:password@host:4222?replicas=3")
    words = {key: given[key] for key in ("stream", "prefix", "creds", "ca") if key in given}
    for key in ("stream", "prefix"):
        if key in words and token(words[key]) != words[key]:
            raise InvalidSetting(f"{key} may have letters, digits, _ and -, not {words[key]!r}")
    return NatsLocation(
        servers=servers,
        shown=",".join(servers),
        user=unquote(name),
        password=unquote(password),
        replicas=cast(int, _number(given, "replicas", int, 1)),
        patience=_number(given, "patience", float, 30.0),
        **words,
    )


def _joined(url: str) -> str:
    """One URL of several with commas between them: `nats://a:4222,nats://b:4222`."""
    first, *others = re.split(r",(?=\w+://)", url)
    scheme, _, rest = first.partition("://")
    login = rest.rpartition("@")[0]
    hosts: list[str] = []
    for other in others:
        known = other.removeprefix(f"{scheme}://")
        has_login = "@" in known
        if known == other or (has_login and known.rpartition("@")[0] != login):
            raise InvalidSetting("the servers of a NATS URL have the same scheme and login")
        hosts.append(known.rpartition("@")[2])
    return ",".join([first, *hosts])


def _number(
    given: dict[str, str], key: str, kind: type[int] | type[float], default: float
) -> float:
    if key not in given:
        return default
    try:
        value = kind(given[key])
    except ValueError:
        value = 0
    if not 0 < value < 2**31:
        raise InvalidSetting(f"{key} in the NATS URL must be a number above 0, not {given[key]!r}")
    return value
