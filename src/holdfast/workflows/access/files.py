"""The folder whose files the blocks of workflows may read and write.

A path is looked up first, links and all; then it is walked again without following any, folder by
folder: what is changed in between cannot lead outside.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast import ids
from holdfast.errors import BlockFailed

# Windows lacks these flags and must still import this module; `_parent` refuses it.
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_FOLDER: Final[int] = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
_READ: Final[int] = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)  # it may be a pipe
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW


class Folder:
    """A folder, and nothing outside it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Return the path of a file; raises BlockFailed for one outside the folder."""
        root = self.root.resolve()
        try:
            found = (root / name).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise BlockFailed(f"{name!r} is no path: {error}") from error
        if not found.is_relative_to(root):
            raise BlockFailed(f"{name} lies outside the folder of the workflow")
        return found

    def directory(self, name: str) -> Path:
        """Return the path of a folder within it; raises BlockFailed if it does not exist."""
        found = self.path(name)
        if not found.is_dir():
            raise BlockFailed(f"there is no folder {name!r} in the folder of the workflow")
        return found

    def shown(self, path: Path) -> str:
        """Return a path relative to the folder."""
        return path.relative_to(self.root.resolve()).as_posix()

    def matches(self, pattern: str) -> list[str]:
        """Return the files that match a pattern (`src/**/*.py`), sorted, without those outside."""
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise BlockFailed(f"{pattern} lies outside the folder of the workflow")
        root = self.root.resolve()
        return sorted(self._within(root.glob(pattern)))

    def _within(self, found: Iterator[Path]) -> Iterator[str]:
        root = self.root.resolve()
        for each in found:
            if each.is_file() and each.resolve().is_relative_to(root):
                yield each.relative_to(root).as_posix()

    def read(self, name: str, *, at_most: int) -> bytes | None:
        """Return the content of a file, None if it does not exist; raises BlockFailed if larger."""
        try:
            with self._parent(name) as (parent, last):
                file = os.open(last, _READ, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BlockFailed(f"{name} cannot be read: {error.strerror}") from None
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise BlockFailed(f"{name} is no file")
            content = opened.read(at_most + 1)
        if len(content) > at_most:
            raise BlockFailed(f"{name} has over {at_most:,} bytes")
        return content

    def write(
        self, name: str, content: bytes, *, mode: int | None = None, overwrite: bool = True
    ) -> None:
        """Write a file, all of it or nothing; create the folders that are missing.

        An existing file keeps its mode unless `mode` is given. It is an error unless `overwrite`
        is true.
        """
        try:
            with self._parent(name, create=True) as (parent, last):
                _write(parent, last, content, mode, overwrite=overwrite)
        except FileExistsError:
            raise BlockFailed(
                f"{name} is there and has another content; nothing was written. Say "
                "overwrite: true to put this in its place"
            ) from None
        except OSError as error:
            raise BlockFailed(f"{name} cannot be written: {error.strerror}") from None

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Generator[tuple[int, str]]:
        """Open the folder of a file; yield it and the file's name in it."""
        if os.open not in os.supports_dir_fd:
            raise BlockFailed(
                f"blocks cannot read or write files on {sys.platform}, which cannot open a file "
                "relative to an open folder: run workflows with file blocks on Linux or macOS"
            )
        root = self.root.resolve()
        parts = self.path(name).relative_to(root).parts
        if not parts:
            raise BlockFailed(f"{name} is the folder of the workflow, not a file in it")
        at = os.open(root, _FOLDER)
        try:
            for part in parts[:-1]:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                below = os.open(part, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
            yield at, parts[-1]
        finally:
            os.close(at)


def _write(parent: int, name: str, content: bytes, mode: int | None, *, overwrite: bool) -> None:
    """Write beside the file, then replace it: a crash leaves the old or the new."""
    beside = f".{name[:100]}.{ids.uuid7().hex}.part"
    file = os.open(beside, _NEW, 0o666 if mode is None else mode, dir_fd=parent)
    try:
        with open(file, "wb") as opened:
            kept = _mode_of(parent, name) if mode is None else mode
            if kept is not None:
                os.fchmod(opened.fileno(), kept)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        if overwrite:
            os.replace(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            os.link(beside, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            os.unlink(beside, dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=parent)
        raise
    os.fsync(parent)


def _mode_of(parent: int, name: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None
