"""Telling victims what to do, killing them, and judging what was done outside."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.agents.ledger import Ledger
from tests.processes import Child
from tests.workflows.victims import Order

KILLED = {"died": -9}
END_SECONDS = 240.0
VICTIMS = "tests.workflows.victims"

PAID = (
    *("a", "b", "c", "d", "e", "each-x", "each-y", "each-z", "row-x", "row-y"),
    *("c-n1", "c-n2", "n3", "f-second", "g"),
)
OUTPUTS = {
    "a": "paid a",
    "b": "paid b",
    "c": "paid c",
    "each": ["paid each-x", "paid each-y", "paid each-z"],
    "e": "paid e",
    "turn": ["first", "second"],
    "below": ["paid c-n2", "yes"],
    "row": ["paid row-x", "paid row-y"],
    "f": "paid f-second",
    "last": 8,
    "g": "paid g",
}


class Scene:
    """One workflow in one store, its ledger, and the processes that may work on it."""

    def __init__(self, children: list[Child], folder: Path, store: str, **order: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.children = children
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.order = Order(folder=str(folder), store=store, **order)

    def tell(self, do: str = "work", *, child: int = 0, **changes: Any) -> None:
        order = msgspec.structs.replace(self.order, do=do, **changes)
        self.children[child].tell(msgspec.to_builtins(order))

    def answer(self, child: int = 0) -> dict[str, Any]:
        answer = self.children[child].answer()
        if answer == KILLED:
            self.see_commands_end()
        return answer

    def run(self, do: str = "work", *, child: int = 0, **changes: Any) -> dict[str, Any]:
        self.tell(do, child=child, **changes)
        return self.answer(child)

    def see_commands_end(self) -> None:
        """Wait until no command of a victim that died is left: its leash ends it."""
        mark = f"LEDGER={self.ledger.path}".encode()
        deadline = time.monotonic() + END_SECONDS
        while any(mark in environment_of(each) for each in Path("/proc").glob("[0-9]*")):
            assert time.monotonic() < deadline, "a command outlives its process"
            time.sleep(0.02)

    def open_gate(self, gate: str, *, many: int) -> None:
        """Let those through that wait there, when there are so many."""
        deadline = time.monotonic() + END_SECONDS
        while self.count("at-gate")[gate] < many:
            assert time.monotonic() < deadline, "not all came to the gate"
            time.sleep(0.005)
        (self.folder / gate).touch()

    def count(self, what: str) -> Counter[str]:
        return Counter(line.run for line in self.ledger.lines() if line.what == what)

    def faults(self, answer: dict[str, Any]) -> list[str]:
        """What is wrong with the whole workflow that has come to its end, in words."""
        paid = self.count("pay")
        found = [f"{what} was paid {paid[what]} times" for what in PAID if paid[what] != 1]
        found += [f"{what} was paid, and nobody asked" for what in paid if what not in PAID]
        if answer.get("status") != "completed":
            found.append(f"it did not end: {answer}")
        elif answer["outputs"] != OUTPUTS:
            found.append(f"its outputs are {answer['outputs']}")
        elif set(answer["blocks"].values()) != {"completed"}:
            found.append(f"its blocks are {answer['blocks']}")
        return found


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes() if int(process.name) != os.getpid() else b""
    except OSError:
        return b""
