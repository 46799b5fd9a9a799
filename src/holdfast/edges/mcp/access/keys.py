"""Keys that seal what clients bring back when they were asked something. They are never shown.

Every server that a client may come back to needs the same ones: replicas, and this one after a
restart. The first seals, and all open, so that a new one can be brought in before the old one goes.
"""

import logging
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast import settings
from holdfast.errors import InvalidSetting, MisuseError, NotFoundError

LEAST_BYTES: Final = 32
_FILE: Final = "mcp.key"
_MAKE: Final = 'python -c "import secrets; print(secrets.token_hex(32))"'
_log = logging.getLogger("holdfast.mcp")


def find(file: str | Path | None = None) -> list[str]:
    """The keys of a file, else those of HOLDFAST_MCP_KEYS, else one made for this user."""
    if file is not None:
        return _read(Path(file))
    if given := settings.mcp_keys():
        checked(given, where=settings.MCP_KEYS)
        return given
    return _own()


def checked(keys: Sequence[str | bytes], *, where: str = "keys") -> None:
    """Raises InvalidSetting for keys that do not seal well, without showing them."""
    plain = [each.encode() if isinstance(each, str) else each for each in keys]
    for number, key in enumerate(plain, start=1):
        if len(key) < LEAST_BYTES:
            raise InvalidSetting(
                f"key {number} of {where} has {len(key)} bytes, and needs {LEAST_BYTES}; make one "
                f"with {_MAKE}"
            )
    if len(set(plain)) < len(plain):
        raise InvalidSetting(f"a key of {where} is there twice; name each once")


def _read(path: Path) -> list[str]:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path} of keys; {_MAKE} prints one") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise MisuseError(f"others may read the keys in {path}; chmod go= {path}")
    keys = [line for each in text.splitlines() if (line := each.strip())]
    if not keys:
        raise InvalidSetting(f"there is no key in {path}; {_MAKE} prints one")
    checked(keys, where=str(path))
    return keys


def _own() -> list[str]:
    """This user's own key, made once; processes that start together agree on it."""
    folder = settings.state_folder()
    try:
        if folder is None:
            raise FileNotFoundError("there is no home folder")
        path = folder / _FILE
        if not path.exists():
            _make(path)
    except OSError as error:
        _log.warning(
            "no key can be kept (%s): what is asked in a form before a restart must be answered "
            "with the tools after it; set %s to keep one",
            error,
            settings.MCP_KEYS,
        )
        return [secrets.token_hex(LEAST_BYTES)]
    return _read(path)


def _make(path: Path) -> None:
    """Create the file atomically with a whole key, unless another process was first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{_FILE}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(LEAST_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
