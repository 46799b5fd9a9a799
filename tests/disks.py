"""A disk that loses power: only what SQLite has synced is there afterwards.

Nothing of Holdfast is used here. A SQLite VFS copies each file at the moment its sync has ended,
and forgets a deleted file only if its folder was synced: what was not synced is lost.
"""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from tests.backends import SQLiteRaw

_NAME = "losing-power"


class Disk:
    """What a store's folder would hold if the power failed now."""

    def __init__(self, store: Path, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._cuts = 0
        self.syncs = 0
        self.opened: list[Path] = []
        """All files that SQLite has opened, of whatever store."""
        folder.mkdir()

    def synced(self, path: Path) -> None:
        if path.name.startswith(self._store.name) and path.parent == self._store.parent:
            self.syncs += 1
            shutil.copy2(path, self._folder)

    def deleted(self, path: Path, *, is_synced: bool) -> None:
        if is_synced and path.parent == self._store.parent:
            (self._folder / path.name).unlink(missing_ok=True)

    def rows_after_power_loss(self, sql: str) -> list[tuple[Any, ...]]:
        """Start from what is on the disk, as a machine does after a power cut, and look."""
        self._cuts += 1
        after = self._folder / f"cut-{self._cuts}"
        after.mkdir()
        for file in self._folder.iterdir():
            if file.is_file():
                shutil.copy2(file, after)
        with SQLiteRaw(str(after / self._store.name)) as raw:
            return raw.rows(sql)


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], disk: Disk) -> None:
        super().__init__("unix", name, flags)
        said = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._path, self._disk = Path(said or ""), disk
        disk.opened.append(self._path)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.synced(self._path)


class _PowerLosing(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(_NAME, "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(name, flags, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._disk.deleted(Path(filename), is_synced=bool(syncdir))


@contextmanager
def losing_power(store: Path, folder: Path) -> Generator[Disk]:
    """Let every SQLite file that this process opens from now on be on such a disk."""
    disk = Disk(store, folder)
    vfs = _PowerLosing(disk)
    try:
        yield disk
    finally:
        apsw.set_default_vfs("unix")
        vfs.unregister()
