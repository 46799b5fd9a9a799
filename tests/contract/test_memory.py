"""The store suite on SQLite in memory: this file supplies the backend, nothing else."""

import pytest

import holdfast
from holdfast.clock import Clock
from holdfast.testing import store_suite


class MemoryBackend:
    def open(
        self, *, clock: Clock | None = None, settings: holdfast.Settings | None = None
    ) -> holdfast.Holdfast:
        return holdfast.open("memory://", clock=clock, settings=settings)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


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
