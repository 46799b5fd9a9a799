"""HoldfastSaver beside LangGraph's own savers, in one run: `make bench-langgraph`.

Prints a table and brings its section of `docs/performance.md` up to date.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import report
from benchmarks.contract import Place
from benchmarks.graphs import (
    LISTED,
    SAVERS,
    THREAD,
    async_saver_of,
    graph_on,
    saver_of,
    says,
    texts,
)
from benchmarks.places import STORES, open_place
from benchmarks.processes import ask
from benchmarks.samples import Stopwatch
from holdfast import sync

_BEGIN = "<!-- langgraph: begin -->"
_END = "<!-- langgraph: end -->"
_WINDOW = 40  # turns whose saves are timed
_MESSAGE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Sizes:
    short: int = 200
    long: int = 1000
    threads: int = 50
    turns_per_thread: int = 10
    processes: int = 2


QUICK = Sizes(short=50, long=150, threads=10, turns_per_thread=4, processes=1)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One number, for each saver; the target is for Holdfast's."""

    name: str
    store: str
    unit: str
    values: Sequence[float]
    at_most: float | None = None

    def cells(self) -> tuple[str, ...]:
        target = "" if self.at_most is None else f"≤ {self.at_most:g}{self.unit}"
        met = ""
        if self.at_most is not None:
            met = "met" if self.values[0] <= self.at_most else "**not met**"
        values = (f"{_number(value)}{self.unit}" for value in self.values)
        return (self.name, self.store, *values, target, met)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.langgraph", description=__doc__)
    parser.add_argument("--store", choices=(*STORES, "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; writes nothing")
    asked = parser.parse_args()
    sizes = QUICK if asked.quick else Sizes()
    lines: list[Line] = []
    for store in STORES if asked.store == "both" else (asked.store,):
        with open_place(store) as place:
            lines += _measure(place, sizes)
    print(_table(lines))
    if not asked.quick and asked.store == "both":
        _write(lines)


def _measure(place: Place, sizes: Sizes) -> list[Line]:
    measurements: tuple[Callable[[Place, Sizes], list[Line]], ...] = (_bytes, _long, _concurrent)
    lines: list[Line] = []
    for measure in measurements:
        since = time.monotonic()
        lines += measure(place, sizes)
        place.clear()
        taken = time.monotonic() - since
        print(f"{place.name} {measure.__name__[1:]}: {taken:.0f} s", file=sys.stderr)
    return lines


def _bytes(place: Place, sizes: Sizes) -> list[Line]:
    """What a thread takes on disk, beside the text of its messages."""
    ratios: list[float] = []
    for kind in SAVERS:
        url = place.new_store()
        with saver_of(kind, url) as saver:
            empty = _emptied(place, kind)
            _talk(graph_on(saver, kind, texts()), sizes.short)
        new = 2 * sizes.short * _MESSAGE_BYTES
        ratios.append((place.stored_bytes(url) - empty) / new)
    name = f"bytes stored ÷ bytes of messages, {sizes.short:,} turns"
    return [Line(name=name, store=place.name, unit=f" {report.TIMES}", values=ratios, at_most=2.0)]


def _emptied(place: Place, kind: str) -> int:
    """What a database takes before anything is saved."""
    url = place.new_store()
    with saver_of(kind, url) as saver:
        saver.get_tuple(THREAD)
    return place.stored_bytes(url)


def _talk(graph: Any, turns: int, seed: int = 1) -> None:
    said = texts(seed)
    for _ in range(turns):
        graph.invoke(says(next(said)), THREAD, durability="sync")


def _long(place: Place, sizes: Sizes) -> list[Line]:
    """Saving, listing and resuming a long thread."""
    own = _own_save(place, sizes)
    urls = {kind: place.new_store() for kind in SAVERS}
    saves = [_save(kind, urls[kind], sizes) for kind in SAVERS]
    read: dict[str, list[list[float]]] = {"list": [], "resume": []}
    for what, taken in read.items():
        for kind in SAVERS:
            tries = [_ask(kind, urls[kind], what) for _ in range(sizes.processes)]
            taken.append([min(column) for column in zip(*tries, strict=True)])
    first, again = zip(*read["list"], strict=True)
    resumed, _ = zip(*read["resume"], strict=True)
    turns = f"at {sizes.long:,} turns"
    listing = f"list {LISTED} checkpoints {turns}"
    lines = (
        (
            f"p50 of `put` {turns} ÷ Holdfast's own save",
            f" {report.TIMES}",
            [s / own for s in saves],
            2.0,
        ),
        (f"p50 of `put` {turns}", " ms", saves, None),
        (f"{listing}, new process", " ms", first, 50.0),
        (f"{listing}, again", " ms", again, 50.0),
        (f"resume {turns}, new process", " ms", resumed, None),
    )
    return [
        Line(name=name, store=place.name, unit=unit, values=values, at_most=at_most)
        for name, unit, values, at_most in lines
    ]


def _own_save(place: Place, sizes: Sizes) -> float:
    """The median of Holdfast's own save of a turn of the same size."""
    watch, said = Stopwatch(), texts()
    with sync.open(place.new_store()) as hf:
        run = hf.runs.open("session-0001", agent="support")
        for turn in range(sizes.long):
            new = [{"role": role, "text": next(said)} for role in ("user", "assistant")]
            with watch:
                run.append("transcript", *new)
                run.checkpoint()
            if turn < sizes.long - _WINDOW:
                watch.samples.clear()
    return watch.median


def _save(kind: str, url: str, sizes: Sizes) -> float:
    """The median of `put` in the last turns of a long thread."""
    watch = Stopwatch()
    with saver_of(kind, url) as saver:
        graph = graph_on(saver, kind, texts())
        if kind == "theirs":
            _begin_at_once(graph, sizes.long - _WINDOW)
        else:
            _talk(graph, sizes.long - _WINDOW)
        put = saver.put

        def timed(*arguments: Any) -> Any:
            with watch:
                return put(*arguments)

        saver.put = timed
        _talk(graph, _WINDOW, seed=2)
    return watch.median


def _begin_at_once(graph: Any, turns: int) -> None:
    """A thread as long, in one checkpoint: theirs would take minutes and gigabytes to get there."""
    said = texts()
    messages = [message for _ in range(2 * turns) for message in says(next(said))["messages"]]
    graph.update_state(THREAD, {"messages": messages}, as_node="reply")


def _ask(kind: str, url: str, what: str) -> list[float]:
    return asyncio.run(ask("benchmarks.graphs", kind, url, what))


def _concurrent(place: Place, sizes: Sizes) -> list[Line]:
    """Turns of many threads at the same time, in one process."""
    rates = [asyncio.run(_rate(kind, place.new_store(), sizes)) for kind in SAVERS]
    name = f"turns/s, {sizes.threads} threads at the same time"
    return [Line(name=name, store=place.name, unit="", values=rates)]


async def _rate(kind: str, url: str, sizes: Sizes) -> float:
    async with async_saver_of(kind, url) as saver:
        graph = graph_on(saver, kind, texts())

        async def talk(number: int) -> None:
            said = texts(number)
            config = {"configurable": {"thread_id": f"session-{number:04}"}}
            for _ in range(sizes.turns_per_thread):
                await graph.ainvoke(says(next(said)), config, durability="sync")

        await talk(sizes.threads)
        since = time.perf_counter()
        await asyncio.gather(*map(talk, range(sizes.threads)))
        return sizes.threads * sizes.turns_per_thread / (time.perf_counter() - since)


def _table(lines: Sequence[Line]) -> str:
    head = [
        "| Number | Store | Holdfast | LangGraph's saver | with DeltaChannel | Target | |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *("| " + " | ".join(line.cells()) + " |" for line in lines)])


def _write(lines: Sequence[Line]) -> None:
    """Replace the table between the marks of its section."""
    before, _, rest = report.PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    report.PAGE.write_text(
        f"{before}{_BEGIN}\n{report.machine()}\n\n{_table(lines)}\n{_END}{after}"
    )


if __name__ == "__main__":
    main()
