"""Commits in a local file, for the time in which the store is away: the format, and who may use it.

A file is a magic word, a head, and one frame for each commit, synced before it is acknowledged:

    length (4) ‖ check (4) ‖ commit (length) ‖ digest (32)

`digest = SHA-256(digest before ‖ length ‖ commit)`; `check` is the beginning of
`SHA-256(digest before ‖ length)`, so that a changed length is not taken for a write that was cut
off. What ends in the middle of a frame was never acknowledged; all else that does not fit is
damage. Entries are as the journal has them, bodies and links included.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import msgspec

from holdfast import faults
from holdfast.errors import InvalidSetting, SpoolCorrupted, SpoolUnusable
from holdfast.kernel import indexes
from holdfast.kernel.journal import Entry, Position
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import Commit

SUFFIX: Final = ".spool"
EVIDENCE: Final = "evidence"
_MAGIC: Final = b"HFSPOOL1"
_START: Final = hashlib.sha256(_MAGIC).digest()
_LENGTH: Final = 4
_CHECK: Final = 4
_DIGEST: Final = 32


class SpoolHeader(msgspec.Struct, frozen=True):
    """Whose commits they are, and who could not store them.

    `why` is set in evidence: what keeps the commits of `run_id` from being stored.
    """

    store_id: str
    tenant: str
    worker: str
    created_at: int
    run_id: str = ""
    why: str = ""


class _SpoolRecord(msgspec.Struct, frozen=True, array_like=True):
    """A commit without what follows from its entries."""

    tenant: str
    run_id: str
    after: tuple[int, bytes]
    entries: list[Entry]
    run: RunRow | None


_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_head: Final = msgspec.msgpack.Decoder(SpoolHeader)
_record: Final = msgspec.msgpack.Decoder(_SpoolRecord)


def encode(commit: Commit) -> bytes:
    """Return a commit in its spooled form."""
    assert not commit.begun, "a run that begins is not spooled"
    after = (commit.after.seq, commit.after.link)
    return _encoder.encode(
        _SpoolRecord(commit.tenant, commit.run_id, after, list(commit.entries), commit.run)
    )


def decode(data: bytes) -> Commit:
    """The same commit; what it does to the indexes follows from its entries."""
    found = _record.decode(data)
    changes = [
        change
        for entry in found.entries
        for change in indexes.changes_of(entry, indexes.facts_of(entry))
    ]
    return Commit(
        found.tenant,
        found.run_id,
        Position(*found.after),
        tuple(found.entries),
        found.run,
        tuple(changes),
    )


class Contents(NamedTuple):
    """What a file holds. `problem` says where it is damaged; commits are those before that.

    `head` is None if the process died before it had made the file.
    """

    head: SpoolHeader | None
    commits: list[Commit]
    is_torn: bool
    problem: str


def read(path: Path) -> Contents:
    """Everything up to the end, or to the first byte that is not what was written."""
    payloads, is_torn, problem = _payloads_of(path.read_bytes())
    commits: list[Commit] = []
    head: SpoolHeader | None = None
    try:
        for payload in payloads:
            if head is None:
                head = _head.decode(payload)
            else:
                commits.append(decode(payload))
    except (msgspec.MsgspecError, LookupError, ValueError) as error:
        problem = problem or f"record {len(commits) + 1} cannot be read: {error}"
    return Contents(head, commits, is_torn, problem)


def check(path: Path, contents: Contents) -> None:
    """Raise SpoolCorrupted if a file is damaged."""
    if contents.problem:
        raise SpoolCorrupted(
            f"{path} is damaged: {contents.problem}; {len(contents.commits)} commits before that "
            "are whole"
        )


def _payloads_of(data: bytes) -> tuple[list[bytes], bool, str]:
    """The frames' contents, whether the last one was cut off, and what is damaged."""
    if not data.startswith(_MAGIC):
        is_beginning = _MAGIC.startswith(data)
        return [], is_beginning, "" if is_beginning else "it does not begin as a spool does"
    payloads: list[bytes] = []
    at, digest = len(_MAGIC), _START
    while at < len(data):
        payload_at = at + _LENGTH + _CHECK
        if payload_at > len(data):
            return payloads, True, ""
        length = data[at : at + _LENGTH]
        if data[at + _LENGTH : payload_at] != _check_of(digest, length):
            return payloads, False, f"the length of the record at byte {at} was changed"
        end = payload_at + int.from_bytes(length, "big")
        if end + _DIGEST > len(data):
            return payloads, True, ""
        payload = data[payload_at:end]
        digest = _digest_of(digest, length, payload)
        if data[end : end + _DIGEST] != digest:
            return payloads, False, f"the record at byte {at} was changed"
        payloads.append(payload)
        at = end + _DIGEST
    return payloads, False, ""


def _check_of(digest: bytes, length: bytes) -> bytes:
    return hashlib.sha256(digest + length).digest()[:_CHECK]


def _digest_of(digest: bytes, length: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(digest + length + payload).digest()


def _frame(digest: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """A frame, and its digest."""
    length = len(payload).to_bytes(_LENGTH, "big")
    after = _digest_of(digest, length, payload)
    return length + _check_of(digest, length) + payload + after, after


class SpoolFile:
    """A file that this process adds to, and that nobody else touches meanwhile."""

    def __init__(self, path: Path, head: SpoolHeader, *, most_bytes: int) -> None:
        self.path = path
        self._most = most_bytes
        framed, self._digest_of_head = _frame(_START, _encoder.encode(head))
        begin = _MAGIC + framed
        self._head_size = self._size = len(begin)
        self._digest = self._digest_of_head
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            _lock(self._file)
            _write(self._file, begin)
            os.fsync(self._file)
            sync_folder(path.parent)
        except OSError as error:
            raise _unusable(path, error) from error

    def append(self, commit: Commit) -> None:
        """Add a commit; it is on disk when this returns. Raises SpoolUnusable, and adds nothing."""
        framed, digest = _frame(self._digest, encode(commit))
        if self._size + len(framed) > self._most:
            raise SpoolUnusable(
                f"{self.path} would be larger than spool_bytes ({self._most:,}); "
                "it is drained when the store is back"
            )
        faults.point("spool.before_write")
        try:
            _write(self._file, framed)
            faults.point("spool.after_write")
            os.fsync(self._file)
        except OSError as error:
            self._take_back()
            raise _unusable(self.path, error) from error
        faults.point("spool.after_sync")
        self._size += len(framed)
        self._digest = digest

    def cut(self) -> None:
        """Forget all commits: they are stored, or kept as evidence."""
        faults.point("spool.before_cut")
        try:
            self._shorten(self._head_size)
            os.fsync(self._file)
        except OSError as error:
            raise _unusable(self.path, error) from error
        self._size, self._digest = self._head_size, self._digest_of_head
        faults.point("spool.after_cut")

    def close(self, *, is_empty: bool) -> None:
        """Release the file; one that holds nothing is removed."""
        if is_empty:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _take_back(self) -> None:
        try:
            self._shorten(self._size)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def _shorten(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)


class LeftFile:
    """A file that a process has left behind, and that nobody else touches meanwhile."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        self.contents = read(path)

    @classmethod
    def claim(cls, path: Path) -> "LeftFile | None":
        """The file, unless a living process adds to it, or somebody drains it."""
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            _lock(file)
            if os.fstat(file).st_nlink:
                return cls(path, file)
        except BlockingIOError:
            pass
        os.close(file)
        return None

    def remove(self) -> None:
        """Everything in it is stored, or kept as evidence."""
        faults.point("spool.before_cut")
        self.path.unlink()
        sync_folder(self.path.parent)
        faults.point("spool.after_cut")

    def keep(self) -> Path:
        """Move it to the evidence unchanged; return its new path."""
        kept = evidence_folder(self.path.parent) / f"{self.path.stem}.damaged{SUFFIX}"
        self.path.rename(kept)
        sync_folder(kept.parent)
        sync_folder(self.path.parent)
        return kept

    def close(self) -> None:
        os.close(self._file)


def is_used(path: Path) -> bool:
    """Whether a process adds to a file, or drains it."""
    claimed = LeftFile.claim(path)
    if claimed is None:
        return path.exists()
    claimed.close()
    return False


def write_evidence(folder: Path, head: SpoolHeader, commits: Sequence[Commit]) -> Path:
    """Keep commits that cannot be stored any more. The same ones are kept once."""
    first = commits[0].entries[0]
    path = evidence_folder(folder) / f"{head.worker}-{first.seq}-{first.link.hex()[:16]}{SUFFIX}"
    data, digest = _MAGIC, _START
    for payload in (_encoder.encode(head), *map(encode, commits)):
        framed, digest = _frame(digest, payload)
        data += framed
    beside = path.with_suffix(".new")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        beside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _unusable(path, error) from error
    faults.point("spool.after_evidence")
    return path


def make_folder(path: Path) -> Path:
    """A folder that only its owner may look into; raises SpoolUnusable."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def evidence_folder(folder: Path) -> Path:
    return make_folder(folder / EVIDENCE)


def files_in(folder: Path) -> list[Path]:
    """Spools that lie in a folder, oldest first."""
    found: Iterable[Path] = folder.glob(f"*{SUFFIX}") if folder.is_dir() else ()
    return sorted(found)


def check_supported() -> ModuleType:
    """Return the module that locks files. Raises InvalidSetting on a system that has none."""
    try:
        import fcntl  # only where it is used: Windows must be able to import this module
    except ImportError as error:
        raise InvalidSetting(
            f"on_store_failure='spool' is not supported on {sys.platform}, which has no fcntl to "
            "lock files with: use 'raise' or 'memory'"
        ) from error
    return fcntl


def _lock(file: int) -> None:
    """Lock an open file for this process. Raises BlockingIOError if another process has it."""
    fcntl = check_supported()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _unusable(path: Path, error: OSError) -> SpoolUnusable:
    return SpoolUnusable(
        f"{path} cannot be used: {error.strerror}; free some space, or name another spool_folder"
    )
