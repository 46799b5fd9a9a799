"""Opening SQLite so that what is acknowledged is on disk, and saying what went wrong in our words.

WAL and `synchronous=EXTRA`, which is FULL and also syncs the folder after a rollback journal is
deleted: else the journal could come back after a power cut, and undo the commit that it was for.
WAL needs memory shared by all users of the file, which network and host-shared mounts do not give:
there the file is opened in DELETE mode, and that is logged.
"""

import os
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, cast

import apsw

from holdfast.errors import (
    HoldfastError,
    IntegrityError,
    OutcomeUnknown,
    StoreBusy,
    StoreFull,
    StoreNotPermitted,
    StoreUnavailable,
)
from holdfast.stores.rows import Row
from holdfast.stores.sqlite import functions
from holdfast.telemetry import log


class Cursor(Protocol):
    """The rows of one statement."""

    def fetchone(self) -> Row | None: ...
    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


class SqliteConnection(Protocol):
    """What we use of a connection; only this module and the wake-ups know which library it is."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, row: Row = (), /) -> Cursor: ...
    def changes(self) -> int: ...
    def close(self) -> None: ...


APPLICATION_ID: Final = 0x484F4C44  # "HOLD": what a Holdfast store calls itself in its header
MINIMUM_SQLITE: Final = (3, 51, 3)
PAGE_SIZE: Final = 8192
_SHARED_MOUNTS: Final = frozenset(
    {"9p", "virtiofs", "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "vboxsf"}
)


def connect(path: str, *, busy_timeout_seconds: float, read_only: bool = False) -> SqliteConnection:
    """A connection with our guarantees; `path` "" is a store in memory."""
    check_version(library_version())
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    if read_only:
        flags = apsw.SQLITE_OPEN_READONLY
    with translated(path):
        opened = apsw.Connection(path or ":memory:", flags=flags)
        opened.set_busy_handler(_PatientBusyHandler(busy_timeout_seconds))
        # Plans go by the text of a query alone. Else SQLite looks at bound values for partial
        # indexes, and prepares half of our statements anew each time they are executed.
        opened.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # apsw's annotations name a type that Python 3.11 lacks.
        functions.register(cast(functions.Definer, opened))
        connection = cast(SqliteConnection, opened)
        if not read_only:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA trusted_schema = OFF")
        # What is deleted is overwritten: an erased body must not stay in a free page.
        connection.execute("PRAGMA secure_delete = ON")
    return connection


def choose_journal_mode(
    connection: SqliteConnection, path: str, *, busy_timeout_seconds: float
) -> str:
    """WAL where it is safe; DELETE, with a line in the log, where it is not."""
    filesystem = filesystem_of(path, _mountinfo()) if path else ""
    mode = "delete" if is_shared_mount(filesystem) else "wal"
    with translated(path):
        chosen = _set_journal_mode(connection, mode, _PatientBusyHandler(busy_timeout_seconds))
    if path and chosen != "wal":
        log.warning(
            "%s lies on %s, where write-ahead logging corrupts files: using journal mode %s, "
            "which is slower; put the store on a local disk",
            path,
            filesystem or "a file system without shared memory",
            chosen,
        )
    return chosen


def _set_journal_mode(
    connection: SqliteConnection, mode: str, patience: "_PatientBusyHandler"
) -> str:
    """Ask until it is granted: SQLite calls no busy handler while others use a file in DELETE mode.

    That is so when several processes open a new file at once.
    """
    tries = 0
    while True:
        try:
            return str(connection.execute(f"PRAGMA journal_mode = {mode}").fetchall()[0][0])
        except apsw.BusyError:
            if not patience(tries):
                raise
            tries += 1


def check_is_ours(connection: SqliteConnection, path: str) -> None:
    """Raise unless the file is empty or a Holdfast store: another program's is left alone."""
    with translated(path):
        named = connection.execute("PRAGMA application_id").fetchall()[0][0]
        tables = [row[1] for row in connection.execute("PRAGMA table_list")]
    is_empty = all(name.startswith("sqlite_") for name in tables)
    if named != APPLICATION_ID and not is_empty:
        raise IntegrityError(
            f"{path} is another program's database, not a Holdfast store; name another file"
        )


def library_version() -> str:
    return apsw.sqlite_lib_version()


def check_version(found: str) -> None:
    version = tuple(int(part) for part in found.split("."))
    if version < MINIMUM_SQLITE:
        raise StoreUnavailable(
            f"SQLite {found} can lose commits when several processes write; "
            f"{'.'.join(map(str, MINIMUM_SQLITE))} or newer is needed: pip install --upgrade apsw"
        )


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except FileNotFoundError:
        return ""  # not Linux
    except OSError as error:
        raise StoreUnavailable(f"the mounts of this machine could not be read: {error}") from error


def filesystem_of(path: str, mountinfo: str) -> str:
    """The type of the file system a path lies on, from the text of /proc/self/mountinfo."""
    wanted = Path(os.path.realpath(path))
    best: tuple[int, str] = (-1, "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].replace("\\040", " "))
        if wanted.is_relative_to(mount) and len(mount.parts) >= best[0]:
            best = (len(mount.parts), right.split()[0])
    return best[1]


def is_shared_mount(filesystem: str) -> bool:
    return filesystem in _SHARED_MOUNTS or filesystem.startswith("fuse")


class _PatientBusyHandler:
    """Waits for the write lock in short random steps, so that waiting processes take turns."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        if now - self._since > self._timeout:
            return False
        time.sleep(random.uniform(0.0002, 0.002))
        return True


_ERRORS: Final[tuple[tuple[type[Exception], type[HoldfastError], str], ...]] = (
    (apsw.FullError, StoreFull, "there is no room left for {path}; nothing was written"),
    (apsw.BusyError, StoreBusy, "another process held the write lock of {path} for too long"),
    (apsw.LockedError, StoreBusy, "another process held the write lock of {path} for too long"),
    (apsw.ReadOnlyError, StoreNotPermitted, "{path} may not be written; check its permissions"),
    (apsw.CantOpenError, StoreUnavailable, "{path} cannot be opened; does its folder exist?"),
    (apsw.PermissionsError, StoreNotPermitted, "{path} may not be used; check its permissions"),
    (apsw.AuthError, StoreNotPermitted, "{path} may not be used; check its permissions"),
    (apsw.NotADBError, IntegrityError, "{path} is not a Holdfast store; name another file"),
    (apsw.CorruptError, IntegrityError, "{path} is damaged; restore it from a backup"),
    (apsw.IOError, OutcomeUnknown, "reading or writing {path} failed"),
    (apsw.TooBigError, StoreFull, "a row is larger than SQLite stores"),
)


@contextmanager
def translated(path: str) -> Generator[None]:
    """Raise SQLite's errors as ours; its own words go along as the cause, never any SQL."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translation(error, path) from error


def translation(error: apsw.Error | UnicodeDecodeError, path: str) -> HoldfastError:
    """Return our error for one of SQLite's."""
    path = path or "memory://"
    if isinstance(error, UnicodeDecodeError):
        return IntegrityError(f"{path} holds text that is not UTF-8")
    for theirs, ours, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(message.format(path=path))
    return StoreUnavailable(f"SQLite refused a statement on {path} ({type(error).__name__})")
