"""Bad input and bad places: a clear typed error, nothing lost, no SQL in what is said."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IntegrityError,
    InvalidIdentifier,
    InvalidSetting,
    MisuseError,
    RunExists,
    RunNotFound,
    StoreFull,
    StoreNotPermitted,
    StoreUnavailable,
    UnsupportedValue,
)
from holdfast.stores.sqlite import connection
from holdfast.testing.store_suite import async_test

SQL_WORDS = ("SELECT", "INSERT", "UPDATE ", "DELETE FROM", "VALUES")


@pytest.mark.parametrize("url", ["mysql://x", "foo://", "http://example.com/x.db", "sqlite://", ""])
def test_url_that_names_no_store_is_refused_when_it_is_given(url: str) -> None:
    if url == "":
        assert holdfast.open(url) is not None
        return
    with pytest.raises(InvalidSetting, match=r"memory://|name a file"):
        holdfast.open(url)


@async_test
async def test_folder_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreNotPermitted, match="is not a folder; make it"):
        async with holdfast.open(str(tmp_path / "none" / "x.db")):
            pass
    with pytest.raises(StoreNotPermitted, match="is a folder; name a file"):
        async with holdfast.open(str(tmp_path)):
            pass
    assert list(tmp_path.iterdir()) == []


@async_test
async def test_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is a text file, not a database at all. " * 50)
    before = path.read_bytes()
    with pytest.raises(IntegrityError, match="is not a Holdfast store"):
        async with holdfast.open(str(path)):
            pass
    assert path.read_bytes() == before


@async_test
async def test_truncated_file_is_an_integrity_error_not_a_wrong_answer(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with holdfast.open(str(path)) as hf:
        run = await hf.runs.open("a")
        for n in range(50):
            run.append("log", {"n": n, "text": os.urandom(500)})
            await run.checkpoint()
    shutil.copy(path, tmp_path / "copy.db")
    with (tmp_path / "copy.db").open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(HoldfastError) as raised:
        async with holdfast.open(str(tmp_path / "copy.db")) as hf:
            await hf.checkpoints.load("a")
    assert isinstance(raised.value, IntegrityError)


def test_read_only_file_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    code = (
        "import asyncio, concurrent.futures.thread, os, sys, holdfast\n"
        "import holdfast.stores.sqlite.store, holdfast.wakeups.sqlite\n"
        "async def main():\n"
        "    async with holdfast.open(sys.argv[1]) as hf:\n"
        "        await hf.runs.create('b')\n"
        "if sys.argv[2] == 'drop' and os.geteuid() == 0: os.setuid(65534)\n"
        "try: asyncio.run(main())\n"
        "except holdfast.errors.HoldfastError as error: print(type(error).__name__, error)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), "keep"], check=True, timeout=60)
    for folder in [tmp_path, *tmp_path.parents[:4]]:
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    path.chmod(0o444)
    said = subprocess.run(
        [sys.executable, "-c", code, str(path), "drop"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.split()[0] in ("StoreNotPermitted", "StoreUnavailable")
    assert "permissions" in said.stdout or "opened" in said.stdout


def test_full_disk_is_said_and_what_was_acknowledged_is_kept(tmp_path: Path) -> None:
    """The size of files is limited in a child process: its writes fail as on a full disk."""
    path = tmp_path / "x.db"
    code = (
        "import asyncio, os, resource, signal, sys, holdfast\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "async def main():\n"
        "    async with holdfast.open(sys.argv[1]) as hf:\n"
        "        run = await hf.runs.open('a')\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n"
        "        for n in range(10_000):\n"
        "            run.append('log', os.urandom(4000))\n"
        "            try: await run.checkpoint()\n"
        "            except holdfast.errors.UnavailableError as error:\n"
        "                print(n, type(error).__name__, flush=True); os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    count, name = said.stdout.split()
    assert name in (StoreFull.__name__, "OutcomeUnknown", StoreUnavailable.__name__)

    async def check() -> None:
        async with holdfast.open(str(path)) as hf:
            state = await hf.checkpoints.load("a")
            assert len(state["log"]) in (int(count), int(count) + 1)
            assert await hf.journal.verify("a") == []
            run = await hf.runs.open("a", takeover=True)
            run.append("log", "there is room again")
            await run.checkpoint()

    asyncio.run(check())


HOSTILE = [
    "' OR 1=1 --",
    '"; DROP TABLE journal; --',
    "%s %d {0} {}",
    "../../etc/passwd",
    "a" * 255,
    "𝄞 ☃ né",
    "$(touch x)",
    "a b\u00a0c".replace("\u00a0", ""),
]


@pytest.mark.parametrize("name", HOSTILE)
@async_test
async def test_hostile_names_are_only_names(name: str, store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open(name, agent=name)
        run.append(name, name)
        await run.checkpoint(label=name, phase=name)
        (begun,) = await run.begin_effects([holdfast.EffectRequest(tool=name, call_id=name)])
        await run.finish_effect(begun, name)
        await run.open_waits([holdfast.WaitSpec(wait_id=name, name=name, kind=name)], suspend=True)
        await hf.waits.resolve(name, name, by=name)
        assert (await hf.checkpoints.load(name)).parts == {name: [name]}
        assert [c.label for c in await hf.checkpoints.search(label=name)] == [name]
        assert await hf.checkpoints.search(label=name[:-1] + "'") == []
        assert [r.run_id for r in await hf.runs.list(agent=name)] == [name]
        assert await hf.journal.verify(name) == []


@pytest.mark.parametrize("name", ["", "a" * 256, "nul\x00", "line\nbreak", "\ud800", "\u202e", 7])
@async_test
async def test_impossible_names_are_refused_before_anything_is_written(
    name: str, store: str
) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        before = await hf.journal.read("a")
        with pytest.raises(InvalidIdentifier):
            await hf.runs.create(name)
        with pytest.raises(InvalidIdentifier):
            run.append(name, 1)
        with pytest.raises(InvalidIdentifier):
            await hf.waits.resolve(name)
        with pytest.raises(InvalidIdentifier):
            await hf.checkpoints.load(name)
        for listing in (hf.checkpoints.history, hf.checkpoints.with_records):
            with pytest.raises(InvalidIdentifier):
                await listing(name)
        assert await hf.journal.read("a") == before


@given(st.text(max_size=30))
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
def test_no_text_as_a_key_leaks_sql_or_finds_what_it_should_not(store: str, text: str) -> None:
    @async_test
    async def search() -> None:
        async with holdfast.open(store) as hf:
            with contextlib.suppress(RunExists):
                await hf.runs.create("a")
            with contextlib.suppress(InvalidIdentifier):
                assert await hf.checkpoints.search(label=text, agent=text, phase=text) == []
            with pytest.raises((RunNotFound, InvalidIdentifier)) as refused:
                await hf.runs.get(text + "?")
            assert not any(word in str(refused.value).replace(text, "") for word in SQL_WORDS)

    search()


@async_test
async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = connection.connect(str(path), busy_timeout_seconds=1)
    theirs.execute("CREATE TABLE customers (x)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(IntegrityError, match="another program's database"):
        async with holdfast.open(str(path)):
            pass
    assert path.read_bytes() == before


@async_test
async def test_numbers_and_moments_that_cannot_be_are_misuse(store: str) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 -- the mistake that is tested
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        for seconds in (float("inf"), float("nan"), 1e300, -1.0):
            with pytest.raises(MisuseError, match="length of time"):
                await run.release(delay_seconds=seconds)
            with pytest.raises(MisuseError, match="length of time"):
                await run.open_waits([holdfast.WaitSpec(timeout_seconds=seconds)])
            with pytest.raises(MisuseError, match="length of time"):
                await run.begin_effects([holdfast.EffectRequest(tool="t", limit_seconds=seconds)])
        with pytest.raises(MisuseError, match="time zone"):
            await run.open_waits([holdfast.WaitSpec(deadline=naive)])
        for number in (2**70, -1, True, 1.5):
            with pytest.raises(MisuseError, match="whole number"):
                await hf.runs.list(limit=number)  # type: ignore[arg-type]
            with pytest.raises(MisuseError, match="whole number"):
                await hf.checkpoints.load("a", number)  # type: ignore[arg-type]
            with pytest.raises(MisuseError, match="whole number"):
                await hf.journal.read("a", after=number)  # type: ignore[arg-type]
        for note in ("\ud800", "x" * 5000, "\0"):
            with pytest.raises(MisuseError):
                await hf.runs.cancel("a", note=note)
        with pytest.raises(UnsupportedValue, match="Raw is not supported"):
            run.set("x", msgspec.Raw(b"\xc1"))
        with pytest.raises(holdfast.errors.EffectNotFound):
            await hf.effects.get("no id")
        assert (await hf.runs.get("a")).status == "running"


@async_test
async def test_run_that_has_not_ended_has_no_result(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        with pytest.raises(ConflictError, match="run a is running; it has no result yet"):
            await hf.runs.result("a")
        await run.complete("done")
        assert await hf.runs.result("a") == "done"


@async_test
async def test_group_without_waits_is_refused_and_the_run_stays_held(store: str) -> None:
    """Nothing could ever end the group: the run would wait for ever."""
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        before = await hf.journal.read("a")
        for mode in ("all", "any", 1):
            with pytest.raises(MisuseError, match="a group needs at least one wait"):
                await run.open_waits([], mode=mode, suspend=True)
        assert await hf.journal.read("a") == before
        assert (await hf.runs.get("a")).status == "running"


@async_test
async def test_large_values_are_stored_or_refused_whole(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        large = os.urandom(10_000_000).hex()
        run.append("log", large)
        await run.checkpoint()
        assert (await hf.checkpoints.load("a"))["log"] == [large]
        with pytest.raises(MisuseError, match=r"100,000,005 bytes.*max_body_bytes"):
            run.append("log", "x" * 100_000_000)
        with pytest.raises(UnsupportedValue, match="64 bits"):
            await run.record("step", 2**70)
        assert run.version == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"lease_seconds": 0},
        {"tenant": ""},
        {"max_body_bytes": -1},
        {"batch_commits": 1.5},
        {"lease_seconds": float("inf")},
        {"lease_seconds": "60"},
        {"reader_threads": True},
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(bad: dict[str, object]) -> None:
    with pytest.raises((InvalidSetting, InvalidIdentifier)):
        holdfast.Settings(**bad)  # type: ignore[arg-type]


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 22 0:40 / /mnt/share rw - 9p host rw
32 22 0:41 / /mnt/with\\040space rw - nfs4 server:/x rw
33 22 0:42 / /mnt/fuse rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/home/x.db", "ext4", False),
        ("/mnt/share/x.db", "9p", True),
        ("/mnt/with space/deep/x.db", "nfs4", True),
        ("/mnt/fuse/x.db", "fuse.sshfs", True),
        ("/mnt/shared/x.db", "ext4", False),
    ],
)
def test_kind_of_mount_is_found(path: str, kind: str, *, shared: bool) -> None:
    assert connection.filesystem_of(path, MOUNTS) == kind
    assert connection.is_shared_mount(kind) is shared


@async_test
async def test_shared_mount_falls_back_to_delete_mode_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "filesystem_of", lambda *_: "virtiofs")
    path = tmp_path / "x.db"
    async with holdfast.open(str(path)) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        await run.checkpoint()
        assert (await hf.info()).journal_mode == "delete"
        assert (await hf.checkpoints.load("a"))["log"] == [1]
    assert "virtiofs" in caplog.text
    assert not (tmp_path / "x.db-wal").exists()


def test_sqlite_that_can_lose_commits_is_refused() -> None:
    with pytest.raises(StoreUnavailable, match="pip install --upgrade apsw"):
        connection.check_version("3.51.2")
    assert connection.check_version("3.51.3") is None


@async_test
async def test_write_lock_held_by_a_stranger_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    impatient = holdfast.Settings(busy_timeout_seconds=0.2)
    async with holdfast.open(path, settings=impatient) as hf:
        stranger = connection.connect(path, busy_timeout_seconds=1)
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(holdfast.errors.StoreBusy, match="write lock"):
            await hf.runs.create("a")
        stranger.execute("ROLLBACK")
        stranger.close()
        assert (await hf.runs.create("a")).run_id == "a"
