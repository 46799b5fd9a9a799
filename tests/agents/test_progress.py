"""A run tells how far its work is: from Python or by its model, stored as any value, once."""

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import HandoffPolicy, Message, Phase, ToolCall, Usage
from holdfast.agents.run import turn_of
from holdfast.agents.turn.context_usage import CONTEXT, WISH
from holdfast.agents.turn.progress import MAX_BYTES, MAX_ENTRIES, PART, StoredProgress, work_of
from holdfast.errors import InvalidIdentifier, MisuseError, RunFailed, ValueTooLarge
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


async def stored(hf: holdfast.Holdfast, run_id: str = "r") -> StoredProgress:
    return work_of((await hf.checkpoints.load(run_id))[PART])


def ids(items: Any) -> list[str]:
    return [item.id for item in items]


@pytest.mark.mission(
    "S3-019", "S3-020", "S3-021", "S3-022", "S3-023", "S3-024", "S3-025", "S3-026", "S3-029",
    "S3-030", "S3-031", "S3-032", "S3-033",
)  # fmt: skip
@async_test
async def test_what_an_agent_says_of_its_work_is_stored_with_its_checkpoint(store: str) -> None:
    @holdfast.agent
    async def build(run: holdfast.Run) -> str:
        told = run.progress
        told.pend("parser", "write the parser")
        told.pend("printer", "write the printer")
        told.pend("docs")
        told.focus("parser")
        told.block("docs", blocker="nobody knows the audience")
        told.complete("parser", "")
        told.decide("no generator", reason="the grammar is small")
        told.decide("no generator", reason="the grammar is tiny")
        told.assume("input is UTF-8")
        told.assume("input is UTF-8")
        told.constrain("no new dependency")
        told.depend("the grammar of the vendor")
        told.files("src/parser.py", "src/parser.py", "src/lexer.py")
        told.tests(passed=7, failed=1, skipped=2, coverage_percent=81.5)
        told.tests(passed=8, failed=0)
        await run.checkpoint()
        return "done"

    async with holdfast.Holdfast(store, agents=[build]) as hf:
        await hf.run(build, run_id="r")
        work = await stored(hf)
    state = work.execution_state
    assert ids(state.completed_items) == ["parser"]
    assert state.completed_items[0].text == "write the parser"
    assert ids(state.pending_items) == ["printer"]
    assert [(i.id, i.blocker) for i in state.blocked_items] == [
        ("docs", "nobody knows the audience")
    ]
    assert state.current_focus == ""
    summary = work.context_summary
    assert [(d.text, d.reason) for d in summary.key_decisions] == [
        ("no generator", "the grammar is tiny")
    ]
    assert summary.assumptions == ("input is UTF-8",)
    assert summary.constraints == ("no new dependency",)
    assert summary.external_dependencies == ("the grammar of the vendor",)
    assert work.metrics.files_modified == ("src/parser.py", "src/lexer.py")
    tests = work.metrics.tests_status
    assert (tests.passed, tests.failed, tests.skipped, tests.coverage_percent) == (8, 0, 2, 81.5)


@pytest.mark.mission("S3-018", "S3-133")
@async_test
async def test_phase_is_one_of_the_schema_and_finishing_one_is_remembered(store: str) -> None:
    seen: list[Any] = []

    @holdfast.agent
    async def build(run: holdfast.Run) -> None:
        seen.append(run.progress.phase)
        run.progress.enter_phase("implementing")
        for wrong in ("handoff", "sleeping", ""):
            with pytest.raises(MisuseError, match="one of planning"):
                run.progress.enter_phase(wrong)
        with pytest.raises(MisuseError, match="not over"):
            run.progress.finish_phase(Phase.IMPLEMENTING)
        run.progress.finish_phase("testing")
        seen.append(run.progress.phase)
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[build]) as hf:
        await hf.run(build, run_id="r")
        work = await stored(hf)
    assert seen == [Phase.PLANNING, Phase.TESTING]
    assert (work.execution_state.phase, work.finished_phase) == (Phase.TESTING, "implementing")


@async_test
async def test_run_that_says_nothing_stores_nothing_of_it(store: str) -> None:
    async def model(talk: Any) -> Message:
        return Message.assistant("yes", usage=Usage(input_tokens=5, output_tokens=1))

    loop = holdfast.AgentLoop(model)
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        await hf.run(loop, "well?", run_id="r")
        state = await hf.checkpoints.load("r")
    assert not {PART, CONTEXT, WISH} & set(state.parts)


@pytest.mark.mission("S3-027", "S3-028")
@async_test
async def test_turn_that_is_repeated_after_a_crash_says_and_counts_the_same(store: str) -> None:
    crashes = [True]

    @holdfast.tool
    async def charge(cents: int) -> str:
        return f"charged {cents}"

    async def model(talk: Any) -> Message:
        calls = [
            ToolCall("1", "progress_item", {"action": "pend", "id": "pay"}),
            ToolCall("2", "charge", {"cents": 5}),
            ToolCall("3", "charge", {"cents": "much"}),
        ]
        return Message.assistant(
            "", tool_calls=calls, usage=Usage(input_tokens=100, output_tokens=20)
        )

    @holdfast.agent(tools=[*holdfast.progress_tools, charge])
    async def pay(run: holdfast.Run) -> None:
        talk = run.log("transcript", Message)
        run.progress.complete("begin")
        reply = await run.model(model, talk)
        talk.extend(await run.tools(reply.tool_calls))
        await run.call(charge, 7)
        if crashes:
            crashes.pop()
            raise Crash
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[pay]) as hf:
        await start(hf, pay)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        work = await stored(hf)
        assert (await kinds(hf, "r")).count("EFFECT_ISSUED") == 2
        assert await hf.journal.verify("r") == []
    assert ids(work.execution_state.completed_items) == ["begin"]
    assert ids(work.execution_state.pending_items) == ["pay"]
    assert work.metrics.tokens_consumed == 120
    assert work.metrics.tools_invoked == 2, "neither the refused call nor progress is counted"


@pytest.mark.mission("S3-135")
@async_test
async def test_model_tells_of_its_work_by_tools_that_leave_no_entry(store: str) -> None:
    said = [
        ("progress_item", {"action": "pend", "id": "a", "text": "first"}),
        ("progress_item", {"action": "block", "id": "b"}),
        ("progress_item", {"action": "block", "id": "b", "blocker": "no key"}),
        ("progress_item", {"action": "focus", "id": "a"}),
        ("progress_item", {"action": "focus", "id": "zzz"}),
        ("progress_note", {"kind": "decision", "text": "use files", "reason": "simple"}),
        ("progress_note", {"kind": "assumption", "text": "small"}),
        ("progress_note", {"kind": "constraint", "text": "offline"}),
        ("progress_note", {"kind": "dependency", "text": "disk"}),
        ("progress_note", {"kind": "rumour", "text": "x"}),
        ("progress_report", {"files": ["a.py"], "tests_passed": 3, "coverage_percent": 50}),
        ("progress_report", {"tests_passed": -1}),
        ("progress_phase", {"next": "implementing"}),
        ("hand_over", {"to": "qa", "reason": "needs testing"}),
    ]
    answers: list[Any] = []

    async def done(talk: list[Message]) -> Message:
        return Message.assistant("done")

    async def model(talk: list[Message]) -> Message:
        calls = [ToolCall(str(at), name, args) for at, (name, args) in enumerate(said)]
        return Message.assistant(tool_calls=calls)

    loop = holdfast.AgentLoop(model, tools=[*holdfast.progress_tools, holdfast.hand_over])
    qa = holdfast.AgentLoop(done, name="qa")
    async with holdfast.Holdfast(store, agents=[loop, qa]) as hf:
        assert await hf.run(loop, "go", run_id="r") == "done"
        state = await hf.checkpoints.load("r", version=1)
        work = work_of(state[PART])
        for message in state["transcript"]:
            told = msgspec.convert(message, Message)
            answers.extend(told.results)
        assert not [kind for kind in await kinds(hf, "r") if kind.startswith("EFFECT")]
    assert [a.call_id for a in answers if a.is_error] == ["1", "4", "9", "11"]
    assert answers[0].content == "0 items are completed, 1 pending, 0 blocked"
    assert "say what blocks" in answers[1].content
    assert work.execution_state.current_focus == "a"
    assert work.execution_state.blocked_items[0].blocker == "no key"
    assert work.context_summary.external_dependencies == ("disk",)
    assert work.metrics.files_modified == ("a.py",)
    assert work.metrics.tests_status.passed == 3
    assert (work.finished_phase, work.execution_state.phase) == ("planning", Phase.IMPLEMENTING)
    assert state[WISH] == {"to": "qa", "note": "needs testing", "is_asked": True}


@async_test
async def test_what_makes_no_sense_is_refused_and_changes_nothing(store: str) -> None:
    @holdfast.agent
    async def build(run: holdfast.Run) -> None:
        told = run.progress
        told.pend("a", "first")
        before = told.state
        with pytest.raises(InvalidIdentifier):
            told.pend("")
        with pytest.raises(InvalidIdentifier):
            told.complete("line\nbreak")
        with pytest.raises(MisuseError, match="what blocks"):
            told.block("a", blocker="  ")
        with pytest.raises(MisuseError, match="no open item 'b'"):
            told.focus("b")
        with pytest.raises(MisuseError, match="needs a text"):
            told.decide("")
        with pytest.raises(MisuseError, match="at most 4000"):
            told.assume("x" * 4001)
        with pytest.raises(MisuseError, match="whole number"):
            told.tests(passed=-1)
        for wrong in (101, float("nan"), "all"):
            with pytest.raises(MisuseError, match="0 to 100"):
                told.tests(coverage_percent=wrong)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="is a text"):
            told.pend("a", 7)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="is a text"):
            told.files(None)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="one of planning"):
            told.enter_phase(None)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="for models"):
            await holdfast.hand_over()
        assert told.state == before

    async with holdfast.Holdfast(store, agents=[build]) as hf:
        await hf.run(build, run_id="r")


@async_test
async def test_progress_is_bounded_and_says_so(store: str) -> None:
    @holdfast.agent
    async def much(run: holdfast.Run) -> None:
        for at in range(MAX_ENTRIES):
            run.progress.files(f"{at}.py")
        with pytest.raises(ValueTooLarge, match="at most 500 files"):
            run.progress.files("one-more.py")
        for at in range(MAX_BYTES // 4000):
            run.progress.constrain(f"{at}".ljust(3900, "x"))
        run.progress.assume("y" * 3000)
        with pytest.raises(ValueTooLarge, match="fewer words"):
            run.progress.assume("z" * 4000)
        raise RunFailed("enough")

    async with holdfast.Holdfast("memory://", agents=[much]) as hf:
        with pytest.raises(RunFailed, match="enough"):
            await hf.run(much, run_id="r")


@async_test
async def test_item_that_is_pended_again_is_open_again(store: str) -> None:
    @holdfast.agent
    async def build(run: holdfast.Run) -> list[list[str]]:
        told = run.progress
        for id in ("a", "b", "c"):
            told.pend(id, f"do {id}")
        told.complete("b")
        told.pend("b")
        told.block("a", blocker="no")
        told.pend("a")
        told.pend("c", "do c well")
        state = told.state.execution_state
        return [
            [f"{i.id}: {i.text}{i.blocker}" for i in items]
            for items in (state.completed_items, state.pending_items, state.blocked_items)
        ]

    async with holdfast.Holdfast("memory://", agents=[build]) as hf:
        found = await hf.run(build, run_id="r")
    assert found == [[], ["c: do c well", "b: do b", "a: do a"], []]


@pytest.mark.mission("S3-131")
@async_test
async def test_numbers_of_a_context_are_stored_for_agents_with_a_policy(store: str) -> None:
    usages = iter([(1000, 50), (1200, 80), (2600, 40)])

    @holdfast.tool(effect="read")
    async def look(at: int) -> str:
        if at == 1:
            raise ValueError("not there")
        return "x" * 300

    async def model(talk: list[Message]) -> Message:
        given, said = next(usages)
        turn = sum(m.role == "assistant" for m in talk)
        calls = [ToolCall(str(turn), "look", {"at": turn})] if turn < 2 else []
        usage = Usage(input_tokens=given, output_tokens=said)
        return Message.assistant("hm", tool_calls=calls, usage=usage)

    policy = HandoffPolicy(window=10_000, prompt_tokens=1000)
    loop = holdfast.AgentLoop(model, tools=[look], handoff=policy)
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        await hf.run(loop, "go", run_id="r")
        first = (await hf.checkpoints.load("r", version=1))[CONTEXT]
        second = (await hf.checkpoints.load("r", version=2))[CONTEXT]
        last = (await hf.checkpoints.load("r"))[CONTEXT]
        work = await stored(hf)
    # 300 characters, the id of the call and a space are 101 tokens; a message takes 4 more.
    assert (first["used"], first["largest_turn"], first["turns"]) == (1155, 155, 1)
    assert first.get("errors", 0) == 0
    assert second["errors"] == 1
    assert second["used"] >= 1280
    assert (last["used"], last["replies"]) == (2640, 3)
    assert last["max_utilization"] == pytest.approx(0.264)
    assert work.metrics.tokens_consumed == 1050 + 1280 + 2640
    assert work.metrics.tools_invoked == 2


@async_test
async def test_texts_that_a_model_is_given_and_says_are_counted_as_they_are(store: str) -> None:
    """Not in a form in which they are stored or sent, which has quotation marks and escapes."""
    prompt, said = 'Say "a"\n' * 10, '"a"\n' * 5

    async def model(prompt: str) -> str:
        return said

    @holdfast.agent(handoff=HandoffPolicy(count=len, window=1000, prompt_tokens=100))
    async def talker(run: holdfast.Run) -> str:
        return await run.model(model, prompt)

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        assert await hf.run(talker, run_id="r") == said
        numbers = (await hf.checkpoints.load("r"))[CONTEXT]
    assert numbers["used"] == len(prompt) + len(said)


@async_test
async def test_without_usage_the_counter_counts_what_the_model_was_given(store: str) -> None:
    async def model(talk: list[Message]) -> Message:
        return Message.assistant("four words of reply")

    policy = HandoffPolicy(count=lambda text: len(text.split()), window=1000, prompt_tokens=100)

    @holdfast.agent(handoff=policy)
    async def chat(run: holdfast.Run) -> int:
        talk = run.log("transcript", Message)
        talk.append(Message.user("one two three"))
        talk.append(await run.model(model, talk))
        await run.checkpoint()
        return turn_of(run).context_usage.numbers.used

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        used = await hf.run(chat, run_id="r")
        assert used == (3 + 4) + (4 + 4), "a message takes four tokens beside its words"


@async_test
async def test_wish_of_the_code_is_acted_upon_at_the_boundary(store: str) -> None:
    played: list[str] = []

    @holdfast.agent
    async def build(run: holdfast.Run) -> str:
        played.append("build")
        assert turn_of(run).context_usage.due() is None
        with pytest.raises(InvalidIdentifier):
            run.hand_over(to="a\nb")
        run.hand_over(to="qa", note="ready for tests")
        due = turn_of(run).context_usage.due()
        assert due is not None
        assert (due.kind, due.text, due.to) == ("explicit", "ready for tests", "qa")
        await run.checkpoint()
        raise AssertionError("nothing is done after the boundary")

    @holdfast.agent
    async def qa(run: holdfast.Run) -> str:
        played.append("qa")
        assert turn_of(run).context_usage.due() is None, "the wish was fulfilled"
        await run.checkpoint()
        return "tested"

    async with holdfast.Holdfast(store, agents=[build, qa]) as hf:
        handle = await hf.start(build, run_id="r")
        assert await handle.result(timeout=30) == "tested"
    assert played == ["build", "qa"]


def test_policy_that_is_no_policy_is_refused() -> None:
    with pytest.raises(MisuseError, match="HandoffPolicy"):
        holdfast.agent(handoff=HandoffPolicy)(lambda: None)  # type: ignore[call-overload]


@async_test
async def test_turn_that_waits_for_a_person_tells_and_counts_once(store: str) -> None:
    async def model(talk: Any) -> Message:
        calls = [
            ToolCall("1", "progress_item", {"action": "complete", "id": "plan"}),
            ToolCall("2", "ask_person", {"question": "deploy?"}),
        ]
        usage = Usage(input_tokens=10, output_tokens=5)
        return Message.assistant(tool_calls=calls, usage=usage)

    tools = [*holdfast.progress_tools, holdfast.ask_person]

    @holdfast.agent(tools=tools, handoff=HandoffPolicy(window=10_000))
    async def deploy(run: holdfast.Run) -> str:
        reply = await run.model(model, "go")
        (_, answer) = await run.tools(reply.tool_calls)
        await run.checkpoint()
        return answer.results[0].content

    async with holdfast.Holdfast(store, agents=[deploy]) as hf:
        await start(hf, deploy)
        assert await advance(hf, "r") is not None
        (asked,) = await hf.approvals.list()
        assert await hf.runs.get("r")
        await hf.approvals.answer(asked.wait_id, "yes", by="ann")
        ending = await advance(hf, "r")
        assert ending is not None
        assert ending.is_over
        work = await stored(hf)
        numbers = (await hf.checkpoints.load("r"))[CONTEXT]
    assert ids(work.execution_state.completed_items) == ["plan"]
    assert work.metrics.tokens_consumed == 15
    assert work.metrics.tools_invoked == 0
    assert (numbers["replies"], numbers["turns"]) == (1, 1)


@async_test
async def test_ends_of_turns_that_are_passed_over_count_as_turns(store: str) -> None:
    crashes = [True]

    async def model(turn: int) -> Message:
        usage = Usage(input_tokens=100 * (turn + 1), output_tokens=10)
        return Message.assistant(f"turn {turn}", usage=usage)

    @holdfast.agent(cadence=holdfast.every(turns=3), handoff=HandoffPolicy(window=10_000))
    async def think(run: holdfast.Run) -> None:
        for turn in range(turn_of(run).context_usage.numbers.turns, 6):
            await run.model(model, turn)
            run.progress.complete(f"turn {turn}")
            if turn == 4 and crashes:
                crashes.pop()
                raise Crash
            await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[think]) as hf:
        await start(hf, think)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        work = await stored(hf)
        numbers = (await hf.checkpoints.load("r"))[CONTEXT]
    assert len(work.execution_state.completed_items) == 6
    assert work.metrics.tokens_consumed == sum(100 * (turn + 1) + 10 for turn in range(6))
    assert (numbers["turns"], numbers["replies"], numbers["used"]) == (6, 6, 610)
    assert numbers["largest_turn"] == 100
