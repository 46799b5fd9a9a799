"""Bearer tokens in a file that has their digests only: `NAME SCOPES SHA256 [EXPIRES]` per line.

SCOPES have commas between them; `-` means no scopes. Several lines of one NAME are several tokens
of the same principal. The file is read again when it has changed: removed lines no longer count.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from mcp.server.auth.provider import AccessToken

from holdfast import clock, names
from holdfast.errors import MisuseError, NotFoundError

_PREFIX: Final = "hf_"
_NONE: Final = "-"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SCOPE: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_log = logging.getLogger("holdfast.mcp")


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """A token as the file has it; `expires_at` in seconds since 1970."""

    name: str
    scopes: tuple[str, ...]
    digest: str
    expires_at: int | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises ValueError, which says what is wrong."""
        words = text.split()
        if len(words) not in (3, 4):
            raise ValueError("a line is NAME SCOPES SHA256 [EXPIRES]")
        name, scopes, digest = words[:3]
        if not _DIGEST.fullmatch(digest):
            raise ValueError("the third word must be the SHA-256 of a token, in 64 hex digits")
        expires = _moment(words[3]) if len(words) == 4 else None
        parts = () if scopes == _NONE else tuple(scopes.split(","))
        return cls(name=_fit(name), scopes=_fit_scopes(parts), digest=digest, expires_at=expires)

    def __str__(self) -> str:
        words = [self.name, ",".join(self.scopes) or _NONE, self.digest]
        if self.expires_at is not None:
            words.append(clock.to_datetime(self.expires_at * clock.MICROSECONDS).isoformat())
        return " ".join(words)


class TokenFile:
    """Verifies tokens by a file. Raises NotFoundError or MisuseError if it cannot be used."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[int, ...] = ()
        self._lines: list[TokenLine] = []
        self._look()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the owner of a token; None if it is unknown or has expired."""
        try:
            self._look()
        except (NotFoundError, MisuseError, OSError) as error:
            _log.error("no token is accepted: %s", error)
            return None
        digest = _digest(token)
        found = [line for line in self._lines if hmac.compare_digest(line.digest, digest)]
        now = clock.wall() // clock.MICROSECONDS
        for line in found:
            if line.expires_at is None or now < line.expires_at:
                return AccessToken(
                    token=token,
                    client_id=line.name,
                    scopes=list(line.scopes),
                    expires_at=line.expires_at,
                )
        return None

    def _look(self) -> None:
        """Read the file, if it has changed since."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            raise NotFoundError(
                f"there is no file {self._path} of tokens; `holdfast mcp token NAME --file "
                f"{self._path}` makes one"
            ) from None
        seen = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
        if seen != self._seen:
            _check_mode(self._path, status.st_mode)
            self._lines = _lines_of(self._path)
            self._seen = seen


def add(
    path: str | Path, name: str, *, scopes: Sequence[str] = (), lifetime: timedelta | None = None
) -> tuple[str, TokenLine]:
    """Return a new token after its line is in the file; create the file if needed."""
    token = _PREFIX + secrets.token_urlsafe(32)
    seconds = None if lifetime is None else round(lifetime.total_seconds())
    try:
        line = TokenLine(
            name=_fit(name),
            scopes=_fit_scopes(tuple(scopes)),
            digest=_digest(token),
            expires_at=None if seconds is None else clock.wall() // clock.MICROSECONDS + seconds,
        )
    except ValueError as error:
        raise MisuseError(str(error)) from None
    _append(Path(path), str(line))
    return token, line


def _append(path: Path, line: str) -> None:
    if path.exists():
        _check_mode(path, path.stat().st_mode)
        _lines_of(path)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        file.seek(0)
        content = file.read()
        torn = b"" if not content or content.endswith(b"\n") else b"\n"
        file.write(torn + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _lines_of(path: Path) -> list[TokenLine]:
    found: list[TokenLine] = []
    whole = path.read_text(encoding="utf-8", errors="replace")
    for number, text in enumerate(whole.splitlines(), start=1):
        entry = text.partition("#")[0].strip()
        if not entry:
            continue
        try:
            found.append(TokenLine.read(entry))
        except ValueError as error:
            raise MisuseError(f"{path}, line {number}: {error}") from None
    return found


def _check_mode(path: Path, mode: int) -> None:
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise MisuseError(
            f"others may write to {path}, and so make tokens of their own; chmod go-w {path}"
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _fit(name: str) -> str:
    is_fit = 0 < len(name) <= names.MAX_LENGTH and name.isprintable()
    if not is_fit or " " in name or "#" in name:
        raise ValueError(
            f"a name is 1 to {names.MAX_LENGTH} printable characters, without spaces and #"
        )
    return name


def _fit_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    for scope in scopes:
        if scope == _NONE or not _SCOPE.fullmatch(scope):
            raise ValueError(f"{scope!r:.80} is no scope; write scopes with commas between them")
    return scopes


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r:.80} is no moment with a time zone, as 2027-01-31T00:00:00Z is")
    return clock.from_datetime(moment) // clock.MICROSECONDS
