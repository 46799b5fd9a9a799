"""A spool gives back what was put in; whatever is done to its bytes, nothing else."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import ids
from holdfast.errors import SpoolCorrupted, SpoolUnusable
from holdfast.kernel import checkpoints, runs
from holdfast.kernel.journal import Draft, Kind, NoFacts, Origin, Position
from holdfast.stores import spool_files
from holdfast.stores.contract import Commit
from holdfast.stores.entry_sealer import seal_all
from holdfast.stores.spool_files import LeftFile, SpoolFile, SpoolHeader

HEAD = SpoolHeader("store", "default", "w1", 5)
WORKER = ids.new_worker_id()


def commits(count: int, *, size: int = 3) -> list[Commit]:
    """Commits of one run, each after the one before."""
    origin = Origin("default", "r", WORKER, 1)
    created = Draft(Kind.RUN_CREATED, runs.RunCreated("agent"), b"\x01")
    begun = seal_all(
        None,
        Position(0, bytes(32)),
        [created, Draft(Kind.RUN_LEASED, runs.RunLeased(WORKER))],
        origin,
    )
    run, position, made = begun.run, begun.position, list[Commit]()
    for nth in range(count):
        facts = checkpoints.CheckpointCreated(ids.uuid7(), nth + 1, nth, 0, label=f"v{nth + 1}")
        drafts = [
            Draft(Kind.STEP_RECORDED, checkpoints.Step("model"), b"x" * size),
            Draft(Kind.STATE_VALUES, NoFacts(), b"\x80"),
            Draft(Kind.CHECKPOINT_CREATED, facts, b"\x93\x80\x80\x90"),
        ]
        sealed = seal_all(run, position, drafts, origin)
        changed = None if sealed.run is run else sealed.run
        made.append(
            Commit("default", "r", position, tuple(sealed.entries), changed, tuple(sealed.changes))
        )
        run, position = sealed.run, sealed.position
    return made


def spooled(path: Path, given: list[Commit]) -> bytes:
    file = SpoolFile(path, HEAD, most_bytes=2**30)
    for commit in given:
        file.append(commit)
    file.close(is_empty=False)
    return path.read_bytes()


def test_commits_come_back_as_they_were_with_what_they_do_to_the_indexes(tmp_path: Path) -> None:
    given = commits(3)
    spooled(tmp_path / "a.spool", given)
    found = spool_files.read(tmp_path / "a.spool")
    assert found == (HEAD, given, False, "")
    assert [len(commit.changes) for commit in found.commits] == [
        len(commit.changes) for commit in given
    ]
    assert given[0].changes


def test_file_and_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = spool_files.make_folder(tmp_path / "deep" / "spool")
    spooled(folder / "a.spool", commits(1))
    evidence = spool_files.write_evidence(folder, HEAD, commits(1))
    assert (folder.stat().st_mode & 0o777, evidence.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    for path in (folder / "a.spool", evidence):
        assert path.stat().st_mode & 0o777 == 0o600


def test_file_that_was_cut_is_used_from_its_beginning_again(tmp_path: Path) -> None:
    given = commits(3)
    file = SpoolFile(tmp_path / "a.spool", HEAD, most_bytes=2**30)
    file.append(given[0])
    file.append(given[1])
    file.cut()
    assert spool_files.read(file.path).commits == []
    file.append(given[2])
    assert spool_files.read(file.path) == (HEAD, [given[2]], False, "")
    file.cut()
    file.close(is_empty=True)
    assert not file.path.exists()


def test_file_of_any_length_gives_the_commits_that_are_whole(tmp_path: Path) -> None:
    """A write that is cut off anywhere was not acknowledged; those before it were."""
    given, path = commits(3), tmp_path / "a.spool"
    ends = [len(spooled(tmp_path / f"{n}.spool", given[:n])) for n in range(4)]
    data = (tmp_path / "3.spool").read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        found = spool_files.read(path)
        whole = sum(end <= length for end in ends[1:])
        assert found.commits == given[:whole]
        assert (found.head is None) == (length < ends[0])
        assert not found.problem
        assert found.is_torn == (length not in (len(b"HFSPOOL1"), *ends)), length


def test_changed_byte_is_found_wherever_it_lies(tmp_path: Path, is_chaos: bool) -> None:
    """Every byte in every way with --chaos, else every byte in one."""
    given, path = commits(3), tmp_path / "a.spool"
    ends = [len(spooled(tmp_path / f"{n}.spool", given[:n])) for n in range(4)]
    data = (tmp_path / "3.spool").read_bytes()
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF) if is_chaos else (1 << at % 8,):
            changed = bytearray(data)
            changed[at] ^= flip
            path.write_bytes(changed)
            found = spool_files.read(path)
            assert found.commits == given[: sum(end <= at for end in ends[1:])], at
            with pytest.raises(SpoolCorrupted, match="is damaged"):
                spool_files.check(path, found)


def moved(data: bytes, ends: list[int]) -> bytes:
    """The same records in another order."""
    return data[: ends[0]] + data[ends[1] : ends[2]] + data[ends[0] : ends[1]] + data[ends[2] :]


def left_out(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[1]] + data[ends[2] :]


def doubled(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[1]] + data[ends[0] :]


def zeroed(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[2]] + bytes(len(data) - ends[2])


@pytest.mark.parametrize("attack", [moved, left_out, doubled, zeroed])
def test_records_that_were_moved_doubled_or_left_out_are_found(
    tmp_path: Path, attack: Callable[[bytes, list[int]], bytes]
) -> None:
    given, path = commits(3), tmp_path / "a.spool"
    ends = [len(spooled(tmp_path / f"{n}.spool", given[:n])) for n in range(4)]
    path.write_bytes(attack((tmp_path / "3.spool").read_bytes(), ends))
    found = spool_files.read(path)
    assert found.problem
    assert found.commits == given[: len(found.commits)]


def test_file_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "a.spool", HEAD, most_bytes=2**30)
    file.append(commits(1)[0])
    assert LeftFile.claim(file.path) is None
    assert spool_files.is_used(file.path)
    file.close(is_empty=False)
    assert not spool_files.is_used(file.path)
    left = LeftFile.claim(file.path)
    assert left is not None
    assert LeftFile.claim(file.path) is None
    left.remove()
    left.close()
    assert LeftFile.claim(file.path) is None


def test_spool_that_is_full_adds_nothing_and_stays_whole(tmp_path: Path) -> None:
    given = commits(2, size=1000)
    room = len(spooled(tmp_path / "a.spool", given[:1])) + 100
    file = SpoolFile(tmp_path / "b.spool", HEAD, most_bytes=room)
    file.append(given[0])
    with pytest.raises(SpoolUnusable, match="larger than spool_bytes"):
        file.append(given[1])
    assert spool_files.read(file.path).commits == given[:1]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_disk_without_room_is_told_and_what_was_half_written_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    given = commits(3)
    file = SpoolFile(tmp_path / "a.spool", HEAD, most_bytes=2**30)
    file.append(given[0])
    real = os.write

    def full(number: int, *args: bytes) -> int:
        if args:
            real(number, bytes(args[0])[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(SpoolUnusable, match="No space left"):
            file.append(given[1])
    assert spool_files.read(file.path) == (HEAD, given[:1], False, "")
    file.append(given[1])
    assert spool_files.read(file.path) == (HEAD, given[:2], False, "")


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable, match="cannot be used"):
        spool_files.make_folder(tmp_path / "file" / "spool")


def test_same_evidence_is_kept_once(tmp_path: Path) -> None:
    given = commits(2)
    head = SpoolHeader("store", "default", "w1", 5, "r", "somebody was first")
    first = spool_files.write_evidence(tmp_path, head, given)
    assert spool_files.write_evidence(tmp_path, head, given) == first
    assert spool_files.files_in(tmp_path / "evidence") == [first]
    assert spool_files.read(first) == (head, given, False, "")
