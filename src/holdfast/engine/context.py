"""What every use case needs: the store, wake-ups, settings, and who is acting."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from holdfast import ids
from holdfast.engine.liveness import WorkerWatch
from holdfast.engine.spool import Spool
from holdfast.kernel.budgets import Ledger
from holdfast.kernel.peers import STORE
from holdfast.settings import Settings
from holdfast.stores.contract import Decide, Late, Store
from holdfast.telemetry import Telemetry
from holdfast.wakeups.contract import Wakeups


def in_this_store(name: str) -> str:
    """The address of an agent whose runs are in the same store."""
    return STORE


@dataclass(frozen=True)
class Context:
    """One open store and the worker that uses it: a new identity at every start."""

    store: Store
    wakeups: Wakeups
    settings: Settings
    telemetry: Telemetry
    worker: str = field(default_factory=ids.new_worker_id)
    address_of: Callable[[str], str] = in_this_store
    """Where the agent of a name is reached."""
    spool: Spool | None = None
    """Where commits go while the store is away, if the settings say so."""
    watch: WorkerWatch = field(default_factory=WorkerWatch)
    """Which of the other workers are lost."""
    ledgers: dict[str, Ledger] = field(default_factory=dict[str, Ledger])
    """What was added up of the journals of budgets, by run: see `reading.proved_budgets`."""
    lineages: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Runs and those they descend from, which never change."""

    @cached_property
    def tenant(self) -> str:
        return self.settings.tenant

    @cached_property
    def may_wait_for_store(self) -> bool:
        """Whether commits may wait for a store that is away: in memory, or in the spool."""
        return self.spool is not None or self.settings.on_store_failure == "memory"

    @cached_property
    def now(self) -> Callable[[], int]:
        """The clock of the store."""
        return self.store.clock.now

    async def decide_late(self, run_id: str, decide: Decide, *, by: str = "", **asked: Any) -> Any:
        """Let `decide` judge a run that this worker does not hold; its answer."""
        return await self.store.submit(
            Late(self.tenant, run_id, by or self.worker, decide, **asked)
        )

    async def changes(self, topic: str) -> AsyncIterator[None]:
        """Yield at once, then whenever `topic` may have changed.

        Polling is the truth underneath: a lost hint costs `wakeup_poll_seconds`, nothing else.
        """
        while True:
            ticket = self.wakeups.ticket(topic)
            yield
            await self.wakeups.wait(topic, ticket, timeout=self.settings.wakeup_poll_seconds)
