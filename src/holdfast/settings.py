"""Settings: frozen, checked when made, passed explicitly. The only reader of the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from holdfast import names
from holdfast.broker_urls import is_broker, read_nats, shown_broker
from holdfast.errors import InvalidSetting

DEFAULT_STORE: Final = "holdfast.db"
CORRUPTIONS: Final = ("ancestor", "block")
STORE_FAILURES: Final = ("raise", "memory", "spool")
SECRETS: Final = ("HOLDFAST_SECRET_", "WORKFLOW_SECRET_")
MCP_KEYS: Final = "HOLDFAST_MCP_KEYS"
_KEPT_BACK: Final = frozenset(
    {"HOLDFAST_STORE", "HOLDFAST_TRANSPORT", "WORKFLOW_CHECKPOINT_DSN", MCP_KEYS}
)
_LEAST_WINDOW: Final = 1000
_MOST: Final = 2**40
_STORES: Final = ("sqlite:///", "postgresql://", "postgres://")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be tuned; every field has a default that is safe."""

    tenant: str = "default"
    lease_seconds: float = 15.0
    shutdown_seconds: float = 10.0
    busy_timeout_seconds: float = 10.0
    store_retries: int = 3
    store_retry_seconds: float = 0.05
    max_body_bytes: int = 64 * 1024 * 1024
    batch_commits: int = 1024
    queue_commits: int = 16_384
    wakeup_poll_seconds: float = 1.0
    reader_threads: int = 4
    pool_connections: int = 8
    idle_transaction_seconds: float = 5.0
    prepared_statements: bool = True
    peer_timeout_seconds: float = 600.0
    sweep_seconds: float = 10.0
    transport: str = field(default="", repr=False)  # it may hold a password
    on_store_failure: str = "raise"
    on_corruption: str = "ancestor"
    scrub_seconds: float = 3600.0
    breaker_runs: int = 5
    breaker_seconds: float = 5.0
    spool_folder: str = ""
    spool_bytes: int = 256 * 1024 * 1024
    model_windows: str = ""

    def __post_init__(self) -> None:
        names.check(self.tenant, what="tenant")
        for name in TYPES:
            value = getattr(self, name)
            if unmet := requirement(name, value):
                shown = "" if name == "transport" else f", not {value!r}"
                raise InvalidSetting(f"{name} {unmet}{shown}")

    @property
    def windows(self) -> dict[str, int]:
        """The windows of models in tokens, by the beginnings of their names."""
        pairs = (each.rpartition("=") for each in self.model_windows.split(",") if each.strip())
        return {name.strip().lower(): int(tokens) for name, _, tokens in pairs}


TYPES: Final[dict[str, type]] = {each.name: cast(type, each.type) for each in fields(Settings)}


def requirement(name: str, value: object) -> str | None:
    """What a setting's value must be, if this one is not: `must be a number above 0`."""
    kind = TYPES[name]
    if kind is bool:
        return None if type(value) is bool else "must be True or False"
    if kind in (int, float):
        allowed = (int,) if kind is int else (int, float)
        is_fit = type(value) in allowed and 0 < cast(float, value) < _MOST
        noun = "whole number" if kind is int else "number"
        return None if is_fit else f"must be a {noun} above 0"
    if not isinstance(value, str):
        return "must be text"
    return _TEXTS[name](value)


def _tenant(value: str) -> str | None:
    is_fit = 0 < len(value) <= names.MAX_LENGTH and value.isprintable()
    return None if is_fit else f"must be 1 to {names.MAX_LENGTH} printable characters"


def _store_failure(value: str) -> str | None:
    return None if value in STORE_FAILURES else "must be raise, memory or spool"


def _spool_folder(value: str) -> str | None:
    is_fit = not value or (os.path.isabs(value) and value.isprintable())
    return None if is_fit else "must be empty, or the absolute path of a folder"


def _transport(value: str) -> str | None:
    if not value or value.startswith(_STORES):
        return None
    if not is_broker(value):
        return "must be empty, a broker's URL (nats://127.0.0.1:4222) or a store's"
    try:
        read_nats(value)
    except InvalidSetting as error:
        return f"must be a broker's URL without mistakes: {error}"
    return None


def _model_windows(value: str) -> str | None:
    for each in filter(None, map(str.strip, value.split(","))):
        name, _, tokens = each.rpartition("=")
        if not (name.strip() and tokens.strip().isdecimal() and int(tokens) >= _LEAST_WINDOW):
            return f"must be MODEL=TOKENS, with commas between them and {_LEAST_WINDOW} or more"
    return None


def _corruption(value: str) -> str | None:
    return None if value in CORRUPTIONS else f"must be {' or '.join(CORRUPTIONS)}"


_TEXTS: Final = {
    "tenant": _tenant,
    "transport": _transport,
    "on_store_failure": _store_failure,
    "on_corruption": _corruption,
    "spool_folder": _spool_folder,
    "model_windows": _model_windows,
}


def environment() -> Mapping[str, str]:
    """Return the present environment variables of this process."""
    return dict(os.environ)


def secret(name: str) -> str | None:
    """A secret of workflows: HOLDFAST_SECRET_NAME, else WORKFLOW_SECRET_NAME; None without one."""
    suffix = re.sub(r"[^A-Za-z0-9]", "_", name).upper()
    return next(
        (found for each in SECRETS if (found := os.environ.get(f"{each}{suffix}")) is not None),
        None,
    )


def command_environment() -> dict[str, str]:
    """The environment for commands that workflows run: without the secrets of others.

    The addresses of stores and brokers are left out too, as they may have passwords, and keys.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SECRETS) and name not in _KEPT_BACK
    }


def mcp_keys() -> list[str]:
    """The keys of MCP servers: HOLDFAST_MCP_KEYS, with commas between them; none if it is empty."""
    entries = os.environ.get(MCP_KEYS, "").split(",")
    return [key for each in entries if (key := each.strip())]


def state_folder() -> Path | None:
    """Where this user's programs keep what they make: XDG_STATE_HOME, else ~/.local/state.

    None for a user without a home.
    """
    folder = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if os.path.isabs(folder):
        return Path(folder, "holdfast")
    return Path(home, ".local", "state", "holdfast") if os.path.isabs(home) else None


def spool_folder(given: str = "") -> Path:
    """Where commits are spooled: the folder given, else `spool` in the state folder.

    Raises InvalidSetting for a user without a home.
    """
    folder = state_folder()
    if given:
        return Path(given)
    if folder is None:
        raise InvalidSetting("this user has no home: name a spool_folder")
    return folder / "spool"


def store_url(given: str | None) -> str:
    """The store to use: the one given, else HOLDFAST_STORE, else `holdfast.db` in this folder."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE


def checkpoint_store_url(given: Mapping[str, str] | None = None) -> str | None:
    """Where checkpoints of workflows go, by WORKFLOW_CHECKPOINT_BACKEND and _DSN; None: in memory.

    Raises InvalidSetting for a backend that is not known, and for a DSN that does not fit it.
    """
    variables = os.environ if given is None else given
    backend = variables.get("WORKFLOW_CHECKPOINT_BACKEND", "").strip().lower()
    dsn = variables.get("WORKFLOW_CHECKPOINT_DSN", "").strip()
    backend = _CHECKPOINT_BACKENDS.get(backend, backend)
    if backend not in ("", "memory", "sqlite", "postgres"):
        raise InvalidSetting(
            f"WORKFLOW_CHECKPOINT_BACKEND must be memory, sqlite or postgres, not {backend!r}"
        )
    if not dsn:
        if backend in ("", "memory"):
            return None
        raise InvalidSetting(
            f"WORKFLOW_CHECKPOINT_BACKEND is {backend}, and WORKFLOW_CHECKPOINT_DSN does not say "
            f"where: set it, as in {_CHECKPOINT_DSNS[backend]}"
        )
    named, location = locate_store(dsn)
    named = named if location else "memory"
    if backend and named != backend:
        raise InvalidSetting(
            f"WORKFLOW_CHECKPOINT_BACKEND is {backend}, and WORKFLOW_CHECKPOINT_DSN names a store "
            f"of {named}: {shown_store(dsn)}; change one of the two"
        )
    return None if named == "memory" else dsn


_CHECKPOINT_BACKENDS: Final = {"postgresql": "postgres", "in-memory": "memory"}
_CHECKPOINT_DSNS: Final = {
    "sqlite": "sqlite:///checkpoints.db",
    "postgres": "postgresql://user@host/workflows",
}


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
    if _is_torn(location):
        return "postgresql://…"
    return f"postgresql://{user.partition(':')[0]}{at}{host}{parts.path}"


def shown_transport(url: str) -> str:
    """A transport's URL as it may be shown and logged: without user, password and token."""
    return shown_store(url) if url.startswith(_STORES) else shown_broker(url)


def _is_torn(url: str) -> bool:
    """Whether a URL does not end its login where it means to: a password has a bare / ? or #."""
    parts = urlsplit(url)
    return "@" in parts.path + parts.query + parts.fragment


def locate_store(url: str) -> StoreLocation:
    """Read a store's URL or path; raises InvalidSetting for what names no store."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return StoreLocation("sqlite", "")
    if separator and scheme in ("postgresql", "postgres"):
        try:
            urlsplit(url)
        except ValueError:
            raise InvalidSetting(
                "the store's URL cannot be read; write postgresql://user:password@host/database, "
                "with % codes for special characters of the password"
            ) from None
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
