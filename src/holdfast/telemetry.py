"""Names of what can be observed, and the hook that observes it.

Nothing is measured unless a sink is installed; adapters (OpenTelemetry, tests) live elsewhere.
"""

import logging
from collections.abc import Callable
from typing import Final

log: Final = logging.getLogger("holdfast")

BATCH_COMMITTED: Final = "store.batch_committed"
BATCH_HALVED: Final = "store.batch_halved"
STORE_RETRIED: Final = "store.retried"
COMMIT_CONFLICT: Final = "engine.commit_conflict"
CHECKPOINT_CORRUPTED: Final = "engine.checkpoint_corrupted"
SPOOLED: Final = "spool.spooled"
SPOOL_DRAINED: Final = "spool.drained"
SPOOL_SUPERSEDED: Final = "spool.superseded"
WARM_STATE: Final = "engine.warm_state"

DAMAGE_FOUND: Final = "engine.damage_found"
BREAKER_OPEN: Final = "agents.breaker_open"

NAMES: Final = (
    BATCH_COMMITTED,
    BATCH_HALVED,
    STORE_RETRIED,
    COMMIT_CONFLICT,
    CHECKPOINT_CORRUPTED,
    WARM_STATE,
    SPOOLED,
    SPOOL_DRAINED,
    SPOOL_SUPERSEDED,
    DAMAGE_FOUND,
    BREAKER_OPEN,
)

Sink = Callable[[str, int], None]


class Telemetry:
    """Counts by name; a no-op until a sink is given."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink

    def count(self, name: str, amount: int = 1) -> None:
        if self._sink is None:
            return
        try:
            self._sink(name, amount)
        except Exception:
            # What observes must not stop what is observed: a commit is answered all the same.
            log.exception("the telemetry sink failed at %s", name)
