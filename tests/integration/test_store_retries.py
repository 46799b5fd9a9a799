"""What fails for a moment is tried again, with pauses; what may be stored is not."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest

import holdfast
from holdfast import faults
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreBusy, StoreFull, StoreUnavailable
from holdfast.settings import Settings
from holdfast.stores import retries
from holdfast.telemetry import STORE_RETRIED, Telemetry
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

SETTINGS = Settings(store_retry_seconds=0.001, lease_seconds=60)


@contextmanager
def failing(times: int, error: HoldfastError) -> Generator[list[str]]:
    """Let so many batches fail before they begin."""
    struck: list[str] = []

    def trigger(point: str) -> None:
        if point == "batch.before_begin" and len(struck) < times:
            struck.append(point)
            raise error

    faults.install(trigger)
    try:
        yield struck
    finally:
        faults.install(None)


@pytest.mark.mission("S3-083")
@pytest.mark.parametrize("error", [StoreFull(), StoreUnavailable(), StoreBusy()], ids=repr)
@async_test
async def test_write_that_fails_three_times_is_stored_by_the_fourth_try(
    backend: Backend, error: HoldfastError
) -> None:
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name] += amount

    async with holdfast.open(backend.url, settings=SETTINGS, telemetry=count) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        with failing(3, error) as struck:
            await held.checkpoint()
        assert (len(struck), counts[STORE_RETRIED]) == (3, 3)
        with failing(3, error):  # a late-bound write
            await hf.signal("r", "go", id="once")
        assert [signal.name for signal in await hf.signals.of_run("r")] == ["go"]
    with backend.raw() as raw:
        assert raw.rows("SELECT version FROM checkpoints WHERE run_id = 'r'") == [(1,)]


@pytest.mark.mission("S3-083")
@async_test
async def test_write_that_fails_more_often_is_raised_and_may_be_asked_for_again(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url, settings=SETTINGS) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        with failing(99, StoreFull()) as struck:
            with pytest.raises(StoreFull):
                await held.checkpoint()
            assert len(struck) == 4
        await held.checkpoint()
        assert await hf.journal.verify("r") == []


@async_test
async def test_what_may_be_stored_is_left_to_whoever_knows_how_to_find_out(
    backend: Backend,
) -> None:
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name] += amount

    async with holdfast.open(backend.url, settings=SETTINGS, telemetry=count) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        with failing(1, OutcomeUnknown()), pytest.raises(OutcomeUnknown):
            await held.checkpoint()
        assert counts[STORE_RETRIED] == 0


@pytest.mark.mission("S3-083")
@async_test
async def test_pauses_grow_and_differ_and_end_with_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []
    now = [0.0]

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        now[0] += seconds

    async def fail() -> None:
        now[0] += 1.0
        raise StoreUnavailable

    monkeypatch.setattr(retries.asyncio, "sleep", sleep)
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    settings = Settings(store_retries=4, store_retry_seconds=0.1, busy_timeout_seconds=100)
    with pytest.raises(StoreUnavailable):
        await retries.Retries(settings, Telemetry()).after(fail(), fail)
    assert len(paused) == 4
    for nth, pause in enumerate(paused):
        assert 0.05 * 2**nth <= pause <= 0.15 * 2**nth
    paused.clear()
    impatient = Settings(store_retries=4, store_retry_seconds=0.1, busy_timeout_seconds=0.9)
    with pytest.raises(StoreUnavailable):
        await retries.Retries(impatient, Telemetry()).after(fail(), fail)
    assert paused == []
