"""Measure, print the table, and bring `results.json` and `docs/performance.md` up to date."""

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks import (
    availability,
    cadence,
    effects,
    fan_in,
    gates,
    handoffs,
    imports,
    mcp,
    plans,
    reads,
    records,
    report,
    saves,
    sessions,
    waiting,
    wakeups,
    workflows,
)
from benchmarks.contract import Place
from benchmarks.places import STORES, open_place
from benchmarks.report import Row
from benchmarks.sizes import FULL, QUICK, USUAL, Sizes


class Measurement(NamedTuple):
    """What measures some rows: for each store, or once for all."""

    names: tuple[str, ...]
    measure: Callable[[Place, Sizes], Coroutine[None, None, list[Row]]]
    is_of_a_store: bool = True


MEASUREMENTS = (
    Measurement(("turn_save", "stored_bytes", "write_p99"), saves.turn_saves),
    Measurement(("turn_flatness",), saves.turn_flatness),
    Measurement(("resume",), reads.resume),
    Measurement(("history_100", "read_p99", "history_p99"), reads.histories),
    Measurement(("sessions_1000",), sessions.sessions),
    Measurement(("effect",), effects.effect),
    Measurement(("effect_1000_sessions",), sessions.effect_sessions),
    Measurement(fan_in.names(FULL), fan_in.fan_in),
    Measurement(("wakeup",), wakeups.wakeup),
    Measurement(cadence.NAMES, cadence.cadences),
    Measurement(("new_store_plans",), plans.of_new_store),
    Measurement(waiting.names(FULL.waiting), waiting.waiting),
    Measurement(workflows.NAMES, workflows.workflows),
    Measurement(records.NAMES, records.records),
    Measurement(handoffs.NAMES, handoffs.handoffs),
    Measurement(availability.NAMES, availability.availability),
    Measurement(mcp.NAMES, mcp.mcp),
    Measurement(("import",), imports.imports, is_of_a_store=False),
)
NAMES = tuple(name for measurement in MEASUREMENTS for name in measurement.names)


def main() -> int:
    asked = _arguments()
    sizes = QUICK if asked.quick else FULL if asked.full else USUAL
    wanted = [m for m in MEASUREMENTS if _is_wanted(m, asked.only)]
    stores = STORES if asked.store == "both" else (asked.store,)
    broken: list[str] = []
    for store in stores:
        is_last = store == stores[-1]
        rows = _measure(store, [m for m in wanted if m.is_of_a_store or is_last], sizes)
        print(report.table(rows), flush=True)
        if not asked.quick:
            report.write(rows, NAMES)
        broken += gates.broken(rows)
    if asked.quick:
        print("quick: smaller sizes, so nothing was written", file=sys.stderr)
    for limit in broken:
        print(f"limit broken: {limit}", file=sys.stderr)
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--store", choices=(*STORES, "both"), default="both")
    parser.add_argument("--only", metavar="NAME", help="one of: " + ", ".join(NAMES))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller sizes; writes nothing")
    size.add_argument(
        "--full",
        action="store_true",
        help="more repeats, and 1,000,000 waiting runs",
    )
    asked = parser.parse_args()
    if asked.only and not any(_is_wanted(m, asked.only) for m in MEASUREMENTS):
        parser.error(f"there is no number {asked.only!r}; one of {', '.join(NAMES)} is")
    return asked


def _is_wanted(measurement: Measurement, only: str | None) -> bool:
    """Whether a measurement has the number asked for; `fan_in` means all of its sizes."""
    if only is None:
        return True
    return any(name == only or name.startswith(f"{only}_") for name in measurement.names)


def _measure(store: str, wanted: Sequence[Measurement], sizes: Sizes) -> list[Row]:
    rows: list[Row] = []
    began = time.monotonic()
    with open_place(store) as place:
        for number, measurement in enumerate(wanted, 1):
            label = f"{store} [{number}/{len(wanted)}] {measurement.names[0]}"
            print(f"{label} …", end=" ", file=sys.stderr, flush=True)
            since = time.monotonic()
            gc.collect()
            gc.freeze()  # as `holdfast worker` does
            measured = asyncio.run(measurement.measure(place, sizes))
            place.clear()
            if measurement.is_of_a_store:
                measured = [replace(row, store=store) for row in measured]
            rows += measured
            print(f"{time.monotonic() - since:.0f} s", file=sys.stderr)
    print(f"{store}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows


if __name__ == "__main__":
    sys.exit(main())
