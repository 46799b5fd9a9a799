"""What each context, agent and phase of a run took, told from its journal; nothing counts twice."""

from typing import Any

import pytest

import holdfast
from holdfast import Amounts, Budget, HandoffPolicy, Message, ToolCall, Usage
from holdfast.clock import MICROSECONDS
from holdfast.errors import RunBlocked
from holdfast.testing import ManualClock
from holdfast.testing.clocks import outlive
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start

CENTS = 10_000


class Team:
    """A planner that finishes its phase, and a coder that goes on; each turn takes ten seconds."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock
        self.crashes: list[str] = []
        self.asked = 0
        policy = HandoffPolicy(by_phase={"implementing": "coder"})
        self.planner = self._agent("planner", "implementing", handoff=policy)
        self.coder = self._agent("coder", "", handoff=HandoffPolicy())

    async def reply(self, talk: Any) -> Message:
        self.asked += 1
        self.pass_time(10)
        used = Usage(usd=0.03, input_tokens=7, output_tokens=2)
        return Message.assistant("", tool_calls=[ToolCall("1", "note", {"n": 1})], usage=used)

    def pass_time(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.advance(seconds)

    def _agent(self, name: str, then: str, **options: Any) -> holdfast.Agent[[str], str]:
        @holdfast.tool(effect="idempotent")
        async def note(n: int) -> str:
            return "noted"

        @holdfast.tool(effect="read")
        async def look(n: int) -> str:
            return "seen"

        async def work(run: holdfast.Run, request: str) -> str:
            talk = run.log("transcript", Message)
            done = run.value(f"{name}-done", int, 0)
            while done.get() < 2:
                reply = await run.model(self.reply, talk)
                talk.extend([reply, *await run.tools(reply.tool_calls)])
                await run.call(look, done.get())
                if name in self.crashes:
                    self.crashes.remove(name)
                    raise Crash
                done.set(done.get() + 1)
                if then and done.get() == 2:
                    run.progress.finish_phase(then)
                await run.checkpoint()
            return "done"

        return holdfast.agent(name=name, tools=[note, look], **options)(work)


async def finish(hf: holdfast.Holdfast, run_id: str = "r") -> None:
    for _ in range(20):
        if (await hf.runs.get(run_id)).status == "completed":
            return
        await hf.leases.tend()
        if (await hf.runs.get(run_id)).status in ("ready", "running"):
            await advance(hf, run_id)
    raise AssertionError("it does not end")


def check_sums(costs: holdfast.Costs) -> None:
    """Every way of adding up comes to the same, and to the totals of the entries."""
    ways = (
        [segment.effort for segment in costs.segments],
        list(costs.by_agent.values()),
        list(costs.by_phase.values()),
    )
    for way in ways:
        assert sum(way, holdfast.Effort()) == costs.effort
    assert costs.effort.amounts == costs.total
    assert sum(costs.by_run.values(), Amounts()) == costs.total
    for effort in (costs.effort, *(effort for way in ways for effort in way)):
        assert effort.busy + effort.recovering + effort.handing_over <= effort.wall
        assert effort.effects <= effort.tools


async def check_entries(hf: holdfast.Holdfast, costs: holdfast.Costs, run_id: str = "r") -> None:
    """What was counted is what the entries say that were counted one by one."""
    entries = await hf.journal.read(run_id)
    kinds = [entry.kind for entry in entries]
    assert costs.effort.effects == kinds.count("EFFECT_ISSUED")
    assert costs.effort.checkpoints == kinds.count("CHECKPOINT_CREATED")
    assert costs.effort.recoveries == kinds.count("RECOVERY_INITIATED")
    assert costs.effort.wall == entries[-1].at - entries[0].at


@pytest.mark.mission("S3-005", "S3-027", "S3-028")
@async_test
async def test_segments_agents_and_phases_of_a_run_that_is_handed_over(store: str) -> None:
    team = Team()
    async with holdfast.Holdfast(store, agents=[team.planner, team.coder]) as hf:
        await start(hf, team.planner, "go")
        await finish(hf)
        costs = await hf.budgets.costs("r")
        check_sums(costs)
        await check_entries(hf, costs)
        history = await hf.checkpoints.history("r", limit=100)
    first, second = costs.segments
    assert [(s.number, s.agent, s.phases) for s in costs.segments] == [
        (1, "planner", ("planning", "implementing")),
        (2, "coder", ("implementing",)),
    ]
    for segment in costs.segments:
        effort = segment.effort
        assert effort.amounts == Amounts(6 * CENTS, 14, 4, 2)
        assert (effort.model_calls, effort.effects, effort.tools) == (2, 2, 4)
    assert (first.began_with, first.trigger) == (None, "phase_complete")
    assert second.began_with == first.ended_with
    assert (second.trigger, second.handoff_id) == ("", "")
    ids = {row.version: row.checkpoint_id for row in history}
    assert first.ended_with == ids[first.last_version]
    assert second.ended_with == ids[second.last_version]
    assert second.first_version == first.last_version + 1
    assert costs.by_agent["planner"].amounts == costs.by_agent["coder"].amounts
    assert costs.by_phase["planning"].amounts == first.effort.amounts, "the turn that finished it"
    assert costs.by_phase["implementing"].amounts == second.effort.amounts


@async_test
async def test_time_of_a_lost_worker_is_told_apart() -> None:
    clock = ManualClock()
    team = Team(clock)
    team.crashes.append("coder")
    options: dict[str, Any] = {"agents": [team.planner, team.coder], "clock": clock}
    async with holdfast.Holdfast("memory://", **options) as hf:
        await start(hf, team.planner, "go")
        clock.advance(5)
        await advance(hf, "r")
        clock.advance(3)
        await hf.leases.tend()
        await advance(hf, "r")
        assert not team.crashes
        assert await outlive(hf, clock, lease_seconds=60) == 1
        clock.advance(2)
        await finish(hf)
        costs = await hf.budgets.costs("r")
        check_sums(costs)
        await check_entries(hf, costs)
    planned, coded = costs.segments
    seconds = [
        (s.effort.busy, s.effort.recovering, s.effort.handing_over, s.effort.wall)
        for s in (planned, coded)
    ]
    second = MICROSECONDS
    assert seconds[0] == (20 * second, 0, 3 * second, 28 * second)
    assert seconds[1] == (20 * second, 62 * second, 0, 82 * second)
    assert coded.effort.recoveries == 1
    assert coded.effort.model_calls == 2, "the reply on record was not paid for again"
    assert team.asked == 4


@async_test
async def test_descendants_forks_and_blocks_add_up(store: str) -> None:
    team = Team()
    async with holdfast.Holdfast(store, agents=[team.planner, team.coder]) as hf:
        await hf.runs.create("boss", budget=Budget(usd=1.0))
        with pytest.raises(RunBlocked):
            await hf.run(team.coder, "go", run_id="r", parent="boss", budget=Budget(usd=0.02))
        await hf.budgets.add("r", Budget(usd=1.0))
        await finish(hf)
        forked = await hf.runs.fork("r", version=1)
        await finish(hf, forked.run_id)
        whole: dict[str, holdfast.Costs] = {}
        for run_id in ("boss", "r", forked.run_id):
            whole[run_id] = await hf.budgets.costs(run_id)
            check_sums(whole[run_id])
        account = await hf.budgets.get("boss")
    assert account is not None
    assert whole["boss"].total == account.spent
    drawn = [segment.effort.amounts for segment in whole["boss"].segments]
    assert drawn == [account.spent], "what descendants drew is in the segment of that time"
    assert whole["boss"].by_agent["coder"].model_calls == 3
    assert whole[forked.run_id].total.usd_micros == 3 * CENTS


@async_test
async def test_segment_goes_on_if_nobody_takes_over() -> None:
    clock = ManualClock()
    team = Team(clock)
    options: dict[str, Any] = {"agents": [team.planner, team.coder], "clock": clock}
    async with holdfast.Holdfast("memory://", **options) as hf:
        await start(hf, team.planner, "go")
        await advance(hf, "r")
        clock.advance(31)
        await hf.waits.expire_due()
        reverted = await hf.budgets.costs("r")
        check_sums(reverted)
        assert [s.trigger for s in reverted.segments] == [""]
        assert reverted.effort.handing_over == 31 * MICROSECONDS
        await finish(hf)
        costs = await hf.budgets.costs("r")
        check_sums(costs)
        await check_entries(hf, costs)


@async_test
async def test_rewind_to_another_context_begins_a_segment_of_its_own(store: str) -> None:
    team = Team()
    async with holdfast.Holdfast(store, agents=[team.planner, team.coder]) as hf:
        await start(hf, team.planner, "go")
        await advance(hf, "r")
        await hf.leases.tend()
        team.crashes.append("coder")
        await advance(hf, "r")
        await hf.runs.rewind("r", version=1, takeover=True)
        await finish(hf)
        costs = await hf.budgets.costs("r")
        check_sums(costs)
        await check_entries(hf, costs)
        first = (await hf.checkpoints.history("r", limit=100))[-1]
    told = [(segment.number, segment.agent) for segment in costs.segments]
    assert told == [(1, "planner"), (2, "coder"), (1, "planner"), (2, "coder")]
    assert costs.segments[2].began_with == first.checkpoint_id
