"""Effects of one session: intent and result on record, against two raw commits."""

import json
from pathlib import Path
from typing import Any

import holdfast
from benchmarks import floors
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from holdfast import EffectRequest, LeasedRun

_RESULT = {
    "status": "succeeded",
    "lines": [{"sku": f"A-{n:04}", "quantity": n, "price_cents": 1999 + n} for n in range(8)],
    "message": "The refund was accepted; the money arrives within five working days.",
}


def arguments(number: int) -> dict[str, Any]:
    """Arguments of a call; the number makes it another operation."""
    return {"order_id": number, "amount_cents": 4200, "reason": "returned within the window"}


async def perform(run: LeasedRun, number: int) -> None:
    """One effect: begun, and finished with its result."""
    (begun,) = await run.begin_effects([EffectRequest(tool="refund", args=arguments(number))])
    assert begun.answer == "fresh", "every number is another operation"
    await run.finish_effect(begun, _RESULT)


def commit_twice(raw: Any, number: int) -> None:
    """The floor: the same bytes in two raw commits."""
    floors.insert_and_commit(raw, json.dumps(arguments(number)).encode())
    floors.insert_and_commit(raw, json.dumps(_RESULT).encode())


async def effect(folder: Path, sizes: Sizes) -> list[Row]:
    """Effects one after another, two raw commits after each."""
    ours, floor = Stopwatch(), Stopwatch()
    for repeat in range(sizes.repeats):
        raw = floors.connect(folder / f"floor-{repeat}.db")
        async with holdfast.open(str(folder / f"store-{repeat}.db")) as hf:
            run = await hf.runs.open("session-0001", agent="support")
            for number in range(sizes.effects):
                with ours:
                    await perform(run, number)
                with floor:
                    commit_twice(raw, number)
        raw.close()
    return [judged("effect", ours.median, "ms", floor=floor.median, at_most=1.5)]
