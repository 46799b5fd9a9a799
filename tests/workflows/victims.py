"""Processes that work on a workflow and die: `python -m tests.workflows.victims`.

The process imports everything once and forks for each command, so that the next victim is there at
once. A command is an `Order` as JSON; the answer is what came of it, or how the process died. What
is done outside is a line in a ledger: the name of what was paid for, and the key of the effect.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import faults
from holdfast.errors import ConflictError, HoldfastError, RunEnded
from holdfast.kernel.effects import Effect
from holdfast.settings import Settings
from holdfast.workflows import Block, Input, Kit, Outcome, Workflow
from tests.agents.ledger import Ledger
from tests.victim_orders import obey
from tests.workflows.flows import call, flow, prompt

RUN = "r"
LIMIT_SECONDS = 0.3
LEASE_SECONDS = 0.5
GATE_SECONDS = 30.0
ROUNDS = 40
ANSWERS = {
    "turn[0]": "first",
    "turn[1]": "second",
    "below/ok": "yes",
    "last": 7,
}


class Order(msgspec.Struct, kw_only=True):
    """What a victim shall do."""

    store: str
    folder: str  # of the ledger, and of the gates
    do: str = "work"  # or start, answer, look, cancel, serve
    run_id: str = RUN
    shape: str = "whole"  # which workflow
    die: str = ""  # at which fault point, or in which tool
    skip: int = 0  # how often to pass there first; of "any", counted over all points
    answers: dict[str, Any] = {}
    gate: str = ""  # what must be open before it begins
    seconds: float = 0.0  # how long to live; for ever if 0


def shell(id: str, ledger: str, **options: Any) -> Block:
    """A block that pays with a command."""
    paid = f"printf 'pay {id} 0 %s\\n' \"$HOLDFAST_EFFECT_KEY\" >> \"$LEDGER\"; printf 'paid {id}'"
    given = {"command": paid, "env": {"LEDGER": ledger}}
    return Block(id=id, type="Shell", inputs=given, timeout=20.0, **options)


def pay(id: str, what: str = "", tool: str = "pay", **options: Any) -> Block:
    return call(id, tool, args={"what": what or id}, **options)


def below(ledger: str) -> Workflow:
    return flow(
        pay("n1", "{{ inputs.who }}-n1"),
        prompt("ok", choices=["yes", "no"]),
        pay("n2", "{{ inputs.who }}-n2", depends_on=["ok"]),
        shell("n3", ledger, depends_on=["n1", "ok"]),
        name="below",
        inputs={"who": Input()},
        outputs={"n": "{{ [blocks.n2.outputs.result, blocks.ok.outputs.response] }}"},
    )


def whole(ledger: str) -> Workflow:
    """Everything that blocks can be, in four waves."""
    return flow(
        pay("a"),
        shell("b", ledger),
        pay("c", tool="try_twice", retries=2),
        pay("each", "each-{{ each.value }}", for_each=["x", "y", "z"], max_parallel=2),
        shell("d", ledger, depends_on=["a"]),
        pay("e", tool="pay_seen", depends_on=["b"]),
        prompt("turn", "{{ each.value }}?", for_each=[1, 2], for_each_mode="sequential", retries=1),
        Block(
            id="below",
            type="Workflow",
            inputs={"workflow": "below", "inputs": {"who": "{{ blocks.c.outputs.result[5:] }}"}},
            depends_on=["c"],
        ),
        pay(
            "row",
            "row-{{ each.value }}",
            for_each=["x", "y"],
            for_each_mode="sequential",
            depends_on=["each"],
        ),
        pay("f", "f-{{ blocks.turn.outputs[1].response }}", depends_on=["turn", "below", "d"]),
        prompt("last", depends_on=["f"], schema={"type": "integer"}),
        shell("g", ledger, depends_on=["last"]),
        outputs={
            "a": "{{ blocks.a.outputs.result }}",
            "b": "{{ blocks.b.outputs.stdout }}",
            "c": "{{ blocks.c.outputs.result }}",
            "each": "{{ blocks.each.outputs | map(attribute='result') | list }}",
            "e": "{{ blocks.e.outputs.result }}",
            "turn": "{{ blocks.turn.outputs | map(attribute='response') | list }}",
            "below": "{{ blocks.below.outputs.n }}",
            "row": "{{ blocks.row.outputs | map(attribute='result') | list }}",
            "f": "{{ blocks.f.outputs.result }}",
            "last": "{{ blocks.last.outputs.response + 1 }}",
            "g": "{{ blocks.g.outputs.stdout }}",
        },
    )


def asking(ledger: str) -> Workflow:
    """One that asks, and then pays."""
    return flow(
        prompt("ask"),
        pay("paid", "{{ blocks.ask.outputs.response }}", depends_on=["ask"]),
        outputs={"said": "{{ blocks.ask.outputs.response }}"},
    )


def hurried(ledger: str) -> Workflow:
    """One that asks, and does not wait long."""
    return flow(
        prompt("ask", timeout=0.5, default="silence"),
        pay("paid", "{{ blocks.ask.outputs.response }}", depends_on=["ask"]),
        outputs={"said": "{{ blocks.ask.outputs.response }}"},
    )


SHAPES = {"whole": whole, "asking": asking, "hurried": hurried}


def kit_of(ledger: Ledger, reach: Callable[[str], None]) -> Kit:
    @holdfast.tool(limit_seconds=LIMIT_SECONDS)
    async def pay(what: str, *, key: holdfast.Key) -> str:
        ledger.write("pay", what, 0, key)
        return f"paid {what}"

    async def was_paid(what: str, key: str) -> holdfast.Happened[str] | holdfast.NotDone:
        paid = ledger.has("pay", key)
        return holdfast.Happened(f"paid {what}") if paid else holdfast.NotDone("not in the ledger")

    @holdfast.tool(limit_seconds=LIMIT_SECONDS, verify=was_paid)
    async def pay_seen(what: str, *, key: holdfast.Key) -> str:
        ledger.write("pay", what, 0, key)
        reach("in pay_seen")
        return f"paid {what}"

    @holdfast.tool(limit_seconds=LIMIT_SECONDS)
    async def try_twice(what: str, *, key: holdfast.Key) -> str:
        if not ledger.count("try"):
            ledger.write("try", what, 0, key)
            raise holdfast.NotDone("not the first time")
        ledger.write("pay", what, 0, key)
        return f"paid {what}"

    return Kit(
        tools=[pay, pay_seen, try_twice],
        definitions=[below(str(ledger.path))],
        root=ledger.path.parent,
    )


class Victim:
    """One process's work on one workflow."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.ledger = Ledger(Path(order.folder) / "ledger")
        self.passed: list[str] = []

    def reach(self, point: str) -> None:
        """Die here, if this is where."""
        self.passed.append(point)
        many = len(self.passed) if self.order.die == "any" else self.passed.count(self.order.die)
        if many > self.order.skip and self.order.die in ("any", point):
            os.kill(os.getpid(), signal.SIGKILL)

    async def run(self) -> dict[str, Any]:
        settings = Settings(lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=0.1, sweep_seconds=0.2)
        faults.install(self.reach)
        kit = kit_of(self.ledger, self.reach)
        async with holdfast.Holdfast(self.order.store, settings=settings, workflows=kit) as hf:
            self.wait_for_gate()
            try:
                return await getattr(self, self.order.do)(hf)
            except HoldfastError as error:
                return {"error": type(error).__name__, "message": str(error)}

    def wait_for_gate(self) -> None:
        if not self.order.gate:
            return
        self.ledger.write("at-gate", self.order.gate, os.getpid())
        deadline = time.monotonic() + GATE_SECONDS
        while not (self.ledger.path.parent / self.order.gate).exists():
            assert time.monotonic() < deadline, "the gate stays shut"

    async def start(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        """Start the workflow; it stops at its first questions."""
        made = SHAPES[self.order.shape](str(self.ledger.path))
        return self.told(await hf.workflows.run(made, run_id=self.order.run_id))

    async def answer(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        return self.told(await hf.workflows.resume(self.order.run_id, self.order.answers))

    async def look(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        return self.told(await hf.workflows.status(self.order.run_id))

    async def cancel(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        with suppress(RunEnded):
            await hf.workflows.cancel(self.order.run_id)
        return self.told(await hf.workflows.status(self.order.run_id))

    async def serve(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        """Be a worker, for as long as one lives."""
        await hf.new_worker(agents=["workflow"]).run()
        return {}

    async def work(self, hf: holdfast.Holdfast) -> dict[str, Any]:
        """Start the workflow or go on with it, as users and operators do, until its end."""
        made = SHAPES[self.order.shape](str(self.ledger.path))
        await self.settle(hf)
        outcome = await hf.workflows.run(made, run_id=self.order.run_id, timeout=10)
        for _ in range(ROUNDS):
            if outcome.status in ("completed", "failed", "cancelled"):
                break
            await self.settle(hf)
            answers = {each.block: ANSWERS[each.block] for each in outcome.waiting}
            outcome = await hf.workflows.resume(self.order.run_id, answers, timeout=10)
        return self.told(outcome) | {"passed": self.passed}

    async def settle(self, hf: holdfast.Holdfast) -> None:
        """Say what became of calls nobody saw the end of: what the ledger says."""
        for status in ("issued", "unknown"):
            for effect in await hf.effects.unsettled(status=status):
                if effect.tool != "pay_seen" and await self.is_left(hf, effect):
                    with suppress(ConflictError):
                        await self.settle_one(hf, effect)
        for run in await hf.runs.list(status="blocked"):
            with suppress(ConflictError):
                await hf.runs.unblock(run.run_id)

    async def is_left(self, hf: holdfast.Holdfast, effect: Effect) -> bool:
        """Whether nobody works on the run of an effect that is open; a dead one's lease ends."""
        run = await hf.runs.get(effect.run_id)
        while run.status == "running" and run.worker != hf.worker:
            await hf.leases.expire_lost()
            await asyncio.sleep(0.02)
            run = await hf.runs.get(effect.run_id)
        open_ones = ("issued", "unknown")
        return (
            run.status != "running" and (await hf.effects.get(effect.effect_id)).status in open_ones
        )

    async def settle_one(self, hf: holdfast.Holdfast, effect: Effect) -> None:
        paid = [each for each in self.ledger.lines() if each.key == effect.key]
        if paid and paid[0].what == "pay":
            result = result_of(effect.tool, paid[0].run)
            await hf.effects.settle(effect.effect_id, "completed", result=result)
        else:
            await hf.effects.settle(effect.effect_id, "not_done", retry=True)

    def told(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "status": outcome.status,
            "outputs": outcome.outputs,
            "error": outcome.error,
            "asks": sorted(each.block for each in outcome.waiting),
            "blocks": {name: result.status for name, result in outcome.blocks.items()},
        }


def result_of(tool: str, what: str) -> Any:
    """What a call gave that the ledger knows of."""
    if tool == "Shell":
        return {"stdout": f"paid {what}", "stderr": "", "exit_code": 0}
    return f"paid {what}"


def carry_out(order: Order) -> Any:
    if order.seconds:
        # Nobody handles this signal: the process ends at once, wherever it is.
        signal.setitimer(signal.ITIMER_REAL, order.seconds)
    return asyncio.run(Victim(order).run())


if __name__ == "__main__":
    obey(Order, carry_out)
