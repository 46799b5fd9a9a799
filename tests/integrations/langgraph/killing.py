"""Telling victims what to do, killing them, and judging what was done outside."""

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.agents.ledger import Ledger
from tests.integrations.langgraph.victims import Order
from tests.processes import Child

KILLED = {"died": -9}
END_SECONDS = 240.0
VICTIMS = "tests.integrations.langgraph.victims"


class Scene:
    """One thread on one store, its ledger, and the processes that may run it."""

    def __init__(self, children: list[Child], folder: Path, **order: Any) -> None:
        self.children = children
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.order = Order(folder=str(folder), **order)

    def tell(self, given: Any = None, *, child: int = 0, **changes: Any) -> None:
        order = msgspec.structs.replace(self.order, given=given, **changes)
        self.children[child].tell(msgspec.to_builtins(order))

    def answer(self, child: int = 0) -> dict[str, Any]:
        return self.children[child].answer()

    def run(self, given: Any = None, **changes: Any) -> dict[str, Any]:
        self.tell(given, **changes)
        return self.answer(changes.get("child", 0))

    def run_when_free(self, given: Any = None, **changes: Any) -> dict[str, Any]:
        """The same, again while the thread is busy: a dead holder's lease takes its time."""
        deadline = time.monotonic() + END_SECONDS
        while (answer := self.run(given, **changes)).get("error") == "ThreadBusy":
            assert time.monotonic() < deadline, "the thread stays busy"
        return answer

    def open_gate(self, gate: str = "gate", say: str = "") -> None:
        part = self.folder / f"{gate}.part"
        part.write_text(say)
        part.rename(self.folder / gate)

    def wait_until(self, what: str, many: int) -> list[int]:
        """Wait until something is in the ledger so often; the numbers it was written with."""
        deadline = time.monotonic() + END_SECONDS
        while len(found := [each.turn for each in self.lines(what)]) < many:
            assert time.monotonic() < deadline, f"{what} is there {len(found)} times"
            time.sleep(0.002)
        return found

    def lines(self, what: str) -> list[Any]:
        return [line for line in self.ledger.lines() if line.what == what]

    def paid(self, n: int) -> int:
        return self.ledger.count("pay")[self.order.thread, n]

    def go_on(self) -> dict[str, Any]:
        """Resume after a kill as a user does, and answer what is asked by what the ledger says."""
        answer = self.run_when_free()
        if answer.get("error") == "EmptyInputError":  # not even the input was stored
            answer = self.run_when_free("go")
        for _ in range(5):
            if not answer.get("asks"):
                return answer
            answer = self.run_when_free({"resume": self.truth(answer["asks"])})
        raise AssertionError(f"still asked: {answer}")

    def truth(self, asks: dict[str, Any]) -> dict[str, Any]:
        """What a person who looks at the ledger says of each call whose outcome is unknown."""
        told: dict[str, Any] = {}
        for question, value in asks.items():
            found = re.search(r'"n": (\d+)', json.dumps(value))
            assert found, f"the question does not say which call it is about: {value}"
            n = int(found[1])
            result = f"paid {n}" if self.paid(n) else None
            told[question] = {"happened": result is not None, "result": result}
            # One node may ask about several of its calls: the answer says which it is about.
            told[question]["effect"] = value["effect"]
        return told

    def end(self) -> str:
        """What the last message says when all was paid."""
        paid = [f"paid {10 + n}" for n in range(self.order.many)]
        return f"all done: {', '.join(paid)}"

    def faults(self, answer: dict[str, Any]) -> list[str]:
        """What is wrong with a thread of one turn that has come to its end, in words."""
        found = [
            f"payment {n} was made {self.paid(n)} times"
            for n in range(10, 10 + self.order.many)
            if self.paid(n) != 1
        ]
        if answer.get("next") != []:
            return [*found, f"it did not end: {answer}"]
        messages = answer["messages"]
        if messages[-1] != self.end():
            found.append(f"its last message is {messages[-1]}")
        if messages.count("go") != 1 or len(messages) != 3 + self.order.many:
            found.append(f"its messages are {messages}")
        return found
