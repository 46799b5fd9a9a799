"""The checkpoint service: writing one record, reading one, and a history of a hundred."""

from typing import Any

import holdfast
from benchmarks.contract import Place
from benchmarks.report import Row, tenfold
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from holdfast.records import CheckpointService

NAMES = ("record_write_p99", "record_read_p99", "record_history_p99")
_HISTORY = 100
_TASK = "task"


async def records(place: Place, sizes: Sizes) -> list[Row]:
    """All numbers of one store, on a task that grows meanwhile."""
    write, read, history = Stopwatch(), Stopwatch(), Stopwatch()
    async with holdfast.open(place.new_store()) as hf:
        service = CheckpointService(hf)
        for number in range(_HISTORY):
            await service.create_checkpoint(_TASK, "agent-1", _state(number))
        for number in range(_HISTORY, _HISTORY + sizes.reads):
            with write:
                made = await service.create_checkpoint(_TASK, "agent-1", _state(number))
            with read:
                await service.get_checkpoint(made.checkpoint_id)
            if number % 10 == 0:
                with history:
                    await service.get_checkpoint_history(_TASK, limit=_HISTORY)
    return [
        tenfold(NAMES[0], write, limit=100),
        tenfold(NAMES[1], read, limit=10),
        tenfold(NAMES[2], history, limit=100),
    ]


def _state(number: int) -> dict[str, Any]:
    """A record of some 3 KB, as an agent in the middle of its work has."""
    items = [
        {"id": f"step-{number - n}", "text": "what was asked for is there, tested and told of"}
        for n in range(15)
    ]
    decisions = [
        {"text": f"take way {n} for step {number}", "reason": "it is the shortest one"}
        for n in range(5)
    ]
    return {
        "metadata": {"agent_type": "qa"},
        "execution_state": {
            "phase": "implementing",
            "completed_items": items[:10],
            "pending_items": items[10:],
            "current_focus": f"step {number}",
        },
        "context_summary": {"key_decisions": decisions, "assumptions": ["one region"]},
        "metrics": {
            "tokens_consumed": 1000 * number,
            "tools_invoked": number,
            "files_modified": [f"src/part_{n}/module_{number % 7}.py" for n in range(8)],
        },
    }
