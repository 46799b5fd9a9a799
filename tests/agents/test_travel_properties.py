"""Whatever a run did and wherever one goes back to, nothing is sent again that nobody asked for.

A program is turns of log items, values and calls; every run of a lineage carries out the same one.
So the calls after any version were made before, and the file that the tools write must hold the
calls of the program once, and beyond that only what was to be sent again.
"""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import holdfast
from holdfast import Key, ToolCall
from tests.agents.crashing import Crash, advance, start
from tests.agents.ledger import Ledger
from tests.backends import BACKENDS

CALLS = ("charge", "ping", "note", "mail")
Op = tuple[str, int]
Program = list[list[Op]]
EXAMPLES = {"sqlite": 20, "postgres": 5}
numbers = itertools.count()

ops = st.tuples(st.sampled_from(("log", "cut", "set", *CALLS)), st.integers(0, 2))
programs = st.lists(st.lists(ops, max_size=5), min_size=1, max_size=4)


class Travel(NamedTuple):
    verb: str
    run: int
    version: int
    edits: bool
    resend: int


travels = st.lists(
    st.builds(
        Travel,
        st.sampled_from(("fork", "rewind")),
        st.integers(0, 5),
        st.integers(0, 12),
        st.booleans(),
        st.integers(0, 8),
    ),
    min_size=1,
    max_size=4,
)


def make_agent(ledger: Ledger, lineage: str, program: Program) -> holdfast.Agent[..., Any]:
    def tool_of(name: str, **policy: Any) -> holdfast.Tool[..., Any]:
        async def act(number: int, *, key: Key) -> str:
            ledger.write(f"{lineage}.{name}", str(number), 0, key)
            return f"{name} {number}"

        return holdfast.tool(name=name, **policy)(act)

    tools = {
        "charge": tool_of("charge"),
        "ping": tool_of("ping", repeat=True),
        "note": tool_of("note", effect="idempotent"),
        "mail": tool_of("mail", key="call"),
    }

    @holdfast.agent(tools=list(tools.values()), name="player", loop_limit=0)
    async def player(run: holdfast.Run, name: str) -> None:
        at, value, log = run.value("at", int, 0), run.value("value", int, 0), run.log("log", str)
        for turn in range(at.get(), len(program)):
            for index, (op, number) in enumerate(program[turn]):
                if op == "log":
                    log.append(f"{turn}.{index}")
                elif op == "cut":
                    log.cut(min(len(log), number))
                elif op == "set":
                    value.set(number)
                elif op == "mail":
                    call_id = f"{run.run_id}-{run.version}-{index}"
                    (answer,) = await run.tools([ToolCall(call_id, op, {"number": number})])
                    assert answer.results[0].content.endswith(f"mail {number}")
                else:
                    assert await run.call(tools[op], number) == f"{op} {number}"
            at.set(turn + 1)
            await run.checkpoint()
        raise Crash  # it never ends, so that it can be rewound

    return player


def own_state(state: holdfast.State) -> dict[str, Any]:
    return {name: part for name, part in state.parts.items() if not name.startswith("holdfast.")}


def calls_after(program: Program, turn: int) -> Counter[Op]:
    return Counter(op for done in program[turn:] for op in done if op[0] in CALLS)


class World:
    """One lineage, and what must have been sent in it."""

    def __init__(self, hf: holdfast.Holdfast, lineage: str, program: Program) -> None:
        self.hf = hf
        self.program = program
        self.runs = [lineage]
        self.expected: Counter[Op] = Counter()
        seen: set[Op] = set()
        for op in calls_after(program, 0).elements():
            if op[0] != "charge" or op not in seen:  # a charge of so much is one operation
                self.expected[op] += 1
            seen.add(op)

    async def links(self, run_id: str) -> list[bytes]:
        return [entry.link for entry in await self.hf.journal.read(run_id)]

    async def go(self, travel: Travel, names: dict[bytes, Op]) -> None:
        hf, run_id = self.hf, self.runs[travel.run % len(self.runs)]
        newest = (await hf.checkpoints.history(run_id, limit=1))[0].version
        version = travel.version % (newest + 1)
        target = await hf.checkpoints.load(run_id, version)
        before = {known: await self.links(known) for known in self.runs}
        again = await self._resend(run_id, version, travel.resend, target.get("at", 0), names)
        # A list that is given to a part which the run never made is a value, and no log.
        made = own_state(await hf.checkpoints.load(run_id))
        log = {"log": ["edited"]} if "log" in made else {}
        edits = {"value": 9, "extra": [1], **log} if travel.edits else None
        options: dict[str, Any] = {"by": "ann", "edits": edits, "resend": again}
        if travel.verb == "fork":
            moved, first = f"{self.runs[0]}-{len(self.runs)}", 1
            await hf.runs.fork(run_id, version, new_run_id=moved, **options)
            self.runs.append(moved)
        else:
            moved, first = run_id, newest + 1
            await hf.runs.rewind(run_id, version, takeover=True, **options)
        for known, chain in before.items():
            now = await self.links(known)
            assert now[: len(chain)] == chain
            assert known == moved or len(now) == len(chain)
        assert own_state(await hf.checkpoints.load(moved, first)) == own_state(target)
        if edits:
            edited = own_state(await hf.checkpoints.load(moved, first + 1))
            assert edited == own_state(target) | edits
        assert await advance(hf, moved) is None
        assert (await hf.checkpoints.load(moved)).get("at", 0) == len(self.program)

    async def _resend(
        self, run_id: str, version: int, wanted: int, turn: int, names: dict[bytes, Op]
    ) -> list[str]:
        """All effects of one kind after the version, if there are any."""
        planned = (await self.hf.runs.plan(run_id, version)).effects
        assert {effect.then for effect in planned} <= {"given_back"}
        kinds = sorted({names[p.effect.tool.encode() + p.effect.args_digest] for p in planned})
        if not kinds or wanted >= len(kinds):
            return []
        chosen = [
            str(p.effect.effect_id)
            for p in planned
            if names[p.effect.tool.encode() + p.effect.args_digest] == kinds[wanted]
        ]
        calls = calls_after(self.program, turn)[kinds[wanted]]
        self.expected[kinds[wanted]] += min(calls, len(chosen))
        return chosen

    async def check(self, ledger: Ledger) -> None:
        lineage = self.runs[0]
        lines = [line for line in ledger.lines() if line.what.startswith(f"{lineage}.")]
        sent = Counter((line.what.partition(".")[2], int(line.run)) for line in lines)
        assert sent == self.expected
        assert len({line.key for line in lines}) == len(lines)
        for run_id in self.runs:
            assert await self.hf.journal.verify(run_id) == []
            await self.hf.reindex(run_id)
            assert await self.hf.journal.verify(run_id) == []


async def play(store: str, ledger: Ledger, program: Program, plan: list[Travel]) -> None:
    lineage = f"x{next(numbers)}"
    agent = make_agent(ledger, lineage, program)
    names = {
        op.encode() + agent.rules.tools[op].parse({"number": n}).digest: (op, n)
        for op in CALLS
        for n in range(3)
    }
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        world = World(hf, lineage, program)
        await start(hf, agent, lineage, run_id=lineage)
        assert await advance(hf, lineage) is None
        for travel in plan:
            await world.go(travel, names)
        await world.check(ledger)


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_sent_again_unless_told_to(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, is_chaos: bool
) -> None:
    store = str(tmp_path / "store.db")
    if name == "postgres":
        store = request.getfixturevalue("postgres_url")

    @settings(
        max_examples=EXAMPLES[name] * (10 if is_chaos else 1),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(programs, travels)
    def check(program: Program, plan: list[Travel]) -> None:
        asyncio.run(play(store, Ledger(tmp_path / "ledger"), program, plan))

    check()
