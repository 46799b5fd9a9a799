"""Effects of one session: intent and result on record, against two raw commits."""

import json
from typing import Any

import holdfast
from benchmarks import places
from benchmarks.contract import Floor, Place
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


async def commit_twice(floor: Floor, number: int) -> None:
    """The floor: the same bytes in two raw commits."""
    await floor.commit(json.dumps(arguments(number)).encode())
    await floor.commit(json.dumps(_RESULT).encode())


async def effect(place: Place, sizes: Sizes) -> list[Row]:
    """Effects one after another, two raw commits after each."""
    ours, raw = Stopwatch(), Stopwatch()
    for _ in range(sizes.repeats):
        floor = await places.connect(place.new_floor())
        async with holdfast.open(place.new_store()) as hf:
            run = await hf.runs.open("session-0001", agent="support")
            for number in range(sizes.effects):
                with ours:
                    await perform(run, number)
                with raw:
                    await commit_twice(floor, number)
        await floor.close()
    return [judged("effect", ours.median, "ms", floor=raw.median, at_most=1.5)]
