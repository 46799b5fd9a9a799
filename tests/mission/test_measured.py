"""What the seeds limit is measured: the published results of `make bench` keep each limit.

These are no timed tests: they judge what was measured when the results were last published, by
limits that are written here once more. The report says how many times there are to spare.
"""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results.json"
STORES = ("sqlite", "postgres")


def measured(name: str) -> dict[str, float]:
    """The published value of a number for each store."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {row["store"]: row["ratio"] or row["value"] for row in rows if row["name"] == name}
    assert set(found) == set(STORES), f"{name} is not published for {STORES}"
    return found


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param("write_p99", 100, marks=pytest.mark.mission("S3-007", "S3-077")),
        pytest.param("record_write_p99", 100, marks=pytest.mark.mission("S3-007", "S3-077")),
        pytest.param("record_read_p99", 10, marks=pytest.mark.mission("S3-053", "S3-078")),
        pytest.param("read_p99", 10, marks=pytest.mark.mission("S1-080")),
        pytest.param("history_p99", 100, marks=pytest.mark.mission("S3-054", "S3-079")),
        pytest.param("record_history_p99", 100, marks=pytest.mark.mission("S3-054", "S3-079")),
        pytest.param("sustained_p99", 100, marks=pytest.mark.mission("S3-165", "S3-204")),
        pytest.param("turn_flatness", 1.1, marks=pytest.mark.mission("S3-165")),
        pytest.param("handoff_one_process", 500, marks=pytest.mark.mission("S3-200")),
        pytest.param("handoff_two_processes", 500, marks=pytest.mark.mission("S3-200")),
    ],
)
def test_limit_is_kept(name: str, limit: float) -> None:
    for store, value in measured(name).items():
        assert 0 < value <= limit, f"{name} on {store}"
