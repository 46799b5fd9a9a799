"""A Holdfast as a file says: its store, its settings, and how long its sweeper sleeps."""

from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Run, Settings, config, sync
from holdfast.engine import sweeper
from holdfast.engine.waits import WaitSpec
from holdfast.testing.store_suite import async_test
from tests.backends import Backend


@holdfast.agent
async def greet(run: Run, name: str) -> str:
    return f"hello {name}"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "agents.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)


@pytest.mark.mission("S0-072", "S0-073")
@async_test
async def test_run_is_in_the_store_that_the_file_names(unopened: Backend, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "stateless_checkpointing: true",
        "session_service: sql",
        f"session_db_url: {unopened.url!r}",
        "agents: {support: {tenant: acme}, research: {tenant: other}}",
    )
    for _ in range(2):  # its schema is made, then found
        async with Holdfast.from_config(path, agents=[greet], agent="support") as hf:
            assert await hf.run(greet, "Ann", run_id="r") == "hello Ann"
    async with holdfast.open(unopened.url, settings=Settings(tenant="acme")) as there:
        assert await there.runs.result("r") == "hello Ann"
    async with Holdfast.from_config(path, agents=[greet], agent="research") as hf:
        assert await hf.run(greet, "Bob", run_id="r") == "hello Bob"


@pytest.mark.mission("S0-071")
@async_test
async def test_without_checkpointing_a_run_ends_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "session_service: sql", "session_db_url: agents.db")
    for _ in range(2):
        async with Holdfast.from_config(path, agents=[greet]) as hf:
            assert await hf.run(greet, "Ann", run_id="r") == "hello Ann"
            assert (await hf.info()).url == "memory://"
            assert [run.run_id for run in await hf.runs.list()] == ["r"]
    assert [found.name for found in tmp_path.iterdir()] == ["agents.yaml"]


def test_blocking_face_is_configured_in_the_same_way(tmp_path: Path) -> None:
    lines = ("stateless_checkpointing: on", "session_service: sql")
    path = written(tmp_path, *lines, f"session_db_url: {str(tmp_path / 'agents.db')!r}")
    with sync.Holdfast.from_config(config.load(path), agents=[greet]) as hf:
        assert hf.run(greet, "Ann", run_id="r") == "hello Ann"
    with sync.Holdfast.from_config(path) as hf:
        assert hf.runs.result("r") == "hello Ann"


@pytest.mark.mission("S0-115")
@async_test
async def test_sweep_interval_only_bounds_the_sleep(store: str) -> None:
    environ = {
        "STATELESS_CHECKPOINTING": "true",
        "SESSION_SERVICE": "sql",
        "SESSION_DB_URL": store,
        "TIMEOUT_SWEEP_INTERVAL_SECONDS": "7200",
        "HOLDFAST_WAKEUP_POLL_SECONDS": "9999",
    }
    seldom = config.load(None, environ=environ)
    often = config.load(None, environ=environ | {"TIMEOUT_SWEEP_INTERVAL_SECONDS": "10"})
    async with Holdfast.from_config(seldom) as hf, Holdfast.from_config(often) as other:
        assert await sweeper.sweep(hf._context) == 7200
        run = await hf.runs.open("r", agent="greet")
        await run.open_waits([WaitSpec(wait_id="w", timeout_seconds=3600)], suspend=True)
        # It wakes when the wait is due, however long it might sleep.
        assert 0 < await sweeper.sweep(hf._context) <= 3600
        assert await sweeper.sweep(other._context) == 10
