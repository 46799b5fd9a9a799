"""Cleaning again and again: what is logged, what goes on after errors, and how it is stopped."""

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.compat.workflow_stores import (
    Cleaner,
    InMemoryCheckpointStore,
    StoredCheckpoints,
    periodic_cleanup,
    periodic_cleanup_async,
)
from holdfast.sync.checkpoint_store import SqlCheckpointStore, open_checkpoint_store
from holdfast.testing.store_suite import async_test
from tests.workflows.checkpointing import aged, state

SOON = 0.0001
"""An interval, in minutes."""


class Rounds:
    """Something that expires: each round gives the next answer, and the last one stops it."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)
        self.ages: list[float] = []
        self.stop = threading.Event()

    def cleanup_expired(self, max_age_hours: float = 24) -> int:
        self.ages.append(max_age_hours)
        answer = self._answers.pop(0)
        if not self._answers:
            self.stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.mission("S1-065")
def test_cleanup_goes_on_after_an_error_and_logs_what_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="holdfast")
    rounds = Rounds(2, errors.StoreUnavailable("the store is away"), 0, ValueError("odd"), 3)
    periodic_cleanup(rounds, SOON, max_age_hours=48, stop=rounds.stop)
    assert rounds.ages == [48] * 5
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "Cleaned up 2 expired checkpoints"),
        ("ERROR", "Checkpoint cleanup failed: the store is away"),
        ("ERROR", "Checkpoint cleanup failed: odd"),
        ("INFO", "Cleaned up 3 expired checkpoints"),
    ]


class Waiting(threading.Event):
    """Tells how long somebody would have waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


@pytest.mark.mission("S1-064", "S1-065")
def test_cleanup_comes_every_hour_for_what_is_a_day_old_unless_it_is_told_otherwise() -> None:
    rounds = Rounds(0, 0)
    rounds.stop = stop = Waiting()
    periodic_cleanup(rounds, stop=stop)
    assert rounds.ages == [24, 24]
    assert stop.seconds == [3600, 3600]


def test_cleanup_that_was_stopped_before_it_began_does_nothing() -> None:
    rounds = Rounds(0)
    rounds.stop.set()
    periodic_cleanup(rounds, stop=rounds.stop)
    assert rounds.ages == []


@pytest.mark.mission("S1-005")
def test_cleaner_is_a_thread_that_ends_with_its_block() -> None:
    store = InMemoryCheckpointStore()
    cleaned = threading.Event()

    class Watched:
        def cleanup_expired(self, max_age_hours: float = 24) -> int:
            count = store.cleanup_expired(max_age_hours)
            cleaned.set()
            return count

    store.save(state(**aged(30, store.now())))
    with Cleaner(Watched(), interval_minutes=60):
        assert cleaned.wait(60)
    assert store.list() == []
    assert "holdfast-cleaner" not in {thread.name for thread in threading.enumerate()}


def test_cleaner_that_was_never_started_can_be_stopped() -> None:
    rounds = Rounds(0)
    Cleaner(rounds).stop()
    assert rounds.ages == []


@pytest.mark.parametrize("minutes", [0, -1, "60", None, float("nan"), float("inf"), True])
def test_interval_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(errors.MisuseError, match="interval_minutes"):
        Cleaner(Rounds(0), minutes)
    with pytest.raises(errors.MisuseError, match="interval_minutes"):
        periodic_cleanup(Rounds(0), minutes)


@pytest.mark.mission("S1-005")
@async_test
async def test_cleanup_runs_as_a_task_beside_others(store: str) -> None:
    async with holdfast.open(store) as hf:
        checkpoints = StoredCheckpoints(hf)
        await checkpoints.save(state("old", **aged(30, checkpoints.now())))
        await checkpoints.save(state("new", **aged(1, checkpoints.now())))
        cleaning = asyncio.create_task(periodic_cleanup_async(checkpoints, SOON))
        async with asyncio.timeout(60):
            while len(await checkpoints.list()) > 1:
                await asyncio.sleep(0)
        cleaning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cleaning
        assert [s.checkpoint_id for s in await checkpoints.list()] == ["new"]


# Which store the environment names.

BACKEND, DSN = "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(BACKEND, raising=False)
    monkeypatch.delenv(DSN, raising=False)
    return monkeypatch


@pytest.mark.parametrize("backend", [None, "", "memory", "Memory"])
def test_store_is_in_memory_by_default(
    environment: pytest.MonkeyPatch, backend: str | None
) -> None:
    if backend is not None:
        environment.setenv(BACKEND, backend)
    assert isinstance(open_checkpoint_store(), InMemoryCheckpointStore)


@pytest.mark.mission("S1-061", "S1-077", "S1-078")
@pytest.mark.parametrize("is_named", [True, False])
def test_store_is_the_one_that_the_environment_names(
    environment: pytest.MonkeyPatch, store: str, is_named: bool
) -> None:
    if is_named:
        environment.setenv(BACKEND, "postgres" if store.startswith("postgres") else "sqlite")
    environment.setenv(DSN, store)
    checkpoints = open_checkpoint_store()
    assert isinstance(checkpoints, SqlCheckpointStore)
    with checkpoints:
        checkpoints.save(state())
    with SqlCheckpointStore(store) as other:
        assert other.load("c-1") == state()


@pytest.mark.mission("S1-077", "S1-078")
@pytest.mark.parametrize(
    ("backend", "dsn", "told"),
    [
        ("redis", None, "must be memory, sqlite or postgres, not 'redis'"),
        ("sqlite", None, "WORKFLOW_CHECKPOINT_DSN does not say where"),
        ("postgres", "", "as in postgresql://user@host/workflows"),
        ("postgres", "sqlite:///c.db", "names a store of sqlite: c.db"),
        ("sqlite", "postgresql://u:secret@h/w", "names a store of postgres: postgresql://u@h/w"),
        ("memory", "postgresql://u:secret@h/w", "is memory, and WORKFLOW_CHECKPOINT_DSN names"),
        ("sqlite", "memory://", "names a store of memory"),
        ("", "redis://h", "there is no store for redis://"),
    ],
)
def test_environment_that_contradicts_itself_is_refused(
    environment: pytest.MonkeyPatch, tmp_path: Path, backend: str, dsn: str | None, told: str
) -> None:
    environment.chdir(tmp_path)
    environment.setenv(BACKEND, backend)
    if dsn is not None:
        environment.setenv(DSN, dsn)
    with pytest.raises(errors.InvalidSetting) as refused:
        open_checkpoint_store()
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
