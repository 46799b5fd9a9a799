"""LangGraph's conformance kit, run on a saver by either of its faces."""

from collections.abc import AsyncGenerator

from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.report import CapabilityReport
from langgraph.checkpoint.conformance.validate import validate

from tests.integrations.langgraph.savers import Blocking, Saver, face_of, opened

# How many cases the kit has, by capability: a kit that shrinks, or skips, must not pass for more.
CASES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


async def run_kit(url: str, face: str) -> tuple[CapabilityReport, set[str]]:
    """All that the kit finds, and the sync methods that it reached.

    It makes a new saver for each capability, on the same store.
    """
    called: set[str] = set()

    async def make() -> AsyncGenerator[Saver, None]:
        with opened(url) as made:
            saver = face_of(made, face)
            yield saver
            if isinstance(saver, Blocking):
                called.update(saver.called)

    return await validate(RegisteredCheckpointer(f"HoldfastSaver ({face})", make)), called
