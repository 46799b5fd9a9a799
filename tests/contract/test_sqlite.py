"""The store suite on a SQLite file: this file supplies the backend, nothing else."""

from pathlib import Path

import pytest

import holdfast
from holdfast.clock import Clock
from holdfast.testing import store_suite


class FileBackend:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(
        self, *, clock: Clock | None = None, settings: holdfast.Settings | None = None
    ) -> holdfast.Holdfast:
        return holdfast.open(str(self._path), clock=clock, settings=settings)


@pytest.fixture
def backend(tmp_path: Path) -> FileBackend:
    return FileBackend(tmp_path / "store.db")


class TestRuns(store_suite.RunsSuite):
    pass


class TestJournal(store_suite.JournalSuite):
    pass


class TestCheckpoints(store_suite.CheckpointsSuite):
    pass


class TestEffects(store_suite.EffectsSuite):
    pass


class TestWaits(store_suite.WaitsSuite):
    pass


class TestLeases(store_suite.LeasesSuite):
    pass
