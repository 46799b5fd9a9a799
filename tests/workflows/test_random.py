"""Random graphs and random workflows, broken off at random, judged by a direct interpreter."""

import asyncio
import graphlib
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import faults
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.settings import Settings
from holdfast.workflows import Block, Dependency, Input, Kit, Outcome, Workflow
from holdfast.workflows.definitions.waves import cycle_in, waves_of
from tests.workflows.direct import Flow, Step, answer_to, outcome_of

SETTINGS = Settings(lease_seconds=0.5, wakeup_poll_seconds=0.05)
FEW = settings(deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, set[str]]:
    """What each block depends on; now and then in a circle, or on what is not there."""
    many = draw(st.integers(0, 9))
    names = [f"b{n}" for n in range(many)]
    edges = (
        draw(st.sets(st.tuples(st.sampled_from(names), st.sampled_from(names)))) if names else ()
    )
    found: dict[str, set[str]] = {name: set() for name in names}
    goes_back = draw(st.booleans())
    for one, two in edges:
        if one != two:
            below, above = (one, two) if goes_back else sorted((one, two))
            found[above].add(below)
    return {name: found[name] for name in draw(st.permutations(names))}


@given(graphs())
def test_each_block_is_in_the_earliest_wave_that_it_can_be_in(graph: dict[str, set[str]]) -> None:
    blocks = [Block(id=name, type="Prompt", depends_on=sorted(graph[name])) for name in graph]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        with pytest.raises(ValueError, match="cycle"):
            waves_of(blocks)
        circle = cycle_in(blocks)
        assert circle[0] == circle[-1]
        assert len(set(circle)) == len(circle) - 1
        assert all(after in graph[before] for before, after in itertools.pairwise(circle))
        return
    assert cycle_in(blocks) == []
    waves = waves_of(blocks)
    assert sorted(itertools.chain(*waves)) == sorted(graph)
    assert all(waves)
    at = {name: number for number, wave in enumerate(waves) for name in wave}
    for name, needs in graph.items():
        assert at[name] == max((at[each] + 1 for each in needs), default=0)


@st.composite
def steps(draw: st.DrawFn, number: int, before: list[Step]) -> Step:
    names = [each.id for each in before]
    needs = (
        draw(st.dictionaries(st.sampled_from(names), st.booleans(), max_size=2)) if names else {}
    )
    kind = draw(st.sampled_from(["tool", "tool", "prompt", "nested"]))
    usable = [each.id for each in before if each.id in needs and each.rounds is None]
    rounds = draw(st.none() | st.integers(0, 3))
    return Step(
        id=f"s{number}",
        kind=kind,
        needs=needs,
        at_least=draw(st.none() | st.integers(0, 3)),
        if_done=draw(st.none() | st.sampled_from(sorted(needs))) if needs else None,
        uses=draw(st.none() | st.sampled_from(usable)) if usable and kind != "prompt" else None,
        add=draw(st.integers(0, 3)),
        rounds=rounds,
        in_turn=rounds is not None and draw(st.booleans()),
        is_pardoned=draw(st.booleans()),
    )


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    made: list[Step] = []
    for number in range(draw(st.integers(1, 5))):
        made.append(draw(steps(number, made)))
    bad = draw(st.frozensets(st.integers(0, 8), max_size=2))
    return Flow(made, draw(st.integers(0, 3)), bad)


@st.composite
def crashes(draw: st.DrawFn) -> list[tuple[str, int]]:
    """How each life ends: it is cancelled, or its store is away, after so many fault points."""
    kinds = st.sampled_from(["cancel", "raise"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 120)), max_size=4))


def workflow_of(flow: Flow) -> Workflow:
    return Workflow(
        name="random",
        inputs={"n": Input(type="int")},
        blocks=[block_of(step, {each.id: each for each in flow.steps}) for step in flow.steps],
        outputs={step.id: told_by(step) for step in flow.steps},
    )


def block_of(step: Step, known: dict[str, Step]) -> Block:
    number = f"inputs.n + {step.add}" + (" + each.value" if step.rounds is not None else "")
    if step.uses is not None:
        number += f" + blocks.{step.uses}.outputs.{result_of(known[step.uses])}"
    wanted = [f"inputs.n >= {step.at_least}"] if step.at_least is not None else []
    wanted += [f"blocks.{step.if_done}.succeeded"] if step.if_done is not None else []
    inputs: dict[str, dict[str, Any]] = {
        "tool": {"tool": "note", "args": {"n": f"{{{{ {number} }}}}"}},
        "prompt": {"prompt": "a number?", "schema": {"type": "integer"}},
        "nested": {"workflow": "below", "inputs": {"n": f"{{{{ {number} }}}}"}},
    }
    return Block(
        id=step.id,
        type={"tool": "Tool", "prompt": "Prompt", "nested": "Workflow"}[step.kind],
        inputs=inputs[step.kind],
        depends_on=[Dependency(block=name, required=must) for name, must in step.needs.items()],
        condition=" and ".join(wanted) or None,
        for_each=None if step.rounds is None else list(range(step.rounds)),
        for_each_mode="sequential" if step.in_turn else "parallel",
        continue_on_error=step.is_pardoned,
    )


def result_of(step: Step) -> str:
    return "response" if step.kind == "prompt" else "result"


def told_by(step: Step) -> str:
    """An output that tells what a step gave, or else how it ended; of a loop, what each round."""
    block = f"blocks.{step.id}"
    if step.rounds is not None:
        return f"{{{{ {block}.outputs if {block}.rounds is not none else {block}.status }}}}"
    return f"{{{{ {block}.outputs.{result_of(step)} if {block}.succeeded else {block}.status }}}}"


BELOW = Workflow(
    name="below",
    inputs={"n": Input(type="int")},
    blocks=[
        Block(id="pay", type="Tool", inputs={"tool": "note", "args": {"n": "{{ inputs.n }}"}}),
        Block(
            id="ok",
            type="Prompt",
            inputs={"prompt": "a number?", "schema": {"type": "integer"}},
            depends_on=["pay"],
        ),
    ],
    outputs={"result": "{{ blocks.pay.outputs.result + blocks.ok.outputs.response }}"},
)


class World:
    """What is outside: a tool that counts its calls by their keys."""

    def __init__(self, bad: frozenset[int]) -> None:
        self.done: list[tuple[str, int]] = []

        @holdfast.tool(limit_seconds=0.2)
        async def note(n: int, *, key: holdfast.Key) -> int:
            if n in bad:
                raise holdfast.NotDone(f"{n} is bad")
            self.done.append((key, n))
            return n + 1

        self.kit = Kit(tools=[note], definitions=[BELOW])

    @property
    def counted(self) -> Counter[int]:
        return Counter(n for _, n in self.done)


class Life:
    """One opening of the store, which ends after so many fault points, if it does."""

    def __init__(self, ending: tuple[str, int] | None) -> None:
        self._ending = ending
        self._passed = 0
        self.has_struck = False

    def reach(self, point: str) -> None:
        self._passed += 1
        if self._ending is None or self._passed != self._ending[1] + 1:
            return
        self.has_struck = True
        if self._ending[0] == "raise" and point.startswith(("batch.", "commit.")):
            raise StoreUnavailable(f"gone at {point}")
        self._loop.call_soon_threadsafe(self._task.cancel)

    async def live(self, store: str, world: World, made: Workflow, number: int) -> Outcome | None:
        """Work until the end of the workflow, or of this life; None if it was that."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._work(store, world, made, number))
        try:
            return await self._task
        except (asyncio.CancelledError, HoldfastError):
            if not self.has_struck:
                raise
            return None

    async def _work(self, store: str, world: World, made: Workflow, number: int) -> Outcome | None:
        async with holdfast.Holdfast(store, settings=SETTINGS, workflows=world.kit) as hf:
            faults.install(self.reach)
            try:
                await settle(hf, world)
                outcome = await hf.workflows.run(made, {"n": number}, run_id="r", timeout=20)
                while outcome.status not in ("completed", "failed"):
                    await settle(hf, world)
                    answers = {each.block: answer_to(each.block) for each in outcome.waiting}
                    outcome = await hf.workflows.resume("r", answers, timeout=20)
                return outcome
            finally:
                faults.install(None)


async def settle(hf: holdfast.Holdfast, world: World) -> None:
    """Say what became of calls that nobody saw the end of, and give back what is blocked."""
    for effect in await hf.effects.unsettled(status="unknown"):
        done = [n for key, n in world.done if key == effect.key]
        if done:
            await hf.effects.settle(effect.effect_id, "completed", result=done[0] + 1)
        else:
            await hf.effects.settle(effect.effect_id, "not_done", retry=True)
    for run in await hf.runs.list(status="blocked"):
        await hf.runs.unblock(run.run_id)


async def play(flow: Flow, endings: list[tuple[str, int]]) -> tuple[Outcome, World]:
    world, made = World(flow.bad), workflow_of(flow)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store.db")
        for ending in [*endings, None]:
            outcome = await Life(ending).live(store, world, made, flow.given)
            if outcome is not None:
                return outcome, world
    raise AssertionError("it did not come to its end")


def statuses_of(outcome: Outcome) -> dict[str, Any]:
    return {
        name: (result.status, result.rounds and [each.status for each in result.rounds])
        for name, result in outcome.blocks.items()
    }


def judge(flow: Flow, endings: list[tuple[str, int]]) -> None:
    outcome, world = asyncio.run(asyncio.wait_for(play(flow, endings), 100))
    wanted = outcome_of(flow)
    assert statuses_of(outcome) == wanted.statuses
    assert outcome.status == wanted.status, outcome.error
    assert world.counted == wanted.done
    if wanted.status == "completed":
        assert outcome.outputs == wanted.outputs


@settings(FEW, max_examples=40, derandomize=True)
@given(flows(), crashes())
def test_a_random_workflow_broken_off_anywhere_comes_to_what_it_must(
    flow: Flow, endings: list[tuple[str, int]]
) -> None:
    judge(flow, endings)


@pytest.mark.chaos
@settings(FEW, max_examples=600)
@given(flows(), crashes())
def test_many_random_workflows_broken_off_anywhere_come_to_what_they_must(
    flow: Flow, endings: list[tuple[str, int]]
) -> None:
    judge(flow, endings)
