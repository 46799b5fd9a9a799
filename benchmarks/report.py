"""Rows of the report: judged against their targets, written as JSON and as a table of the docs."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import postgres, sqlite
from benchmarks.places import STORES
from benchmarks.samples import Stopwatch, percentile

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "performance.md"
_BEGIN = "<!-- benchmarks: begin -->"
_END = "<!-- benchmarks: end -->"
TIMES = "\N{MULTIPLICATION SIGN}"
ANY_STORE = "any"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number. `ratio` is value ÷ floor; the target bounds the ratio if there is one."""

    name: str
    value: float
    unit: str
    store: str = ANY_STORE
    floor: float | None = None
    ratio: float | None = None
    target: float | None = None
    bound: str = "<="
    met: bool | None = None
    note: str = ""


def judged(
    name: str,
    value: float,
    unit: str,
    *,
    floor: float | None = None,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """A row with its ratio, and whether the target is met."""
    ratio = None if floor is None else value / floor
    judged_by = value if ratio is None else ratio
    target = at_most if at_least is None else at_least
    met = None
    if target is not None:
        met = judged_by <= target if at_least is None else judged_by >= target
    return Row(
        name=name,
        value=round(value, 4),
        unit=unit,
        floor=None if floor is None else round(floor, 4),
        ratio=None if ratio is None else round(ratio, 3),
        target=target,
        bound="<=" if at_least is None else ">=",
        met=met,
        note=note,
    )


def tenfold(name: str, stopwatch: Stopwatch, *, limit: float) -> Row:
    """A 99th percentile that should stay below its limit with ten times to spare."""
    p99 = percentile(stopwatch.samples, 99)
    note = f"limit {limit:g} ms, {limit / p99:.1f} times to spare; median {stopwatch.median:.2f} ms"
    return judged(name, p99, "ms", at_most=limit / 10, note=note)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| Number | Store | Value | Floor | Ratio | Target | | Note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    sign = "≤" if row.bound == "<=" else "≥"
    unit = row.unit if row.ratio is None else TIMES
    met = {True: "met", False: "**not met**", None: ""}[row.met]
    return (
        f"`{row.name}`",
        row.store,
        f"{_number(row.value)} {row.unit}",
        "" if row.floor is None else f"{_number(row.floor)} {row.unit}",
        "" if row.ratio is None else f"{row.ratio:.2f} {TIMES}",
        "" if row.target is None else f"{sign} {row.target:g} {unit}",
        met,
        row.note,
    )


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine() -> str:
    """What the numbers were measured on, in general terms."""
    return (
        f"Measured with {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {sqlite.version()}, {postgres.version()}."
    )


def write(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Replace these rows in the results, keep the others, and bring the page up to date."""
    known = {(row.name, row.store): row for row in (*_stored(), *rows)}
    places = [(name, store) for name in names for store in (*STORES, ANY_STORE)]
    ordered = [known[place] for place in places if place in known]
    RESULTS.write_text(json.dumps([asdict(row) for row in ordered], indent=2) + "\n")
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        PAGE.write_text(f"{before}{_BEGIN}\n{machine()}\n\n{table(ordered)}\n{_END}{after}")


def _stored() -> list[Row]:
    return [Row(**row) for row in json.loads(RESULTS.read_text())] if RESULTS.exists() else []
