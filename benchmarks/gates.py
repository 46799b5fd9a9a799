"""Limits that a release must keep: `make bench` fails if a number that it measured breaks one.

Targets in the table are goals and may be missed; these may not.
"""

from collections.abc import Iterable
from typing import Final

from benchmarks.report import Row

MOST: Final = {
    "write_p99": 100.0,
    "record_write_p99": 100.0,
    "read_p99": 10.0,
    "record_read_p99": 10.0,
    "history_p99": 100.0,
    "record_history_p99": 100.0,
    "sustained_p99": 100.0,
    "turn_flatness": 1.1,
    "handoff_one_process": 500.0,
    "handoff_two_processes": 500.0,
}
LEAST: Final = {"availability": 99.99}


def broken(rows: Iterable[Row]) -> list[str]:
    """A sentence for each number that breaks its limit."""
    found: list[str] = []
    for row in rows:
        number = row.value if row.ratio is None else row.ratio
        if row.name in MOST and number > MOST[row.name]:
            found.append(f"{row.name} on {row.store} is {number:g}, at most {MOST[row.name]:g}")
        if row.name in LEAST and number < LEAST[row.name]:
            found.append(f"{row.name} on {row.store} is {number:g}, at least {LEAST[row.name]:g}")
    return found
