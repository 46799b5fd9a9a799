"""The keys of a configuration, and a value of one: read from text, checked, safe to show."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from holdfast import settings
from holdfast.config.documents import Node, Scalar
from holdfast.errors import InvalidSetting
from holdfast.settings import Settings

Value = bool | int | float | str
SERVICES: Final = ("sql", "memory")
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,30})(\.\d{1,30})?([eE][-+]?\d{1,4})?", re.ASCII)
_WHOLE: Final = re.compile(r"-?(0|[1-9]\d{0,30})", re.ASCII)
_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\})?"
)
_YES: Final = ("true", "yes", "on")
_NO: Final = ("false", "no", "off")
_NULL: Final = ("", "~", "null")


class ConfigKey(msgspec.Struct, frozen=True):
    """What may be configured: its type, its default, and the variables that override a file."""

    name: str
    kind: type
    default: Value
    variables: tuple[str, ...]
    unmet: Callable[[Value], str | None]
    show: Callable[[str], str] | None = None  # for what may hold a password

    def shown(self, value: Value) -> Value:
        """The value as it may be printed."""
        if self.show is None or not isinstance(value, str) or not value:
            return value
        return self.show(value)


class ValueOrigin(msgspec.Struct, frozen=True):
    """Where a value comes from: `default`, `agents.yaml:4`, `environment: NAME`, `argument`."""

    kind: Literal["default", "file", "environment", "argument"]
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "file":
                return f"{self.place}:{self.line}"
            case "environment":
                return f"environment: {self.place}"
            case _:
                return self.kind


DEFAULT: Final = ValueOrigin("default")


@dataclass(frozen=True)
class Configured:
    """A key's value and where it comes from. Print `shown`: it has no password."""

    key: str
    value: Value = field(repr=False)
    shown: Value
    origin: ValueOrigin
    is_written_out: bool = False  # in a file, without ${…}


class ConfigProblem(msgspec.Struct, frozen=True):
    """What is wrong, or surprising, and where."""

    place: str
    message: str
    line: int = 0
    key: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Unfit(Exception):
    """A value that cannot be used; its text says why."""


def from_node(
    key: ConfigKey, name: str, node: Node, origin: ValueOrigin, environ: Mapping[str, str]
) -> Configured:
    """The value that a file gives a key, there spelled `name`."""
    if not isinstance(node, Scalar):
        raise Unfit(f"{name} {_wanted(key)}, not a list or a block")
    if node.is_plain and node.text.lower() in _NULL:
        raise Unfit(f"{name} has no value; give one, or remove the line")
    if "${" in node.text:
        text = _replaced(node.text, environ)
        return _configured(key, name, _from_text(key, text), origin, written=node.text)
    if key.kind is str and node.is_plain and _is_other(node.text):
        raise Unfit(f"{name} must be text; put {_cut(node.text)} in quotes")
    if key.kind is not str and not node.is_plain:
        raise Unfit(f"{name} {_wanted(key)}; write it without quotes")
    found = _from_text(key, node.text)
    return _configured(key, name, found, origin, written=node.text, is_written_out=True)


def from_variable(key: ConfigKey, variable: str, text: str) -> Configured:
    """The value that an environment variable gives a key."""
    if key.kind is bool and text in ("1", "0"):
        text = "true" if text == "1" else "false"
    origin = ValueOrigin("environment", variable)
    return _configured(key, variable, _from_text(key, text), origin, written=text)


def _configured(
    key: ConfigKey,
    name: str,
    value: Value | None,
    origin: ValueOrigin,
    *,
    written: str,
    is_written_out: bool = False,
) -> Configured:
    unmet = _wanted(key) if value is None else key.unmet(value)
    if value is None or unmet:
        # What is written, never what a variable held; and nothing of what may be a URL.
        shown = f", not {_cut(written)}" if key.show is None and "://" not in written else ""
        raise Unfit(f"{name} {unmet}{shown}")
    return Configured(key.name, value, key.shown(value), origin, is_written_out)


def _from_text(key: ConfigKey, text: str) -> Value | None:
    """Convert the text to the key's type; None if it does not fit."""
    word = text.strip()
    if key.kind is str:
        return text
    if key.kind is bool:
        return True if word.lower() in _YES else False if word.lower() in _NO else None
    if key.kind is int:
        return int(word) if _WHOLE.fullmatch(word) else None
    return float(word) if _NUMBER.fullmatch(word) else None


def _is_other(text: str) -> bool:
    return text.lower() in (*_YES, *_NO) or _NUMBER.fullmatch(text) is not None


def _replaced(text: str, environ: Mapping[str, str]) -> str:
    def replacement(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            raise Unfit("write ${NAME} or ${NAME:-default}; $${ stands for ${ itself")
        value = environ.get(name)
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            raise Unfit(f"the environment variable {name} is not set; set it, or ${{{name}:-…}}")
        return value

    return _REFERENCE.sub(replacement, text)


def _cut(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:59] + "…")


def _wanted(key: ConfigKey) -> str:
    if key.kind is bool:
        return "must be true or false"
    if key.kind is str:
        return "must be text"
    return key.unmet("") or "must be a number"


def _name(value: Value) -> str | None:
    if "://" in str(value):  # a URL that slipped may hold a password: it must not become a name
        return "must not be a URL"
    return settings.requirement("tenant", value)


def _service(value: Value) -> str | None:
    return None if value in SERVICES else f"must be {' or '.join(SERVICES)}"


def _store(value: Value) -> str | None:
    try:
        settings.locate_store(str(value))
    except InvalidSetting:
        return (
            "must name a store: a file's path (agents.db), sqlite:///path, "
            "postgresql://user@host/database or memory://"
        )
    return None


def _keys() -> dict[str, ConfigKey]:
    session = [
        ConfigKey(
            "stateless_checkpointing", bool, False, ("STATELESS_CHECKPOINTING",), lambda value: None
        ),
        ConfigKey("session_service", str, "memory", ("SESSION_SERVICE",), _service),
        ConfigKey(
            "session_db_url",
            str,
            "",
            ("HOLDFAST_STORE", "SESSION_DB_URL"),
            _store,
            settings.shown_store,
        ),
    ]
    of_settings = [_setting(name, kind) for name, kind in settings.TYPES.items()]
    return {key.name: key for key in [*session, *of_settings]}


def _setting(name: str, kind: type) -> ConfigKey:
    variables = [f"HOLDFAST_{name.upper()}", *_SEED_VARIABLES.get(name, ())]
    show = settings.shown_transport if name == "transport" else None

    def unmet(value: Value) -> str | None:
        return settings.requirement(name, value)

    default: Any = getattr(Settings(), name)
    return ConfigKey(name, kind, default, tuple(variables), unmet, show)


_SEED_VARIABLES: Final = {
    "peer_timeout_seconds": ("PEER_TIMEOUT_SECONDS",),
    "sweep_seconds": ("TIMEOUT_SWEEP_INTERVAL_SECONDS",),
}
NAME: Final = ConfigKey("name", str, "", (), _name)
SPELLINGS: Final = {"timeout_sweep_interval_seconds": "sweep_seconds"}
KEYS: Final = _keys()
