"""Measure, print the table, and bring `results.json` and `docs/performance.md` up to date."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import effects, fan_in, imports, reads, report, saves, sessions, wakeups
from benchmarks.report import Row
from benchmarks.sizes import FULL, QUICK, USUAL, Sizes


class Measurement(NamedTuple):
    """What measures some rows, in an empty folder of its own."""

    names: tuple[str, ...]
    measure: Callable[[Path, Sizes], Coroutine[None, None, list[Row]]]


MEASUREMENTS = (
    Measurement(("turn_save", "stored_bytes", "write_p99"), saves.turn_saves),
    Measurement(("turn_flatness",), saves.turn_flatness),
    Measurement(("resume",), reads.resume),
    Measurement(("history_100", "read_p99", "history_p99"), reads.histories),
    Measurement(("sessions_1000",), sessions.sessions),
    Measurement(("effect",), effects.effect),
    Measurement(("effect_1000_sessions",), sessions.effect_sessions),
    Measurement(tuple(f"fan_in_{size}" for size in FULL.fan_in), fan_in.fan_in),
    Measurement(("wakeup",), wakeups.wakeup),
    Measurement(("import",), imports.imports),
)
NAMES = tuple(name for measurement in MEASUREMENTS for name in measurement.names)


def main() -> None:
    asked = _arguments()
    sizes = QUICK if asked.quick else FULL if asked.full else USUAL
    rows = _measure([m for m in MEASUREMENTS if _is_wanted(m, asked.only)], sizes)
    print(report.table(rows))
    if asked.quick:
        print("quick: smaller sizes, so nothing was written", file=sys.stderr)
    else:
        report.write(rows, NAMES)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one of: " + ", ".join(NAMES))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller sizes; writes nothing")
    size.add_argument("--full", action="store_true", help="more repeats, and a fan-in of 10,000")
    asked = parser.parse_args()
    if asked.only and not any(_is_wanted(m, asked.only) for m in MEASUREMENTS):
        parser.error(f"there is no number {asked.only!r}; one of {', '.join(NAMES)} is")
    return asked


def _is_wanted(measurement: Measurement, only: str | None) -> bool:
    """Whether a measurement has the number asked for; `fan_in` means all of its sizes."""
    if only is None:
        return True
    return any(name == only or name.startswith(f"{only}_") for name in measurement.names)


def _measure(wanted: Sequence[Measurement], sizes: Sizes) -> list[Row]:
    rows: list[Row] = []
    for number, measurement in enumerate(wanted, 1):
        label = ", ".join(measurement.names)
        print(f"[{number}/{len(wanted)}] {label} …", end=" ", file=sys.stderr, flush=True)
        since = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            rows += asyncio.run(measurement.measure(Path(folder), sizes))
        print(f"{time.monotonic() - since:.0f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
