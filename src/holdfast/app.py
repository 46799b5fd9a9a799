"""Holdfast: what `holdfast.open()` returns. Wires the layers below; no I/O until it is entered."""

from dataclasses import replace
from types import TracebackType
from typing import Self

from holdfast import ids
from holdfast.clock import Clock
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.effects import Effects
from holdfast.engine.journal import Journal
from holdfast.engine.leases import Leases
from holdfast.engine.runs import Runs
from holdfast.engine.waits import Waits
from holdfast.settings import Settings, store_url
from holdfast.stores import open_store
from holdfast.stores.contract import StoreInfo
from holdfast.telemetry import Sink, Telemetry
from holdfast.wakeups import open_wakeups


class Holdfast:
    """An open store of agents' state: `async with holdfast.open("agents.db") as hf:`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        telemetry: Sink | None = None,
    ) -> None:
        settings = settings or Settings()
        where = store_url(url)
        counts = Telemetry(telemetry)
        store = open_store(where, settings=settings, clock=clock, telemetry=counts)
        self._context = Context(store, open_wakeups(where), settings, counts)
        store.on_applied = self._context.wakeups.notify
        self._wire()

    def _wire(self) -> None:
        self.leases = Leases(self._context)
        self.runs = Runs(self._context, self.leases)
        self.journal = Journal(self._context)
        self.checkpoints = Checkpoints(self._context)
        self.effects = Effects(self._context)
        self.waits = Waits(self._context)
        self._twins: list[Holdfast] = []

    def another_worker(self) -> "Holdfast":
        """The same open store under another identity, as if from another process.

        It lives as long as this one is open, and is not entered itself.
        """
        twin = object.__new__(Holdfast)
        twin._context = replace(self._context, worker=ids.new_worker_id())
        twin._wire()
        self._twins.append(twin)
        return twin

    @property
    def worker(self) -> str:
        """This process's identity on the record: new at every start."""
        return self._context.worker

    async def info(self) -> StoreInfo:
        """What the store is: its backend, schema, size and runs."""
        return await self._context.store.info()

    async def reindex(self, run_id: str) -> None:
        """Rebuild the indexes of a run from its journal."""
        if await self._context.store.journal.head(run_id) is None:
            await self.runs.get(run_id)
        await self._context.store.reindex(run_id)

    async def __aenter__(self) -> Self:
        await self._context.store.open()
        await self._context.wakeups.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for worker in (*self._twins, self):
                await worker.leases.close()
        finally:
            await self._context.wakeups.close()
            await self._context.store.close()


def open(
    url: str | None = None,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    telemetry: Sink | None = None,
) -> Holdfast:
    """A Holdfast on a file's path, `memory://`, or what HOLDFAST_STORE names. Enter it to open."""
    return Holdfast(url, settings=settings, clock=clock, telemetry=telemetry)
