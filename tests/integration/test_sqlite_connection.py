"""What a connection to SQLite is set to, and when a batch locks out writers of other processes."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import faults
from holdfast.stores.sqlite.connection import connect
from holdfast.testing.store_suite import async_test


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("synchronous", 3), ("trusted_schema", 0), ("secure_delete", 1)],
)
def test_connection_is_safe_by_its_settings(path: str, pragma: str, value: int) -> None:
    connection = connect(path, busy_timeout_seconds=1)
    assert connection.execute(f"PRAGMA {pragma}").fetchall() == [(value,)]


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.mark.usefixtures("disarmed")
@async_test
async def test_batch_reads_nothing_before_other_writers_are_locked_out(path: str) -> None:
    """Else what it decides by could change before it writes, and SQLite would refuse the write."""
    refused: list[str] = []

    def trigger(name: str) -> None:
        if name == "batch.after_begin":
            other = apsw.Connection(path)
            with pytest.raises(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            refused.append(name)

    async with holdfast.open(path) as hf:
        await hf.runs.create("r")
        faults.install(trigger)
        await hf.runs.cancel("r", by="ann")
        faults.install(None)
        assert (await hf.runs.get("r")).status == "cancelled"
    assert refused
