"""Secrets: named in a definition, read where they are used, and stored nowhere.

`{{ secrets.token }}` gives a *reference*, a text in place of the value. What is stored, logged and
shown has the reference; the block replaces it with the value at the last moment, and removes every
known value from what comes back.

Anyone who can read a run can write such a text. So expressions get references with a mark that is
new in each pass over a run and stored nowhere: what comes with data cannot have it.
"""

import re
import secrets as random_secrets
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from holdfast import settings
from holdfast.errors import BlockFailed, NotDone
from holdfast.telemetry import log
from holdfast.workflows.access.redaction import REDACTED, SHORTEST, Redaction, coded
from holdfast.workflows.definitions import expressions

T = TypeVar("T")

Source = Callable[[str], str | None]
"""Returns the value of a secret by its name, or None if it does not exist."""

AS_THEY_ARE: Final = "secrets can only be put in as they are"
_OPEN, _CLOSE = "\u27ea", "\u27eb"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_BEGUN: Final = re.compile(f"{_OPEN}secret ([0-9a-f]+)")
_LARGEST: Final = 64 * 1024


def no_secrets(_: str) -> str | None:
    """A source without secrets."""
    return None


def environment_secrets() -> Source:
    """Secrets in variables: `token` is HOLDFAST_SECRET_TOKEN, or else WORKFLOW_SECRET_TOKEN."""
    return settings.secret


def file_secrets(folder: str | Path) -> Source:
    """Secrets in files, one in each, with its name: as Docker and Kubernetes mount them.

    One line ending at the end of a file is not part of its secret.
    """
    root = Path(folder)

    def read(name: str) -> str | None:
        if name.startswith(".") or not _NAME.fullmatch(name):
            return None
        try:
            with (root / name).open("rb") as file:
                raw = file.read(_LARGEST + 1)
            text = raw.decode()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BlockFailed(
                f"the file of secret {name!r} cannot be read as text ({type(error).__name__})"
            ) from None
        if len(raw) > _LARGEST:
            raise BlockFailed(f"the file of secret {name!r} has over {_LARGEST:,} bytes")
        return text.removesuffix("\n").removesuffix("\r")

    return read


def named_in(definition: object) -> set[str]:
    """Return the secrets that the expressions of a definition name literally."""
    found: set[str] = set()

    def look(text: str) -> str:
        if "secrets" in text:
            found.update(_named_in_text(text))
        return text

    _each_text(definition, look)
    return found


def _named_in_text(text: str) -> Iterator[str]:
    try:
        for path in expressions.paths_in(text):
            if len(path) > 1 and path[0] == "secrets" and path[1] is not None:
                yield path[1]
    except (expressions.SyntaxProblem, RecursionError):
        return  # it cannot be evaluated either


class SecretReference:
    """A secret as expressions see it: it can be put into a text, and nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __holdfast_plain__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return f"{self._text}{other}"

    def __radd__(self, other: object) -> str:
        return f"{other}{self._text}"

    def __eq__(self, other: object) -> bool:
        raise BlockFailed(f"{AS_THEY_ARE}: they cannot be compared")

    __hash__ = object.__hash__

    def __int__(self) -> int:
        raise BlockFailed(f"{AS_THEY_ARE}: they are texts, not numbers")

    __float__ = __int__


class _SecretMark:
    """Distinguishes references from texts that look like one."""

    def __init__(self, seal: str) -> None:
        self._seal = seal
        self.pattern = re.compile(f"{_OPEN}secret {re.escape(seal)} ({_NAME.pattern}){_CLOSE}")
        self._codes = {code for code in coded(seal.encode()) if code}

    def reference(self, name: str) -> str:
        return f"{_OPEN}secret {self._seal} {name}{_CLOSE}"

    def is_changed(self, text: str) -> bool:
        """Whether a text has a part of a reference that is no longer whole."""
        rest = self.pattern.sub("", text)
        lowered = rest.lower()
        is_changed = (
            self._seal in lowered
            or self._seal[::-1] in lowered
            or any(code in rest for code in self._codes)
            or any(self._seal.startswith(each) for each in _BEGUN.findall(rest))
        )
        return bool(self._seal) and is_changed


class Secrets:
    """The secrets of one run. `seal` marks its references where they are stored.

    `named` are those that its definitions name: no others are given. Their values are removed from
    everything, also before they are used here, since what was used before a crash may come back
    after it. None: any may be named.
    """

    def __init__(self, source: Source, seal: str, *, named: Collection[str] | None = None) -> None:
        self._source = source
        self._stored = _SecretMark(seal)
        self._fresh = _SecretMark(random_secrets.token_hex(16))
        self._values: dict[str, str] = {}
        self._named = None if named is None else frozenset(named)
        self._expected = set(named or ())
        self._redaction = Redaction(())

    def reference(self, name: str) -> SecretReference:
        """Return the reference to a secret for stored data."""
        self._check_name(name)
        return SecretReference(self._stored.reference(name))

    def fresh_reference(self, name: str) -> SecretReference:
        """Return the reference to a secret for expressions, until `sealed`."""
        self._check_name(name)
        return SecretReference(self._fresh.reference(name))

    def sealed(self, rendered: T) -> T:
        """Return the values of expressions in the form to store.

        Raises BlockFailed if a reference was changed, or came with data.
        """
        return _each_text(rendered, self._sealed)

    def names_in(self, value: object) -> set[str]:
        """Return the secrets that are referred to anywhere in a value."""
        found: set[str] = set()

        def look(text: str) -> str:
            found.update(self._stored.pattern.findall(text), self._fresh.pattern.findall(text))
            return text

        _each_text(value, look)
        return found

    def check(self, value: object) -> None:
        """Raise BlockFailed if a reference was changed: it would be sent without its value."""
        _each_text(value, self._checked)

    def reveal(self, value: T) -> T:
        """Replace references by their secrets; raises BlockFailed if one is not available."""
        self.check(value)
        return _each_text(value, self._revealed)

    def redact(self, value: T) -> T:
        """Remove every secret that is known here, in any form."""
        self._load_expected()
        return _each_text(value, self._redaction.redact, self._redaction.is_secret_number)

    @property
    def longest(self) -> int:
        """How many bytes at a cut may be a piece of a secret."""
        self._load_expected()
        return self._redaction.longest

    def redact_error(self, error: Exception) -> Exception:
        """Return an error without secrets in its texts: itself, or a replacement."""
        if not self._tells(error):
            return error
        said = self.redact(str(error))
        kind = NotDone if isinstance(error, NotDone) else type(error)
        try:
            made = kind(said)
        except Exception:
            made = BlockFailed(f"{type(error).__name__}: {said}")
        return BlockFailed(said) if self._tells(made) else made

    def _tells(self, error: Exception) -> bool:
        texts = [*traceback.format_exception(error), str(error), repr(error)]
        return any(self.redact(each) != each for each in texts)

    def _revealed(self, text: str) -> str:
        return self._stored.pattern.sub(lambda found: self._value_of(found[1]), text)

    def _sealed(self, text: str) -> str:
        if self._stored.pattern.search(text) or self._stored.is_changed(text):
            raise BlockFailed(
                "a reference to a secret came with data, such as an answer or an output; only a "
                "definition can name secrets"
            )
        self._checked(text)
        return self._fresh.pattern.sub(lambda found: self._stored.reference(found[1]), text)

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - expressions give anything
            raise BlockFailed(f"{name!r:.80} names no secret: letters, digits, _ . and - do")
        if self._named is not None and name not in self._named:
            raise BlockFailed(
                f"the definition does not name secret {name!r:.80} as it is; write secrets.NAME"
            )

    def _value_of(self, name: str) -> str:
        self._check_name(name)
        if name not in self._values:
            value = self._source(name)
            if value is None:
                raise BlockFailed(
                    f"there is no secret {name!r} here; give it to the kit: Kit(secrets=...)"
                )
            if len(value.strip()) < SHORTEST:
                raise BlockFailed(
                    f"secret {name!r} has fewer than {SHORTEST} characters: it cannot be told "
                    "from other texts, and so not be kept out of what is stored"
                )
            self._know({name: value})
        return self._values[name]

    def _know(self, found: Mapping[str, str]) -> None:
        self._values |= found
        self._redaction = Redaction(self._values.values())

    def _load_expected(self) -> None:
        if not self._expected:
            return
        names = self._expected - self._values.keys()
        self._expected.clear()
        found: dict[str, str] = {}
        for name in names:
            try:
                value = self._source(name)
            except Exception:
                log.warning("secret %s cannot be read", name)
                continue
            if value is not None and len(value.strip()) >= SHORTEST:
                found[name] = value
        if found:
            self._know(found)

    def _checked(self, text: str) -> str:
        if self._stored.is_changed(text) or self._fresh.is_changed(text):
            raise BlockFailed(f"{AS_THEY_ARE}: no filter and no slice can be applied to them")
        return text


def _each_text(
    value: T, change: Callable[[str], str], is_secret: Callable[[float], bool] | None = None
) -> T:
    """Return the value with all its texts changed, and its secret numbers removed."""
    made: Any = value
    if isinstance(value, str):
        changed = change(value)
        made = value if changed == value else changed
    elif isinstance(value, bytes | bytearray):
        changed = change(value.decode("utf-8", "surrogateescape"))
        made = changed.encode("utf-8", "surrogateescape")
    elif isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        made = {
            _each_text(key, change, is_secret): _each_text(item, change, is_secret)
            for key, item in entries.items()
        }
    elif isinstance(value, list | tuple | set | frozenset):
        made = [_each_text(item, change, is_secret) for item in cast("list[Any]", value)]
    elif is_secret and isinstance(value, int | float) and not isinstance(value, bool):
        made = REDACTED if is_secret(value) else value
    return made
