"""The agents and tools that carry out the programs of `trees`, and who works on their runs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import Key, ToolCall
from holdfast.errors import IntegrityError
from holdfast.workflows import Block, Kit, Workflow
from holdfast.workflows.definitions import definition
from holdfast.workflows.execution.state import Start
from tests.agents.crashing import Crash, advance

_TURNS = 400


class Garden:
    """One world: what was paid in it, and when its code fails or crashes."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.is_broken = True
        self.crash_in = -1
        self.crashed: list[str] = []
        self.started: dict[tuple[str, str], str] = {}
        """The run that each place of each run has started last: one before it was given up."""
        self.hf: Any = None
        policies: dict[str, dict[str, Any]] = {
            "args": {},
            "repeat": {"repeat": True},
            "place": {"key": "call"},
            "call": {"key": "call"},
            "tenant": {"key": "tenant"},
            "own": {"key": lambda what: f"own-{what}"},
            "safe": {"effect": "idempotent"},
        }
        self.tools = {name: self._tool(name, policy) for name, policy in policies.items()}
        self.flows = [
            Workflow(
                name="flow",
                inputs={"what": {"type": "str"}},
                blocks=[
                    Block(id="pay", type="Tool", inputs=_call("{{ inputs.what }}")),
                    Block(
                        id="below",
                        type="Workflow",
                        inputs={"workflow": "sub", "inputs": {"what": "{{ inputs.what }}"}},
                        depends_on=["pay"],
                    ),
                    Block(
                        id="loop",
                        type="Agent",
                        for_each=[0, 1],
                        for_each_mode="sequential",
                        inputs={"agent": "payer", "input": "{{ inputs.what }}"},
                        depends_on=["pay"],
                    ),
                ],
            ),
            Workflow(
                name="sub",
                inputs={"what": {"type": "str"}},
                blocks=[Block(id="pay", type="Tool", inputs=_call("{{ inputs.what }}"))],
            ),
        ]
        self.kit = Kit(tools=list(self.tools.values()), definitions=self.flows)

        @holdfast.agent(tools=list(self.tools.values()), loop_limit=0)
        async def payer(run: holdfast.Run, what: str) -> str:
            return await run.call(self.tools["args"], what)

        @holdfast.agent(tools=list(self.tools.values()), loop_limit=0)
        async def node(run: holdfast.Run, program: list[list[Any]]) -> int:
            at = run.value("at", int, 0)
            while at.get() < len(program):
                for number, op in enumerate(program[at.get()]):
                    await self._carry_out(run, op, f"{at.get()}.{number}")
                at.set(at.get() + 1)
                await run.checkpoint()
            return at.get()

        self.node = node
        self.agents = [node, payer]

    def _tool(self, name: str, policy: dict[str, Any]) -> holdfast.Tool[..., Any]:
        async def pay(what: str, *, key: Key) -> str:
            self.lines.append((name, what, str(key)))
            return f"{name} {what}"

        return holdfast.tool(name=name, **policy)(pay)

    async def _carry_out(self, run: holdfast.Run, op: list[Any], place: str) -> None:
        if self.crash_in == 0:
            self.crash_in = -1
            self.crashed.append(run.run_id)
            raise Crash
        self.crash_in -= self.crash_in > 0
        match op:
            case ["pay", "call", what]:
                (answer,) = await run.tools([ToolCall(f"c-{place}", "call", {"what": what})])
                assert answer.results[0].content.endswith(f"call {what}")
            case ["pay", policy, what]:
                assert await run.call(self.tools[policy], what) == f"{policy} {what}"
            case ["start", policy, what, how]:
                own = f"{run.run_id}-{place}" if how == "own id" else None
                program = [[["ask", "below"]]] * (how == "asks") + [[["pay", policy, what]]]
                handle = await self.hf.start(self.node, program, parent=run.run_id, run_id=own)
                self.started[run.run_id, place] = handle.run_id
            case ["peer", below]:
                assert await run.peer(self.node, below) == len(below)
            case ["both", one, other]:
                await run.gather(
                    self._carry_out(run, one, f"{place}.0"),
                    self._carry_out(run, other, f"{place}.1"),
                )
            case ["flow", what]:
                await run.peer(self.kit.agent, {"start": self._start(what)})
            case ["fail", _]:
                if self.is_broken:
                    raise ValueError("the code is not mended yet")
            case _:
                await run.ask("well?", schema=str, name=op[1])

    def _start(self, what: str) -> Any:
        library = {flow.name: definition.plain(flow) for flow in self.flows}
        start = Start(workflow="flow", seal="", inputs={"what": what}, library=library)
        return holdfast.codec.decode(holdfast.codec.encode(start))


def _call(what: str) -> dict[str, Any]:
    return {"tool": "args", "args": {"what": what}}


async def work(hf: holdfast.Holdfast, *, crashes: bool = False) -> None:
    """Pass over whatever wants a worker, until nothing does."""
    for _ in range(_TURNS):
        await hf.leases.outbox.deliver()
        ready = await hf.runs.list(status="ready", limit=1000)
        if not ready:
            return
        for run in reversed(ready):
            if (await hf.runs.get(run.run_id)).status == "ready":
                await _pass_over(hf, run, crashes=crashes)
    raise AssertionError(f"runs go on without end: {[run.run_id for run in ready]}")


async def _pass_over(hf: holdfast.Holdfast, run: Any, *, crashes: bool) -> None:
    if crashes:
        await advance(hf, run.run_id)
        return
    try:
        task = await hf._work.try_to_advance(run)
    except IntegrityError:
        return  # it is blocked by now
    if task is not None:
        await asyncio.wait([task])


async def answer(hf: holdfast.Holdfast, names: Sequence[str]) -> None:
    """Answer everything that people are asked under these names, until nothing is.

    A question that is damaged takes no answer.
    """
    damaged: set[str] = set()
    while True:
        await work(hf)
        asked = [each for each in await hf.approvals.list(limit=1000) if each.name in names]
        asked = [each for each in asked if each.wait_id not in damaged]
        if not asked:
            return
        for each in asked:
            try:
                await hf.approvals.answer(each.wait_id, "yes", by="ann")
            except IntegrityError:
                damaged.add(each.wait_id)
