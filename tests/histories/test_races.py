"""Eight real processes on one store, round after round: nobody is ever told two truths."""

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.testing import Operation, contradictions
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.processes import Child

PROCESSES = 8
# Where processes do not wait for one another's transactions a round costs more, and shows more.
ROUNDS = {"sqlite": 25, "postgres": 12}
CHAOS_ROUNDS = {"sqlite": 60, "postgres": 20}


@pytest.fixture
def children(store: str) -> Iterator[list[Child]]:
    # Who waits for the lock of a file waits for all others, on a busy machine for long.
    started = [
        Child("tests.child", store, 15, "busy_timeout_seconds=300") for _ in range(PROCESSES)
    ]
    try:
        for child in started:
            child.ask(["hello"])
        yield started
    finally:
        for child in started:
            child.close()


@pytest.fixture
def rounds(backend: Backend, is_chaos: bool) -> int:
    return (CHAOS_ROUNDS if is_chaos else ROUNDS)[backend.name]


def all_at_once(children: list[Child], command: Any) -> list[Any]:
    """Give every process the command before any answer is read."""
    for number, child in enumerate(children):
        child.tell(command(number) if callable(command) else command)
    return [child.answer() for child in children]


def claims(thing: str, answers: list[bool]) -> list[Operation]:
    return [
        Operation(actor=f"p{n}", kind="claim", thing=thing, ok=ok) for n, ok in enumerate(answers)
    ]


@async_test
@pytest.mark.mission("S0-005", "S0-020", "S0-021", "S0-044", "S0-048", "S0-049")
@pytest.mark.mission("S0-103", "S0-104", "S0-113", "S1-079", "S4-076", "X-003")
async def test_each_wait_is_resolved_by_exactly_one_process(
    store: str, children: list[Child], rounds: int
) -> None:
    async with holdfast.open(store) as hf:
        history: list[Operation] = []
        run = await hf.runs.open("waits")
        specs = [holdfast.WaitSpec(wait_id=f"w{n}") for n in range(rounds)]
        group = await run.open_waits(specs, suspend=True)
        winners: dict[str, str] = {}
        for n in range(rounds):
            answers = all_at_once(children, lambda p, n=n: ["resolve", f"w{n}", f"p{p}"])
            history += claims(f"w{n}", [accepted for accepted, _ in answers])
            assert len({first for _, first in answers}) == 1
            winners[f"w{n}"] = answers[0][1]
        assert contradictions(history) == []
        results = {r.wait_id: r.value for r in await hf.waits.results("waits", group)}
        assert results == winners
        assert (await hf.runs.get("waits")).status == "ready"
        assert await hf.journal.verify("waits") == []


@async_test
@pytest.mark.mission("S0-086", "S2-002", "S2-027")
async def test_reply_and_timeout_race_for_a_wait_and_one_wins(
    store: str, children: list[Child], rounds: int
) -> None:
    async with holdfast.open(store) as hf:
        for n in range(rounds):
            run = await hf.runs.open(f"run-{n}")
            spec = holdfast.WaitSpec(wait_id=f"t{n}", timeout_seconds=0)
            group = await run.open_waits([spec], suspend=True)
            answers = all_at_once(
                children,
                lambda p, n=n: ["resolve", f"t{n}", f"p{p}"] if p % 2 else ["expire_due"],
            )
            replies = sum(accepted for accepted, _ in answers[1::2])
            timeouts = sum(answers[0::2])
            assert replies + timeouts == 1
            (result,) = await hf.waits.results(f"run-{n}", group)
            assert result.status == ("resolved" if replies else "expired")
            assert (await hf.runs.get(f"run-{n}")).status == "ready"


@async_test
@pytest.mark.mission("S3-047", "S3-104", "S3-162", "S3-197", "S4-022", "X-013")
async def test_appends_of_racing_processes_are_all_there_once(
    store: str, children: list[Child], rounds: int
) -> None:
    async with holdfast.open(store) as hf:
        await hf.runs.create("shared")
        history: list[Operation] = []
        for n in range(rounds):
            answers = all_at_once(children, lambda p, n=n: ["append_anew", "shared", f"p{p}-{n}"])
            history += [
                Operation(actor=f"p{p}", kind="append", thing="shared", ok=True, value=f"p{p}-{n}")
                for p, _ in enumerate(answers)
            ]
            assert len(set(answers)) == PROCESSES
        log = (await hf.checkpoints.load("shared"))["log"]
        assert contradictions(history, final={"shared": log}) == []
        assert await hf.journal.verify("shared") == []


@async_test
async def test_each_ready_run_is_leased_by_exactly_one_process(
    store: str, children: list[Child], rounds: int
) -> None:
    async with holdfast.open(store) as hf:
        history: list[Operation] = []
        for n in range(rounds):
            await hf.runs.create(f"run-{n}")
            answers = all_at_once(children, ["next"])
            history += claims(f"run-{n}", [answer is not None for answer in answers])
        assert contradictions(history) == []


@async_test
@pytest.mark.mission("S4-033")
async def test_each_effect_of_a_lineage_is_fresh_for_exactly_one_process(
    store: str, children: list[Child], rounds: int
) -> None:
    async with holdfast.open(store) as hf:
        root = await hf.runs.open("root")
        await root.checkpoint()
        for p in range(PROCESSES):
            await hf.runs.fork("root", 1, new_run_id=f"fork-{p}")
        all_at_once(children, lambda p: ["open", f"fork-{p}"])
        history: list[Operation] = []
        for n in range(rounds):
            answers = all_at_once(children, lambda p, n=n: ["begin", f"fork-{p}", {"n": n}])
            assert set(answers) <= {"fresh", "in_flight"}
            history += claims(f"effect-{n}", [answer == "fresh" for answer in answers])
        assert contradictions(history) == []
