"""`make bench` fails by itself if a number that it measures breaks a limit."""

import pytest
from benchmarks import gates
from benchmarks.report import Row


@pytest.mark.parametrize(
    ("name", "value", "ratio", "is_broken"),
    [
        ("record_read_p99", 9.9, None, False),
        ("record_read_p99", 10.1, None, True),
        ("handoff_two_processes", 501, None, True),
        ("sustained_p99", 100.5, None, True),
        ("turn_flatness", 3, 1.05, False),
        ("turn_flatness", 3, 1.15, True),
        ("availability", 99.99, None, False),
        ("availability", 99.98, None, True),
        ("import", 1000, None, False),
    ],
)
def test_limit_that_is_broken_is_named(
    name: str, value: float, ratio: float | None, is_broken: bool
) -> None:
    row = Row(name=name, value=value, unit="ms", store="sqlite", ratio=ratio)
    found = gates.broken([row])
    assert bool(found) is is_broken
    assert all(name in sentence and "sqlite" in sentence for sentence in found)
