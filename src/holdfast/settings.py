"""Settings: frozen, checked when made, passed explicitly. The only reader of the environment."""

import os
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from holdfast import names
from holdfast.errors import InvalidSetting

DEFAULT_STORE: Final = "holdfast.db"
_MOST: Final = 2**40


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be tuned; every field has a default that is safe."""

    tenant: str = "default"
    lease_seconds: float = 15.0
    busy_timeout_seconds: float = 10.0
    max_body_bytes: int = 64 * 1024 * 1024
    batch_commits: int = 1024
    queue_commits: int = 16_384
    wakeup_poll_seconds: float = 1.0
    reader_threads: int = 4
    pool_connections: int = 8
    idle_transaction_seconds: float = 5.0
    prepared_statements: bool = True
    peer_timeout_seconds: float = 600.0
    transport: str = ""

    def __post_init__(self) -> None:
        names.check(self.tenant, what="tenant")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool and type(value) is not bool:
                raise InvalidSetting(f"{field.name} must be True or False, not {value!r}")
            if field.type in (int, float):
                _check_number(field.name, value, is_whole=field.type is int)


def _check_number(name: str, value: object, *, is_whole: bool) -> None:
    allowed = (int,) if is_whole else (int, float)
    if type(value) not in allowed or not 0 < cast(float, value) < _MOST:
        kind = "whole number" if is_whole else "number"
        raise InvalidSetting(f"{name} must be a {kind} above 0, not {value!r}")


def store_url(given: str | None) -> str:
    """The store to use: the one given, else HOLDFAST_STORE, else `holdfast.db` in this folder."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE


class StoreLocation(NamedTuple):
    """Which backend a URL names, and where: a file's path, "" for memory, or a server's URL."""

    backend: str
    location: str


def shown_store(url: str) -> str:
    """A store's URL or path as it may be shown and logged: without a password."""
    backend, location = locate_store(url)
    if backend != "postgres":
        return location or "memory://"
    parts = urlsplit(location)
    user, at, host = parts.netloc.rpartition("@")
    return f"postgresql://{user.partition(':')[0]}{at}{host}{parts.path}"


def locate_store(url: str) -> StoreLocation:
    """Read a store's URL or path; raises InvalidSetting for what names no store."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return StoreLocation("sqlite", "")
    if separator and scheme in ("postgresql", "postgres"):
        return StoreLocation("postgres", url)
    if separator and scheme != "sqlite":
        raise InvalidSetting(
            f"there is no store for {scheme}://; use a file's path (agents.db), sqlite:///path, "
            "postgresql://user@host/database or memory://"
        )
    path = rest.removeprefix("/") if separator else url
    if not path or "\0" in path:
        raise InvalidSetting("the store's path is empty or has a NUL; name a file, as in agents.db")
    return StoreLocation("sqlite", path)
