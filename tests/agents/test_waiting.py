"""Questions, timers and signals inside a turn: opened once, and the same after every crash."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, field_validator

import holdfast
from holdfast import Message, ToolCall
from holdfast.errors import (
    AlreadyAnswered,
    AnswerRefused,
    MisuseError,
    NoAnswer,
    RunFailed,
    RunWaiting,
    StoreBusy,
    TurnDiverged,
    WaitNotFound,
)
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


@dataclass
class Plan:
    steps: int
    why: str = ""


async def one(hf: holdfast.Holdfast, run_id: str = "r") -> holdfast.Asked:
    (asked,) = await hf.approvals.list(run_id=run_id)
    return asked


@pytest.mark.mission("S1-001", "S1-002")
@async_test
async def test_question_is_asked_once_and_its_answer_outlives_every_crash(store: str) -> None:
    got: list[Plan] = []

    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        plan = await run.ask("How many steps?", schema=Plan)
        got.append(plan)
        if len(got) < 3:
            raise Crash
        return plan.steps

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "waiting"
        asked = await one(hf)
        assert (asked.prompt, asked.kind, asked.run_id) == ("How many steps?", "question", "r")
        await hf.approvals.answer(asked.wait_id, {"steps": 3}, by="ann")
    for _ in range(3):
        async with holdfast.Holdfast(store, agents=[agent]) as hf:
            await advance(hf, "r")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == 3
        assert got == [Plan(3)] * 3
        assert (await kinds(hf, "r")).count("WAITS_OPENED") == 1
        told = await hf.approvals.get(asked.wait_id)
        assert (told.answer, told.answered_by, told.status) == ({"steps": 3}, "ann", "resolved")
        assert told.answered_at >= told.asked_at
        assert await hf.approvals.list() == []
        assert await hf.journal.verify("r") == []


@async_test
async def test_answer_that_does_not_fit_is_refused_in_words_and_nothing_is_recorded(
    store: str,
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "cents": {"type": "integer", "minimum": 1, "maximum": 100},
            "to": {"enum": ["ann", "bob"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
        },
        "required": ["cents"],
    }

    @holdfast.agent
    async def agent(run: holdfast.Run) -> Any:
        return await run.ask("What?", schema=schema)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        asked = await one(hf)
        for value, words in (
            ("yes", '"yes" is not an object with named fields'),
            ({}, "cents is missing"),
            ({"cents": 0}, "cents: 0 is too small: it must be at least 1"),
            ({"cents": 500}, "cents: 500 is too large: it must be at most 100"),
            ({"cents": 5, "to": "eve"}, 'to: "eve" is not one of: "ann", "bob"'),
            ({"cents": 5, "tags": ["a", 2]}, "tags[1]: 2 is not a text"),
        ):
            with pytest.raises(AnswerRefused) as refused:
                await hf.approvals.answer(asked.wait_id, value, by="ann")
            assert words in str(refused.value)
        assert (await kinds(hf, "r"))[-1] == "RUN_WAITING"
        await hf.approvals.answer(asked.wait_id, {"cents": 7}, by="ann")
        assert await hf.run(agent, run_id="r") == {"cents": 7}


@pytest.mark.parametrize("answer", ["", None, [], 0, False, {}])
@async_test
async def test_empty_answer_is_an_answer(store: str, answer: Any) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> Any:
        return [await run.ask("Anything to add?", timeout=60, default="silence")]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.approvals.answer((await one(hf)).wait_id, answer, by="ann")
        assert await hf.run(agent, run_id="r") == [answer]


@pytest.mark.mission("S1-006")
@async_test
async def test_several_questions_are_open_at_once_and_each_is_answered_by_itself(
    store: str,
) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[str]:
        asked = (run.ask(f"Question {n}?", choices=["a", "b", "c"]) for n in range(3))
        return await run.gather(*asked)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        asked = {question.prompt: question.wait_id for question in await hf.approvals.list()}
        assert sorted(asked) == ["Question 0?", "Question 1?", "Question 2?"]
        with pytest.raises(AnswerRefused, match='"d" is not one of the choices: "a", "b", "c"'):
            await hf.approvals.answer(asked["Question 1?"], "d", by="ann")
        for prompt, answer in (("Question 2?", "c"), ("Question 0?", "a"), ("Question 1?", "b")):
            assert (await hf.runs.get("r")).status == "waiting"
            await hf.approvals.answer(asked[prompt], answer, by="ann")
        assert await hf.run(agent, run_id="r") == ["a", "b", "c"]
        assert (await kinds(hf, "r")).count("WAITS_OPENED") == 1


@async_test
async def test_second_answer_is_told_who_was_first_and_the_same_again_is_no_error(
    store: str,
) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask("Who?", schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        wait_id = (await one(hf)).wait_id
        assert (await hf.approvals.answer(wait_id, "me", by="ann")).accepted
        assert not (await hf.approvals.answer(wait_id, "me", by="ann")).accepted
        with pytest.raises(AlreadyAnswered, match=r"ann was first, at 20.* and said: me"):
            await hf.approvals.answer(wait_id, "no, me", by="bob")
        with pytest.raises(AlreadyAnswered):
            await hf.approvals.answer(wait_id, "another", by="ann")
        with pytest.raises(MisuseError, match="is a question: answer it"):
            await hf.approvals.approve(wait_id, by="ann")
        assert await hf.run(agent, run_id="r") == "me"


@async_test
async def test_one_of_many_concurrent_answers_wins(store: str, is_chaos: bool) -> None:
    many = 1000 if is_chaos else 250

    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        return await run.ask("Which?", schema=int)

    async def answer(hf: holdfast.Holdfast, wait_id: str, number: int) -> int | str:
        while True:
            try:
                assert (await hf.approvals.answer(wait_id, number, by=f"p{number}")).accepted
                return number
            except AlreadyAnswered as error:
                return str(error).split(" was first")[0]
            except StoreBusy:
                continue  # nothing was said yet: a slow machine

    async with (
        holdfast.Holdfast(store, agents=[agent]) as hf,
        holdfast.Holdfast(store) as b,
        holdfast.Holdfast(store) as c,
        holdfast.Holdfast(store) as d,
    ):
        await start(hf, agent)
        await advance(hf, "r")
        wait_id = (await one(hf)).wait_id
        faces = (hf, b, c, d)
        said = await asyncio.gather(*(answer(faces[n % 4], wait_id, n) for n in range(many)))
        (winner,) = [number for number in said if isinstance(number, int)]
        assert {who for who in said if isinstance(who, str)} == {f"p{winner}"}
        assert await hf.run(agent, run_id="r") == winner
        assert (await kinds(hf, "r")).count("WAIT_RESOLVED") == 1


@async_test
async def test_time_to_answer_ends_with_the_default_or_an_error(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run, has_default: bool) -> str | None:
        if has_default:
            return await run.ask("Now?", schema=str, timeout=0.01, default="later")
        return await run.ask("Now?", schema=str, timeout=0.01)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, True, run_id="a") == "later"
        with pytest.raises(RunFailed, match=r"NoAnswer: nobody answered 'Now\?' in time"):
            await hf.run(agent, False, run_id="b")
        (wait,) = await hf.waits.of_run("a")
        with pytest.raises(AlreadyAnswered, match="the time to answer was over at"):
            await hf.approvals.answer(wait.wait_id, "now", by="ann")


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("it is odd")
        return number


@async_test
async def test_answer_that_its_type_refuses_after_all_is_asked_for_again(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        return (await run.ask("Which?", schema=Even)).number

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.approvals.answer((await one(hf)).wait_id, {"number": 3}, by="ann")
        await advance(hf, "r")
        again = await one(hf)
        assert "it is odd" in again.problem
        assert "\n" not in again.problem
        await hf.approvals.answer(again.wait_id, {"number": 4}, by="ann")
        assert await hf.run(agent, run_id="r") == 4


@async_test
async def test_days_and_ids_are_checked_when_they_are_given(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        day, one = await run.gather(
            run.ask("Which day?", schema=date), run.ask("Which one?", schema=UUID)
        )
        return f"{day.isoformat()} {one.int}"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        asked = {question.prompt: question.wait_id for question in await hf.approvals.list()}
        with pytest.raises(AnswerRefused, match=r'"tomorrow" is not a date, such as 2026-11-16'):
            await hf.approvals.answer(asked["Which day?"], "tomorrow", by="ann")
        with pytest.raises(AnswerRefused, match="is not a UUID"):
            await hf.approvals.answer(asked["Which one?"], "that one", by="ann")
        await hf.approvals.answer(asked["Which day?"], "2026-11-17", by="ann")
        await hf.approvals.answer(asked["Which one?"], str(UUID(int=7)), by="ann")
        assert await hf.run(agent, run_id="r") == "2026-11-17 7"


@async_test
async def test_answer_that_was_never_checked_is_asked_for_again(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask("Which?", choices=["a", "b"])

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.waits.resolve((await one(hf)).wait_id, "c", by="a program")
        await advance(hf, "r")
        again = await one(hf)
        assert again.problem == '"c" is not one of the choices: "a", "b"'
        await hf.approvals.answer(again.wait_id, "b", by="ann")
        assert await hf.run(agent, run_id="r") == "b"


@async_test
async def test_misuse_is_refused_before_anything_is_written(store: str) -> None:
    asked: list[Any] = [
        lambda run: run.ask(""),
        lambda run: run.ask("x", default=1),
        lambda run: run.ask("x", schema=int, timeout=1, default="no number"),
        lambda run: run.ask("x", choices="yes"),
        lambda run: run.ask("x", schema={"type": "nothing"}),
        lambda run: run.sleep(),
        lambda run: run.sleep(seconds=-1),
        lambda run: run.sleep(seconds=1, until=datetime.now(UTC)),
        lambda run: run.sleep(until=datetime(2030, 1, 1)),  # noqa: DTZ001 - what is tested
        lambda run: run.signal("message"),
        lambda run: run.signal("x", timeout=1, until=datetime.now(UTC)),
    ]

    @holdfast.agent
    async def agent(run: holdfast.Run, number: int) -> str:
        with pytest.raises(MisuseError):
            await asked[number](run)
        return "refused"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        for number in range(len(asked)):
            assert await hf.run(agent, number, run_id=f"r{number}") == "refused"
            assert "WAITS_OPENED" not in await kinds(hf, f"r{number}")


@async_test
async def test_wait_that_the_code_does_not_ask_for_again_is_named(store: str) -> None:
    prompts = ["Old?", "New?"]

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask(prompts[0], schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.approvals.answer((await one(hf)).wait_id, "yes", by="ann")
        prompts.pop(0)
        with pytest.raises(TurnDiverged, match=r"question .*resolved"):
            await hf.run(agent, run_id="r")
        prompts.insert(0, "Old?")
        await hf.runs.unblock("r")
        assert await hf.run(agent, run_id="r") == "yes"


@async_test
async def test_run_that_is_given_back_while_it_waits_waits_on(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask("Who?", schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.runs.block("r", "breaker")
        await hf.runs.unblock("r")
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.approvals.answer((await one(hf)).wait_id, "me", by="ann")
        assert await hf.run(agent, run_id="r") == "me"
        assert (await kinds(hf, "r")).count("WAITS_OPENED") == 1


@async_test
async def test_answer_to_a_blocked_run_is_kept_until_it_goes_on(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask("Who?", schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.runs.block("r", "breaker")
        await hf.approvals.answer((await one(hf)).wait_id, "me", by="ann")
        assert (await hf.runs.get("r")).status == "blocked"
        await hf.runs.unblock("r")
        assert await hf.run(agent, run_id="r") == "me"


@async_test
async def test_whoever_waits_for_a_run_is_told_what_it_asks(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.ask("Who?", schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        telling = asyncio.create_task(hf.run(agent, run_id="r"))
        async with asyncio.timeout(60):
            while "holdfast approvals list --run r" not in caplog.text:
                await asyncio.sleep(0.05)
        telling.cancel()
        with pytest.raises(RunWaiting, match="waits for question") as waiting:
            await hf.run(agent, run_id="r", timeout=0.1)
        assert [wait.kind for wait in waiting.value.waits] == ["question"]
        await hf.runs.cancel("r")
        with pytest.raises(AlreadyAnswered, match="nobody waits for this any more"):
            await hf.approvals.answer(waiting.value.waits[0].wait_id, "me", by="ann")


@async_test
async def test_sleep_of_months_holds_nothing_and_ends_when_its_time_has_come(
    tmp_path: Any,
) -> None:
    clock = ManualClock()
    woken: list[str] = []

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        await run.sleep(seconds=90 * 86_400)
        woken.append("first")
        await run.sleep(seconds=60)
        await run.sleep(seconds=0)
        await run.sleep(until=datetime(2020, 1, 1, tzinfo=UTC))
        return "rested"

    path = str(tmp_path / "store.db")
    async with holdfast.Holdfast(path, agents=[agent], clock=clock) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        clock.advance(90 * 86_400 - 1)
        assert await hf.waits.expire_due() == 0
    async with holdfast.Holdfast(path, agents=[agent], clock=clock) as hf:
        clock.advance(2)
        assert await hf.waits.expire_due() == 1
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "waiting"
        clock.advance(61)
        assert await hf.waits.expire_due() == 1
        assert await hf.run(agent, run_id="r") == "rested"
        assert woken == ["first", "first"]  # the turn is repeated, its waits are not


@async_test
async def test_sleep_until_a_moment_that_is_computed_anew_is_the_same_sleep(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        await run.sleep(until=datetime.now(UTC) + timedelta(seconds=0.05))
        return "rested"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "rested"
        assert (await kinds(hf, "r")).count("WAIT_EXPIRED") == 1


@async_test
async def test_signals_are_kept_when_early_counted_once_and_taken_in_order(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[int]:
        got = run.value("got", list[int], [])
        while len(got.get()) < 4:
            got.set([*got.get(), await run.signal("number", int)])
            await run.checkpoint()
        return got.get()

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert (await hf.signal("r", "number", 1, id="a")).accepted
        assert not (await hf.signal("r", "number", 99, id="a")).accepted
        assert (await hf.signal("r", "number", 2, id="b")).accepted
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.signal("r", "other", 7)
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.signal("r", "number", 3, id="c", by="ann")
        await hf.signal("r", "number", 4, id="d")
        assert await hf.run(agent, run_id="r") == [1, 2, 3, 4]
        assert all(s.is_taken == (s.name == "number") for s in await hf.signals.of_run("r"))
        assert (await hf.signals.get("r", "c")).received_by == "ann"


@async_test
async def test_signal_that_was_taken_is_the_same_after_a_crash(store: str) -> None:
    crashes = [True, True]
    got: list[list[str]] = []

    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[str]:
        found = await run.gather(run.signal("x", str), run.signal("x", str), run.signal("y", str))
        got.append(found)
        if crashes:
            crashes.pop()
            raise Crash
        return found

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        for name, value in (("x", "one"), ("y", "two"), ("x", "three"), ("x", "left")):
            await hf.signal("r", name, value)
        for _ in range(3):
            await advance(hf, "r")
        assert got[0] == got[1] == got[2]
        assert sorted(got[0][:2]) == ["one", "three"]
        assert [s.name for s in await hf.signals.of_run("r") if not s.is_taken] == ["x"]


@async_test
async def test_signal_that_does_not_come_ends_with_the_default_even_if_it_comes_later(
    store: str,
) -> None:
    crashes = [True]

    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[str]:
        first = await run.signal("go", str, timeout=0.01, default="nothing")
        if crashes:
            crashes.pop()
            raise Crash
        return [first, await run.signal("go", str, until=datetime.now(UTC) + timedelta(days=1))]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        while (await hf.runs.get("r")).status == "waiting":
            await hf.waits.expire_due()
        await hf.signal("r", "go", "late")
        await advance(hf, "r")
        await advance(hf, "r")
        assert await hf.run(agent, run_id="r") == ["nothing", "late"]


@async_test
async def test_signal_that_comes_while_its_run_leaves_is_not_missed(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        return await run.signal("go", int)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        for number in range(20):
            run_id = f"r{number}"
            sending = asyncio.create_task(_send_soon(hf, run_id, number))
            assert await hf.run(agent, run_id=run_id) == number
            await sending


async def _send_soon(hf: holdfast.Holdfast, run_id: str, number: int) -> None:
    while True:
        try:
            await hf.runs.get(run_id)
        except holdfast.errors.RunNotFound:
            await asyncio.sleep(0)
            continue
        for _ in range(number):
            await asyncio.sleep(0)
        await hf.signal(run_id, "go", number)
        return


@async_test
async def test_what_no_person_answers_is_not_among_what_people_are_asked(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.signal("go", str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        assert await hf.approvals.list() == []
        with pytest.raises(WaitNotFound, match="is a signal, which no person answers"):
            await hf.approvals.answer(wait.wait_id, 1, by="ann")
        with pytest.raises(WaitNotFound):
            await hf.approvals.get("nothing")


@async_test
async def test_session_may_ask_in_the_middle_of_a_message(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run, message: str) -> str:
        return message + await run.ask("And?", schema=str)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "s")
        sending = asyncio.create_task(chat.send("one "))
        while not (asked := await hf.approvals.list()):
            await asyncio.sleep(0.01)
        later = asyncio.create_task(chat.send("two "))
        await hf.approvals.answer(asked[0].wait_id, "first", by="ann")
        assert await sending == "one first"
        while not (asked := await hf.approvals.list()):
            await asyncio.sleep(0.01)
        await hf.approvals.answer(asked[0].wait_id, "second", by="ann")
        assert await later == "two second"


@async_test
async def test_no_answer_can_be_caught(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        try:
            return await run.ask("Now?", schema=str, timeout=0.01)
        except NoAnswer:
            return "went on"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent) == "went on"


@async_test
async def test_model_asks_a_person_by_a_tool(store: str) -> None:
    replies: list[str] = []

    async def model(transcript: list[Message], *, tools: list[Any]) -> Message:
        last = transcript[-1]
        replies.append(last.role)
        if last.role == "user":
            calls = [
                ToolCall("1", "ask_person", {"question": "Which size?", "choices": ["S", "L"]}),
                ToolCall("2", "ask_person", {"question": "For whom?"}),
            ]
            return Message.assistant("", calls)
        return Message.assistant(" ".join(m.results[0].content for m in transcript[-2:]))

    loop = holdfast.AgentLoop(model, tools=[holdfast.ask_person])
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        await start(hf, loop, "go")
        await advance(hf, "r")
        asked = {question.prompt: question for question in await hf.approvals.list()}
        assert asked["Which size?"].choices == ["S", "L"]
        await hf.approvals.answer(asked["For whom?"].wait_id, "ann", by="bob")
        await hf.approvals.answer(asked["Which size?"].wait_id, "L", by="bob")
        assert await hf.run(loop, "go", run_id="r") == "L ann"
        assert replies == ["user", "tool"]
