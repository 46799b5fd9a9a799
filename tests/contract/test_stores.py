"""The store suite on every backend: a backend is a URL here, and nothing else."""

from pathlib import Path

import pytest

import holdfast
from holdfast.clock import Clock
from holdfast.testing import store_suite

BACKENDS = ("sqlite file", "sqlite in memory", "postgres")


class UrlBackend:
    """A store that is named by a URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(
        self, *, clock: Clock | None = None, settings: holdfast.Settings | None = None
    ) -> holdfast.Holdfast:
        return holdfast.open(self._url, clock=clock, settings=settings)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> UrlBackend:
    match request.param:
        case "sqlite file":
            return UrlBackend(str(tmp_path / "store.db"))
        case "sqlite in memory":
            return UrlBackend("memory://")
        case _:
            return UrlBackend(request.getfixturevalue("postgres_url"))


class TestRuns(store_suite.RunsSuite):
    pass


class TestJournal(store_suite.JournalSuite):
    pass


class TestCheckpoints(store_suite.CheckpointsSuite):
    pass


class TestMarks(store_suite.MarksSuite):
    pass


class TestRecords(store_suite.RecordsSuite):
    pass


class TestEffects(store_suite.EffectsSuite):
    pass


class TestWaits(store_suite.WaitsSuite):
    pass


class TestSignals(store_suite.SignalsSuite):
    pass


class TestLeases(store_suite.LeasesSuite):
    pass
