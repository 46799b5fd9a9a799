"""A store with very many waiting runs, quickly: one real run, and copies of its rows.

The copies are what Holdfast would have written, but for their chains, which are those of the first
run and do not verify. So nothing that is measured touches a copy: it goes on around them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import holdfast
from benchmarks.contract import Place, Rows
from holdfast import Holdfast, WaitSpec

_TABLES = ("runs", "journal", "wait_groups", "waits")
_INPUT = {"order_id": 4711, "question": "Where is my parcel, and when will it be here?"}
_MONTH_SECONDS = 30 * 86_400
_FIRST = f"{0:012x}"
_EARLIEST_MOMENT = 10**15  # all smaller integers are counts
_new_numbers = count(10**9)

Row = tuple[Any, ...]


def new_token() -> str:
    """Names a run that is no copy, and lies anywhere among the copies."""
    return _token(next(_new_numbers))


def _token(number: int) -> str:
    """Twelve digits, all over the place, another for each number."""
    return f"{number * 0x9E3779B97F4B % 2**48:012x}"


async def wait(hf: Holdfast, token: str) -> str:
    """Create a run, lease it, and suspend it on one wait; the wait's id."""
    run = await hf.runs.open(f"run-{token}", agent="support", input=_INPUT)
    spec = WaitSpec(wait_id=f"wait-{token}", timeout_seconds=_MONTH_SECONDS)
    await run.open_waits([spec], suspend=True)
    return spec.wait_id


async def fill(place: Place, runs: int) -> str:
    """The URL of a store in which so many runs wait."""
    url = place.new_store()
    async with holdfast.open(url) as hf:
        await wait(hf, _FIRST)
    for table in _TABLES:
        columns, rows = place.rows_of(url, table, f"run-{_FIRST}")
        place.load(url, table, Rows(columns, _copies(list(rows), runs - 1)))
    place.settle(url)
    return url


def _copies(rows: Sequence[Row], runs: int) -> Iterator[Row]:
    """The rows again and again: with other ids, and each time a microsecond later."""
    changes = [_changes(row) for row in rows]
    for number in range(1, runs + 1):
        token = _token(number)
        for row, changed in zip(rows, changes, strict=True):
            copy = list(row)
            for column, change in changed:
                copy[column] = change(number, token)
            yield tuple(copy)


def _changes(row: Row) -> list[tuple[int, Callable[[int, str], Any]]]:
    """The columns of a row that differ in its copies, and how."""
    changes: list[tuple[int, Callable[[int, str], Any]]] = []
    for column, value in enumerate(row):
        if isinstance(value, int) and value > _EARLIEST_MOMENT:
            changes.append((column, lambda number, _, value=value: value + number))
        elif isinstance(value, str) and _FIRST in value:
            changes.append((column, lambda _, token, value=value: value.replace(_FIRST, token)))
        elif isinstance(value, bytes) and (first := _FIRST.encode()) in value:
            before, _, after = value.partition(first)
            changes.append((column, lambda _, token, b=before, a=after: b + token.encode() + a))
    return changes
