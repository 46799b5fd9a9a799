"""Cadence: which ends of turns are stored, what comes back after a crash, and what is written."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import AgentLoop, Message, ToolCall, Usage, every
from holdfast.agents.definitions.cadence import Cadence
from holdfast.errors import MisuseError, TurnDiverged
from holdfast.telemetry import BATCH_COMMITTED
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start

OWN = {"RUN_CREATED", "RUN_LEASED", "RUN_COMPLETED"}
ALL: list[Cadence] = ["turn", "tool", "boundary", every(turns=3)]


class World:
    """What was done outside, and where the next crash is."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.crash_at = ""
        self.boundaries: list[int | None] = []

    def pass_by(self, place: str) -> None:
        if place == self.crash_at:
            self.crash_at = ""
            raise Crash


def worker_of(
    world: World, cadence: Cadence, *, charges: bool = True
) -> holdfast.Agent[[int], int]:
    """In each turn it asks the model, looks, and charges if it is to."""

    @holdfast.tool
    async def charge(turn: int) -> str:
        world.done[f"charge {turn}"] += 1
        return f"charged {turn}"

    @holdfast.tool(effect="read")
    async def look(turn: int) -> str:
        world.done[f"look {turn}"] += 1
        return f"look {world.done[f'look {turn}']} at {turn}"

    async def model(talk: Any, turn: int) -> str:
        world.done[f"model {turn}"] += 1
        return f"reply {world.done[f'model {turn}']} to {turn}"

    @holdfast.agent(name="worker", tools=[charge, look], cadence=cadence)
    async def agent(run: holdfast.Run, turns: int) -> int:
        log = run.log("log", str)
        done = run.value("done", int, 0)
        while done.get() < turns:
            turn = done.get()
            log.append(await run.model(model, log, turn))
            world.pass_by(f"model {turn}")
            log.append(await run.call(look, turn))
            world.pass_by(f"look {turn}")
            if charges:
                log.append(await run.call(charge, turn))
                world.pass_by(f"charge {turn}")
            done.set(turn + 1)
            stored = await run.checkpoint()
            world.boundaries.append(None if stored is None else stored.version)
            world.pass_by(f"end {turn}")
        return len(log)

    return agent


async def play(store: str, agent: holdfast.Agent[[int], int], turns: int) -> dict[str, int]:
    """Run an agent to its end; how often each kind was written, and how many commits it took."""
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name] += 1

    async with holdfast.Holdfast(store, agents=[agent], telemetry=count) as hf:
        await start(hf, agent, turns)
        held = await hf.leases.take("r")
        counts.clear()
        await hf._work.start_pass(held)
        commits = counts[BATCH_COMMITTED]
        assert (await hf.runs.get("r")).status == "completed"
        assert await hf.journal.verify("r") == []
        return {**Counter(await kinds(hf, "r")), "commits": commits}


async def crash_and_finish(
    store: str, agent: holdfast.Agent[[int], int], turns: int, *, again: Any = None
) -> list[str]:
    """One pass that crashes, and one that ends the run; the log that it leaves."""
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, turns)
        assert await advance(hf, "r") is None
    async with holdfast.Holdfast(store, agents=[again or agent]) as hf:
        ending = await advance(hf, "r")
        assert ending is not None
        assert ending.error is None, ending.error
        assert await hf.journal.verify("r") == []
        return (await hf.checkpoints.load("r"))["log"]


# What is written.


@pytest.mark.mission("S4-072", "X-002")
@async_test
async def test_every_turn_is_stored_by_default(store: str) -> None:
    world = World()
    written = await play(store, worker_of(world, "turn"), 4)
    assert world.boundaries == [1, 2, 3, 4]
    assert written["CHECKPOINT_CREATED"] == 4
    assert written["STEP_RECORDED"] == 4  # the replies; what was read is not on record
    # Reply with intent, and outcome with checkpoint, in each turn; the end.
    assert written["commits"] == 2 * 4 + 1

    @holdfast.agent
    async def plain(run: holdfast.Run) -> None: ...

    assert plain.rules.cadence == "turn"


@pytest.mark.mission("X-002")
@async_test
async def test_cadence_tool_puts_what_is_read_on_record(store: str) -> None:
    world = World()
    written = await play(store, worker_of(world, "tool"), 4)
    assert world.boundaries == [1, 2, 3, 4]
    assert written["STEP_RECORDED"] == 8


@pytest.mark.mission("S4-074", "X-002")
@async_test
async def test_every_stores_each_so_many_turns_in_one_commit(store: str) -> None:
    world = World()
    written = await play(store, worker_of(world, every(turns=3), charges=False), 7)
    assert world.boundaries == [None, None, 1, None, None, 2, None]
    assert written["CHECKPOINT_CREATED"] == 3  # the last with the end of the run
    assert written["STEP_RECORDED"] == 14
    assert written["commits"] == 2 + 1  # two checkpoints, the end


@async_test
async def test_every_stores_effects_at_once(store: str) -> None:
    world = World()
    written = await play(store, worker_of(world, every(turns=3)), 7)
    assert written["EFFECT_ISSUED"] == written["EFFECT_COMPLETED"] == 7
    assert written["CHECKPOINT_CREATED"] == 3
    # Nobody is ever without an intent; an outcome may be taken along by what comes next.
    assert 7 + 1 <= written["commits"] <= 2 * 7 + 1


@pytest.mark.mission("S4-074", "X-002")
@async_test
async def test_every_stores_once_so_many_seconds_have_passed() -> None:
    clock = ManualClock()
    stored: list[bool] = []

    @holdfast.agent(cadence=every(turns=100, seconds=5))
    async def slow(run: holdfast.Run) -> None:
        for seconds in (2, 2, 2, 4, 1, 5):
            run.value("at", int, 0).set(len(stored))
            clock.advance(seconds)
            stored.append(await run.checkpoint() is not None)

    async with holdfast.Holdfast("memory://", agents=[slow], clock=clock) as hf:
        await hf.run(slow, run_id="r")
    assert stored == [False, False, True, False, True, True]


@pytest.mark.mission("S0-006", "X-002")
@async_test
async def test_boundary_writes_nothing_for_a_task_without_effects(store: str) -> None:
    world = World()
    written = await play(store, worker_of(world, "boundary", charges=False), 5)
    assert world.boundaries == [None] * 5
    assert set(written) - {"commits"} == OWN
    assert written["commits"] == 1  # the queue's: done


@async_test
async def test_boundary_keeps_everything_once_there_was_an_effect(store: str) -> None:
    world = World()
    agent = worker_of(world, "boundary")
    written = await play(store, agent, 3)
    assert (written["EFFECT_ISSUED"], written["CHECKPOINT_CREATED"]) == (3, 1)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert len((await hf.checkpoints.load("r"))["log"]) == 9


@async_test
async def test_answer_of_a_session_saves_its_state_with_any_cadence(store: str) -> None:
    @holdfast.agent(cadence="boundary")
    async def chat(run: holdfast.Run, words: str) -> int:
        talk = run.log("talk", str)
        talk.append(words)
        assert await run.checkpoint() is None
        return len(talk)

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        session = hf.session(chat, "s")
        assert [await session.send(word) for word in "abc"] == [1, 2, 3]
        assert (await hf.checkpoints.load("s")).version == 3


@async_test
async def test_failure_with_boundary_keeps_the_replies_that_led_to_it(store: str) -> None:
    async def model() -> str:
        return "a reply"

    @holdfast.agent(cadence="boundary")
    async def broken(run: holdfast.Run) -> None:
        await run.model(model)
        raise ValueError("no")

    async with holdfast.Holdfast(store, agents=[broken]) as hf:
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(broken, run_id="r")
        assert (await kinds(hf, "r"))[-2:] == ["STEP_RECORDED", "RUN_FAILED"]


@async_test
async def test_checkpoint_with_a_label_is_stored_with_any_cadence(store: str) -> None:
    @holdfast.agent(cadence="boundary")
    async def labels(run: holdfast.Run) -> None:
        assert await run.checkpoint() is None
        stored = await run.checkpoint(label="reviewed")
        assert stored is not None
        assert run.version == 1
        assert not run.is_fresh

    async with holdfast.Holdfast(store, agents=[labels]) as hf:
        await hf.run(labels, run_id="r")
        assert (await hf.checkpoints.history("r"))[0].label == "reviewed"


# What comes back.


@pytest.mark.mission("S4-073")
@async_test
async def test_with_cadence_tool_a_run_resumes_after_what_it_read(store: str) -> None:
    world = World()
    world.crash_at = "charge 1"
    log = await crash_and_finish(store, worker_of(world, "tool"), 2)
    assert set(world.done.values()) == {1}
    assert log[4] == "look 1 at 1"


@async_test
async def test_with_cadence_turn_what_was_read_is_read_again(store: str) -> None:
    world = World()
    world.crash_at = "charge 1"
    await crash_and_finish(store, worker_of(world, "turn"), 2)
    assert {name for name, times in world.done.items() if times > 1} == {"look 1"}


@async_test
async def test_failed_read_comes_back_as_the_same_failure(store: str) -> None:
    tried: list[int] = []
    seen: list[str] = []

    @holdfast.tool(effect="read")
    async def look() -> str:
        tried.append(1)
        raise ValueError(f"try {len(tried)}")

    @holdfast.tool
    async def charge() -> str:
        return "ok"

    @holdfast.agent(cadence="tool", tools=[look, charge])
    async def reader(run: holdfast.Run) -> str:
        (answer,) = await run.tools([ToolCall("1", "look", {})])
        seen.append(answer.results[0].content)
        await run.call(charge)
        if len(seen) == 1:
            raise Crash
        return seen[-1]

    async with holdfast.Holdfast(store, agents=[reader]) as hf:
        await start(hf, reader)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
    assert seen == ["look raised ValueError: try 1"] * 2
    assert len(tried) == 1


@pytest.mark.parametrize("cadence", ALL, ids=str)
@async_test
async def test_crash_repeats_no_effect_with_any_cadence(store: str, cadence: Cadence) -> None:
    for place in ("model 4", "look 4", "charge 4", "end 4"):
        world = World()
        world.crash_at = place
        async with holdfast.Holdfast(store, agents=[agent := worker_of(world, cadence)]) as hf:
            run_id = await start(hf, agent, 7, run_id=place.replace(" ", "-"))
            assert await advance(hf, run_id) is None
            await advance(hf, run_id)
            assert (await hf.runs.get(run_id)).status == "completed", place
            assert len((await hf.checkpoints.load(run_id))["log"]) == 21
        charges = {name: times for name, times in world.done.items() if "charge" in name}
        assert charges == {f"charge {turn}": 1 for turn in range(7)}, place


@async_test
async def test_every_loses_at_most_its_turns(store: str) -> None:
    world = World()
    world.crash_at = "end 4"
    await crash_and_finish(store, worker_of(world, every(turns=3), charges=False), 7)
    assert {name for name, times in world.done.items() if times > 1} == {
        *("model 3", "look 3", "model 4", "look 4"),
    }


@async_test
async def test_boundary_begins_again_where_the_last_effect_was(store: str) -> None:
    world = World()
    world.crash_at = "end 4"
    log = await crash_and_finish(store, worker_of(world, "boundary"), 7)
    # Everything before the last intent was committed in front of it, what was read as well.
    assert set(world.done.values()) == {1}
    assert log == [
        text
        for turn in range(7)
        for text in (f"reply 1 to {turn}", f"look 1 at {turn}", f"charged {turn}")
    ]


@async_test
async def test_passed_over_turns_stay_passed_over_with_another_cadence(store: str) -> None:
    """The record goes on beyond them: a checkpoint there would cut off what was done later."""
    world = World()
    world.crash_at = "end 4"
    before, after = worker_of(world, "boundary"), worker_of(world, "turn")
    await crash_and_finish(store, before, 7, again=after)
    assert {name for name, times in world.done.items() if times > 1 and "look" not in name} == set()
    assert world.boundaries == [None] * 5 + [None] * 4 + [1, 2, 3]


@async_test
async def test_turns_with_effects_alone_are_passed_over_again(store: str) -> None:
    """No result stands before the effect of the second turn that could tell of the first."""
    done: list[int] = []
    crashes = [True]
    cadence: list[Cadence] = ["boundary", "turn"]

    @holdfast.tool
    async def charge(turn: int) -> int:
        done.append(turn)
        return turn

    def make(cadence: Cadence) -> holdfast.Agent[[], int]:
        @holdfast.agent(name="charger", tools=[charge], cadence=cadence)
        async def agent(run: holdfast.Run) -> int:
            at = run.value("at", int, 0)
            while at.get() < 3:
                await run.call(charge, at.get())
                at.set(at.get() + 1)
                if at.get() == 2 and crashes:
                    crashes.pop()
                    raise Crash
                await run.checkpoint()
            return at.get()

        return agent

    for one in cadence:
        async with holdfast.Holdfast(store, agents=[agent := make(one)]) as hf:
            if one == "boundary":
                await start(hf, agent)
            await advance(hf, "r")
    async with holdfast.Holdfast(store) as hf:
        assert await hf.runs.result("r") == 3
    assert done == [0, 1, 2]


@async_test
async def test_effect_that_is_not_repeated_is_noticed_with_any_cadence(store: str) -> None:
    passes: list[int] = []

    @holdfast.tool
    async def charge(cents: int) -> str:
        return "ok"

    @holdfast.agent(tools=[charge], cadence="boundary")
    async def careless(run: holdfast.Run) -> None:
        passes.append(1)
        await run.checkpoint()
        if len(passes) == 1:
            await run.call(charge, 1)
            raise Crash
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[careless]) as hf:
        await start(hf, careless)
        assert await advance(hf, "r") is None
        ending = await advance(hf, "r")
        assert ending is not None
        assert isinstance(ending.error, TurnDiverged)


# Stopping.


@pytest.mark.parametrize("cadence", ["boundary", every(turns=100)], ids=str)
@async_test
async def test_worker_that_stops_stores_the_turn_it_is_in(store: str, cadence: Cadence) -> None:
    world = World()
    stop: list[Callable[[], None]] = []

    async def model(turn: int) -> str:
        world.done[f"model {turn}"] += 1
        return "x"

    @holdfast.agent(cadence=cadence)
    async def talker(run: holdfast.Run) -> int:
        done = run.value("done", int, 0)
        while done.get() < 4:
            await run.model(model, done.get())
            done.set(done.get() + 1)
            if done.get() == 2 and stop:
                stop.pop()()
            await run.checkpoint()
        return done.get()

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await start(hf, talker)
        stop.append(lambda: hf._work.hand_back("its worker is stopping"))
        task = hf._work.start_pass(await hf.leases.take("r"))
        await task
        assert (await hf.runs.get("r")).status == "ready"
        assert (await hf.checkpoints.load("r"))["done"] == 2
        await advance(hf, "r")
        assert await hf.runs.result("r") == 4
    assert set(world.done.values()) == {1}


# How it is said.


@async_test
async def test_ready_loop_has_a_cadence(store: str) -> None:
    @holdfast.tool(effect="read")
    async def look() -> str:
        return "seen"

    async def model(transcript: list[Message]) -> Message:
        if len(transcript) < 6:
            return Message.assistant(tool_calls=[ToolCall(f"c{len(transcript)}", "look", {})])
        return Message.assistant("done")

    loop = AgentLoop(model, tools=[look], cadence="boundary")
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        assert await hf.run(loop, "go", run_id="r") == "done"
        assert set(await kinds(hf, "r")) == OWN


async def idle(run: holdfast.Run) -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: every(),
        lambda: every(turns=0),
        lambda: every(seconds=0),
        lambda: every(turns=True),
        lambda: holdfast.agent(cadence="sometimes")(idle),  # type: ignore[arg-type]
        lambda: holdfast.agent(cadence=3)(idle),  # type: ignore[arg-type]
    ],
)
def test_wrong_cadence_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(MisuseError):
        wrong()


@async_test
async def test_boundary_leaves_what_was_paid_on_record_and_nothing_else(store: str) -> None:
    async def reply() -> Message:
        return Message.assistant("done", usage=Usage(input_tokens=7, output_tokens=3, usd=0.5))

    @holdfast.agent(cadence="boundary")
    async def agent(run: holdfast.Run) -> str:
        await run.checkpoint()
        return (await run.model(reply)).text

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "done"
        told = [entry.kind for entry in await hf.journal.read("r")]
        assert told == ["RUN_CREATED", "RUN_LEASED", "COST_RECORDED", "RUN_COMPLETED"]
        assert (await hf.budgets.costs("r")).total.usd_micros == 500_000
