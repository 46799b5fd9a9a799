"""Signals: named values sent to a run from outside, each kept until the run has taken it.

A sender holds no lease, so receiving is a late-bound write: the id is looked up, the entry is
appended and a wait for that name is resolved in one commit. Only the run's holder takes signals.
"""

from typing import Any

from holdfast import codec, ids, names
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.errors import (
    ConflictError,
    IntegrityError,
    MisuseError,
    RunNotFound,
    SignalNotFound,
)
from holdfast.kernel import indexes, journal, signals
from holdfast.kernel.journal import Kind
from holdfast.kernel.signals import Receipt, Signal
from holdfast.stores.contract import LateDecision, Snapshot


class Signals:
    """What is sent to runs, in the order it came."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def send(
        self, run_id: str, name: str, value: object = None, *, id: str | None = None, by: str = ""
    ) -> Receipt:
        """Send a named value to a run with any holder; it is kept until the run has taken it.

        An id counts once in its run: sent again, nothing is written, `accepted` is False, and the
        rest describes the first time. A wait for this name is resolved, and the run woken, in the
        same commit.
        """
        names.check(run_id, what="run id")
        names.check(name, what="a signal's name")
        signal_id = str(ids.uuid7()) if id is None else names.check(id, what="signal id")
        actor = (by and names.check(by, what="by")) or self._context.worker
        body = codec.encode(value, name="value")
        codec.check_size(body, "value", self._context.settings.max_body_bytes)

        def decide(snapshot: Snapshot) -> LateDecision:
            if signal_id in snapshot.indexes.signals:
                return LateDecision(None)
            if snapshot.run is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            drafts = signals.receive(
                snapshot.run,
                signal_id,
                name,
                body,
                open_waits=snapshot.indexes.waits.values(),
                groups=snapshot.indexes.groups,
            )
            receipt = Receipt(
                run_id=run_id,
                signal_id=signal_id,
                accepted=True,
                seq=snapshot.position.seq + 1,
                received_by=actor,
                received_at=snapshot.now,
            )
            return LateDecision(receipt, drafts)

        receipt: Receipt | None = await self._context.decide_late(
            run_id, decide, by=actor, signal_ids=(signal_id,), signal_names=(name,)
        )
        if receipt is not None:
            return receipt
        return _repeated(await self.get(run_id, signal_id), name)

    async def get(self, run_id: str, signal_id: str) -> Signal:
        names.check(run_id, what="run id")
        names.check(signal_id, what="signal id")
        found = await self._context.store.signals.get(run_id, signal_id)
        if found is None:
            raise SignalNotFound(f"run {run_id!r} has received no signal {signal_id!r}")
        return found

    async def of_run(self, run_id: str) -> list[Signal]:
        """Return all signals of a run, in the order they came."""
        names.check(run_id, what="run id")
        return await self._context.store.signals.of_run(run_id)

    async def untaken(self, run_id: str, name: str, limit: int = 100) -> list[Signal]:
        """Return the signals of a name that a run has not taken yet, in the order they came."""
        names.check(run_id, what="run id")
        names.check(name, what="a signal's name")
        limit = names.check_count(limit, what="limit")
        return await self._context.store.signals.untaken(run_id, name, limit)

    async def value(self, run_id: str, signal_id: str) -> Any:
        """Return the value that was sent."""
        signal = await self.get(run_id, signal_id)
        return await _body(self._context, signal, Kind.SIGNAL_RECEIVED, signal.seq)

    async def answer(self, run_id: str, signal_id: str) -> Any:
        """Return the run's answer to a signal; raises ConflictError until it has taken it."""
        signal = await self.get(run_id, signal_id)
        if not signal.is_taken:
            raise ConflictError(
                f"run {run_id} has not taken signal {signal_id} yet; ask again when it has"
            )
        return await _body(self._context, signal, Kind.SIGNAL_TAKEN, signal.taken_seq)


def _repeated(known: Signal, name: str) -> Receipt:
    if known.name != name:
        raise MisuseError(
            f"signal {known.signal_id} of run {known.run_id} was sent as {known.name!r} before, "
            f"and now as {name!r}; another signal needs another id"
        )
    return Receipt(
        run_id=known.run_id,
        signal_id=known.signal_id,
        accepted=False,
        seq=known.seq,
        received_by=known.received_by,
        received_at=known.received_at,
    )


async def _body(context: Context, signal: Signal, kind: Kind, seq: int) -> Any:
    """Return the body of an entry about a signal, checked against the chain."""
    for linked in await context.store.journal.named(signal.run_id, [seq]):
        entry = linked.entry
        is_whole = entry.kind == kind and journal.is_intact(entry, linked.previous or b"")
        if is_whole and indexes.facts_of(entry).signal_id == signal.signal_id:
            return body_of(entry)
    raise IntegrityError(
        f"entry {seq} of run {signal.run_id} is damaged, missing, or not about signal "
        f"{signal.signal_id}; it was not used"
    )
