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


@pytest.mark.mission("X-008")
@store_suite.async_test
async def test_store_is_sqlite_in_this_folder_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    expected = {None: "sqlite", "memory://": "sqlite", postgres_url: "postgres"}
    for url, backend in expected.items():
        async with holdfast.open(url) as hf:
            await hf.runs.create("a")
            assert (await hf.info()).backend == backend
    async with holdfast.open() as again, holdfast.open("memory://") as fresh:
        assert (await again.runs.get("a")).run_id == "a"
        assert await fresh.runs.list() == [], "it was in memory alone"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == ["holdfast.db"]


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
