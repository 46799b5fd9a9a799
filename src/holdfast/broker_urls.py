"""What the URL of a broker says: read and judged without a client, and shown without its secrets.

nats://user:password@host:4222,other:4222?replicas=3&stream=HOLDFAST&creds=/etc/nats.creds
"""

import os
import re
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import InvalidSetting

SCHEMES: Final = ("nats", "tls")
_OPTIONS: Final = ("ca", "creds", "patience", "prefix", "replicas", "stream")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, kw_only=True)
class NatsUrl:
    """Where the servers are, how they let us in, and what our streams are called there."""

    servers: tuple[str, ...]
    options: str = ""
    user: str = field(default="", repr=False)  # alone, it is a token
    password: str = field(default="", repr=False)
    creds: str = ""
    ca: str = ""
    stream: str = "HOLDFAST"
    prefix: str = "holdfast"
    replicas: int = 1
    patience: float = 30.0

    @property
    def shown(self) -> str:
        """The servers, as they may be logged."""
        return ",".join(self.servers)

    @property
    def shown_with_options(self) -> str:
        return f"{self.shown}?{self.options}" if self.options else self.shown

    @property
    def is_encrypted(self) -> bool:
        return bool(self.ca) or self.servers[0].startswith("tls:")

    def unreadable(self) -> list[str]:
        """What is wrong with the files that the URL names."""
        return [
            f"{option}={path} in the NATS URL names no file that can be read; "
            "give its whole path, and let this user read it"
            for option, path in (("creds", self.creds), ("ca", self.ca))
            if path and not (os.path.isfile(path) and os.access(path, os.R_OK))
        ]


def is_broker(url: str) -> bool:
    return url.partition("://")[0] in SCHEMES and "://" in url


def read_nats(url: str) -> NatsUrl:
    """Read a NATS URL; raises InvalidSetting for what is none. No error quotes a password."""
    try:
        parts = urlsplit(_joined(url))
    except ValueError:  # a bracket of an IPv6 address that is not closed
        raise _malformed("the host of the NATS URL cannot be read") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise _malformed("write / ? # and @ as % codes in a password, and @ so in an option")
    user, _, hosts = parts.netloc.rpartition("@")
    servers = tuple(f"{parts.scheme}://{host}" for host in hosts.split(",") if host)
    if not servers:
        raise _malformed("the NATS URL names no host")
    for server in servers:
        _check_server(server)
    if parts.path.strip("/") or parts.fragment:
        raise _malformed("after the servers of the NATS URL come only options")
    name, _, password = user.partition(":")
    given = _options(parts.query)
    words = {key: given[key] for key in ("stream", "prefix", "creds", "ca") if key in given}
    return NatsUrl(
        servers=servers,
        options=parts.query,
        user=unquote(name),
        password=unquote(password),
        replicas=cast(int, _number(given, "replicas", int, 1)),
        patience=_number(given, "patience", float, 30.0),
        **words,
    )


def shown_broker(url: str) -> str:
    """A broker's URL as it may be shown: without user, password and token."""
    try:
        return read_nats(url).shown_with_options
    except InvalidSetting:
        return f"{url.partition('://')[0]}://…"


def _malformed(why: str) -> InvalidSetting:
    return InvalidSetting(f"{why}; a NATS URL looks like nats://user:password@host:4222?replicas=3")


def _check_server(server: str) -> None:
    try:
        parts = urlsplit(server)
        is_fit = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit:
        raise _malformed("a server of the NATS URL is host:port, with a port from 1 to 65535")


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if unknown := sorted(given.keys() - set(_OPTIONS)):
        named = ", ".join(key if _WORD.fullmatch(key) else "a word" for key in unknown)
        raise InvalidSetting(
            f"the NATS URL has {named}, which is not known; it may have {', '.join(_OPTIONS)}"
        )
    if len(pairs) > len(given):
        raise InvalidSetting("the NATS URL has an option twice; keep one of them")
    for key in ("stream", "prefix"):
        if key in given and not _WORD.fullmatch(given[key]):
            raise InvalidSetting(
                f"{key} in the NATS URL may have up to 100 letters, digits, _ and -, "
                f"not {given[key][:60]!r}"
            )
    for key in ("creds", "ca"):
        if key in given and not given[key]:
            raise InvalidSetting(f"{key} in the NATS URL is empty; name a file, or leave it out")
    return given


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
        noun = "whole number" if kind is int else "number"
        raise InvalidSetting(
            f"{key} in the NATS URL must be a {noun} above 0, not {given[key][:60]!r}"
        )
    return value
