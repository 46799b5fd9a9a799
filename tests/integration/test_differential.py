"""The same random history on every backend: the same answers, and the same bytes in the journal.

Time is told, and what is random by nature (ids, nonces) comes from a seeded source, so that even
the links of the chains are equal.
"""

import contextlib
import hashlib
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import holdfast
from holdfast import ids
from holdfast.errors import ConflictError, HoldfastError
from holdfast.kernel import journal
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, PostgresBackend, SQLiteBackend

OPERATIONS = 200
ODD_NAMES = ["Äpfel ☃", "z" * 255, "' OR 1=1 --"]
AGENTS = ["support", "research", ""]
WORKERS = 3
# No worker beats by itself: that would be after a third of its lease, in real time, and the test
# is not allowed to take so long.
LEASE_SECONDS = 200
Outcome = tuple[str, Any]


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Ids that count from 1, and nonces that follow from the place in the journal."""
    numbers, workers = count(1), count(1)
    seal = journal.seal

    def next_uuid() -> uuid.UUID:
        return uuid.UUID(int=(next(numbers) << 80) | (7 << 76) | (2 << 62))

    def next_worker() -> str:
        return f"worker-{next(workers)}"

    def seal_seeded(
        after: Any, draft: Any, origin: Any, nonce: bytes, proof: bytes | None = None
    ) -> Any:
        place = f"{origin.tenant}/{origin.run_id}/{after.seq}"
        seeded = hashlib.sha256(place.encode()).digest()[: len(nonce)]
        return seal(after, draft, origin, seeded, proof)

    with (
        mock.patch.object(ids, "uuid7", next_uuid),
        mock.patch.object(ids, "new_worker_id", next_worker),
        mock.patch.object(journal, "seal", seal_seeded),
    ):
        yield


class History:
    """Random operations on one store, and what each of them answered."""

    def __init__(self, hf: holdfast.Holdfast, clock: ManualClock, seed: int) -> None:
        self.clock = clock
        # The store's own worker has its name from before: it does nothing here.
        self.hf, *self.workers = [hf.another_worker() for _ in range(1 + WORKERS)]
        self.random = random.Random(seed)
        self.numbers = count(1)
        self.run_ids: list[str] = []
        self.held: list[holdfast.LeasedRun] = []
        self.begun: list[tuple[holdfast.LeasedRun, holdfast.Begun]] = []
        self.waits: list[str] = []
        self.groups: list[tuple[str, str]] = []
        self.outcomes: list[tuple[str, Outcome]] = []

    async def play(self, operations: int) -> None:
        names = [name for name in dir(self) if name.startswith("do_")]
        for _ in range(operations):
            # No two things happen, or are due, at the same moment: they would have no order.
            self.clock.advance(0.001)
            name = self.random.choice(names)
            work: Callable[[], Awaitable[Any]] = getattr(self, name)
            try:
                outcome: Outcome = ("answer", await work())
            except HoldfastError as error:
                outcome = (type(error).__name__, str(error))
                if isinstance(error, ConflictError) and self.random.random() < 0.5:
                    del self.held[-1:]
            self.outcomes.append((name, outcome))

    def pick(self, choices: Any) -> Any:
        return self.random.choice(choices) if choices else None

    @property
    def run_id(self) -> str:
        """One of those that came last, or one that perhaps is not there."""
        return self.pick([*self.run_ids[-4:], *self.run_ids[-4:], self.pick(ODD_NAMES)])

    @property
    def worker(self) -> holdfast.Holdfast:
        return self.random.choice(self.workers)

    async def holder(self) -> holdfast.LeasedRun:
        """Somebody who leased a run; perhaps it is not his any more."""
        if not self.held:
            await self.do_create()
            self.clock.advance(0.001)
            self.held.append(await self.worker.runs.open(self.run_id, takeover=True))
            self.clock.advance(0.001)
        return self.pick(self.held)

    def value(self) -> Any:
        pick = self.random.randrange(6)
        values = [None, True, -(2**63), "text ☃ \0 \n", {"k": [1, 2.5, b"\0\xff"]}, "x" * 3000]
        return values[pick]

    def hold(self, run: holdfast.LeasedRun) -> Any:
        self.held.append(run)
        return (run.run, run.version, run.state())

    # Runs and leases.

    async def do_create(self) -> Any:
        run_id, agent = f"run-{next(self.numbers)}", self.pick(AGENTS)
        self.run_ids.append(run_id)
        return await self.worker.runs.create(run_id, agent=agent, input=self.value())

    async def do_open(self) -> Any:
        worker, run_id, takeover = self.worker, self.run_id, self.random.random() < 0.5
        return self.hold(await worker.runs.open(run_id, takeover=takeover))

    async def do_next(self) -> Any:
        worker, agents = self.worker, self.pick([[], ["support"], ["research", "support"]])
        swept = await self.sweep()
        run = await worker.leases.next(agents=agents)
        return (swept, None if run is None else self.hold(run))

    async def do_fork(self) -> Any:
        run_id, version = self.run_id, self.random.randrange(4)
        return await self.hf.runs.fork(run_id, version, new_run_id=self.pick([None, self.run_id]))

    async def do_move(self) -> Any:
        run_id, move = self.run_id, self.random.randrange(12)
        if move == 0:
            return await self.hf.runs.cancel(run_id, by="ops", note="enough")
        if move <= 2:
            return await self.hf.runs.block(run_id, "budget", note="spent")
        return await self.hf.runs.unblock(run_id, by="ops")

    async def do_time(self) -> Any:
        self.clock.advance(self.pick([0.5, 5, LEASE_SECONDS + 55]))
        return await self.sweep()

    async def sweep(self) -> int:
        """What is due, one after another: what expires at the same moment has no order."""
        worker, swept = self.worker, 0
        for expire in (worker.leases.expire_lost, worker.waits.expire_due):
            while await expire(limit=1):
                self.clock.advance(0.001)
                swept += 1
        return swept

    # What holders do.

    async def do_turn(self) -> Any:
        run = await self.holder()
        run.append("log", *(self.value() for _ in range(self.random.randrange(3))))
        run.set(f"value-{self.random.randrange(3)}", self.value())
        if self.random.random() < 0.2:
            run.splice("log", 0, self.random.randrange(3), ["spliced"])
        return await self.saved(run, run.checkpoint(label=self.pick(["", "one"]), phase="p"))

    do_another_turn = do_turn

    async def do_save(self) -> Any:
        run = await self.holder()
        state = {"log": [self.value()], "plan": self.value()}
        return await self.saved(run, run.save(state, label="whole"))

    async def saved(self, run: holdfast.LeasedRun, saving: Awaitable[Any]) -> Any:
        try:
            return await saving
        except HoldfastError:
            run.discard()
            raise

    async def do_record(self) -> Any:
        run, value = await self.holder(), self.value()
        return await run.record("step", value, args=1)

    async def do_begin(self) -> Any:
        run = await self.holder()
        requests = [
            holdfast.EffectRequest(
                tool="t",
                args=self.random.randrange(4),
                key=self.pick(["", "", "shared"]),
                limit_seconds=self.pick([1, 10_000]) + n / 10_000,
            )
            for n in range(self.random.randrange(1, 4))
        ]
        begun = await run.begin_effects(requests)
        self.begun += [(run, each) for each in begun if each.answer == "fresh"]
        return begun

    async def do_finish(self) -> Any:
        if not self.begun:
            return None
        run, begun = self.pick(self.begun)
        verbs = [run.finish_effect, run.abandon_effect, run.doubt_effect]
        verb = self.pick(verbs)
        return await (verb(begun, self.value()) if verb == run.finish_effect else verb(begun))

    async def do_settle(self) -> Any:
        if not self.begun:
            return None
        _, begun = self.pick(self.begun)
        status = self.pick(["completed", "not_done", "unknown"])
        return await self.hf.effects.settle(begun.effect.effect_id, status, result=1, by="ops")

    async def do_open_waits(self) -> Any:
        run = await self.holder()
        many = self.random.randrange(1, 4)
        specs = [
            holdfast.WaitSpec(
                wait_id=f"wait-{len(self.waits) + n}" if self.random.random() < 0.9 else "wait-0",
                kind=self.pick(["reply", "signal"]),
                name="go",
                timeout_seconds=None if self.random.random() < 0.5 else 3 + n,
                payload=self.value(),
            )
            for n in range(many)
        ]
        self.waits += [spec.wait_id for spec in specs]
        mode = self.pick(["all", "any", many])
        group = await run.open_waits(specs, mode=mode, suspend=self.random.random() < 0.6)
        self.groups.append((run.run_id, group))
        return group

    async def do_answer(self) -> Any:
        run = await self.holder()
        kept = await self.hf.signals.untaken(run.run_id, "go", limit=2)
        signal_id = self.pick([*(signal.signal_id for signal in kept), "signal-0"])
        return await self.saved(run, run.inbox.answer(signal_id, self.value()))

    async def do_end(self) -> Any:
        run = await self.holder()
        match self.random.randrange(10):
            case 0:
                return await run.complete(self.value())
            case 1:
                return await run.fail("it failed", details=self.value())
            case 2:
                return await run.block("no_agent")
            case _:
                return await run.release(delay_seconds=self.pick([0, 3]))

    # What others do.

    async def do_resolve(self) -> Any:
        wait_id = self.pick([*self.waits, "no such wait"])
        if self.random.random() < 0.2:
            return await self.worker.waits.cancel(wait_id, by="ops")
        return await self.worker.waits.resolve(wait_id, self.value(), by=self.pick(["", "bob"]))

    do_resolve_more = do_resolve

    async def do_signal(self) -> Any:
        signal_id = self.pick([None, *(f"signal-{n}" for n in range(5))])
        name, by = self.pick(["go", "go", "go", "stop"]), self.pick(["", "bob"])
        return await self.worker.signals.send(self.run_id, name, self.value(), id=signal_id, by=by)

    do_signal_more = do_signal

    async def do_extend(self) -> Any:
        return await self.hf.waits.extend(self.pick([*self.waits, "none"]), timeout_seconds=30)

    async def do_reindex(self) -> Any:
        return await self.hf.reindex(self.run_id)

    # What can be read.

    async def do_load(self) -> Any:
        version = self.pick([None, 0, 1, 2, 5])
        return await self.hf.checkpoints.load(self.run_id, version)

    async def do_look_at_run(self) -> Any:
        run_id, hf = self.run_id, self.hf
        return (
            await hf.runs.get(run_id),
            await hf.journal.read(run_id, after=self.random.randrange(5)),
            await hf.journal.verify(run_id),
            await hf.checkpoints.history(run_id, limit=3),
            await hf.effects.of_run(run_id),
            await hf.waits.of_run(run_id),
            [(s, await hf.signals.value(run_id, s.signal_id)) for s in await self.signals(run_id)],
            [await hf.waits.results(*group) for group in self.groups if group[0] == run_id],
        )

    async def signals(self, run_id: str) -> Any:
        everything = await self.hf.signals.of_run(run_id)
        untaken = await self.hf.signals.untaken(run_id, "go")
        assert untaken == [s for s in everything if s.name == "go" and not s.is_taken]
        return everything

    async def do_look_at_all(self) -> Any:
        hf = self.hf
        return (
            await hf.runs.list(limit=3),
            await hf.runs.list(status=self.pick(["ready", "running", "waiting"])),
            await hf.runs.list(agent="support", status=self.pick([None, "ready"])),
            [run_id async for run_id in hf.journal.run_ids()],
            await hf.checkpoints.search(label="one", limit=2),
            await hf.checkpoints.search(phase="p", run_id=self.run_id),
            [await hf.effects.unsettled(status=s) for s in ("issued", "unknown")],
            await hf.leases.workers(),
            (await hf.info()).runs,
        )


TABLES = {
    "journal": "tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts, nonce, link",
    "runs": "*",
    "checkpoints": "*",
    "effects": "*",
    "wait_groups": "*",
    "waits": "*",
    "signals": "*",
    "workers": "*",
}


def stored(backend: Backend) -> dict[str, list[tuple[Any, ...]]]:
    """Every row, but for when it was stored: that is the server's own time."""
    with backend.raw() as raw:
        tables = {
            table: sorted(map(plain, raw.rows(f"SELECT {columns} FROM {table}")), key=repr)
            for table, columns in TABLES.items()
        }
        return tables | {"entries": raw.entries()}


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.bytes if isinstance(value, uuid.UUID) else value for value in row)


async def played_on(backend: Backend, seed: int) -> History:
    clock = ManualClock()
    with seeded():
        settings = holdfast.Settings(lease_seconds=LEASE_SECONDS)
        async with holdfast.open(backend.url, settings=settings, clock=clock) as hf:
            history = History(hf, clock, seed)
            await history.play(OPERATIONS)
    return history


def difference(one: Any, other: Any) -> Any:
    """The first parts of two answers that are not the same, and where they are in them."""
    if one == other:
        return None
    if not isinstance(one, tuple | list) or len(one) != len(other):
        return (one, other)
    for number, parts in enumerate(zip(one, other, strict=True)):
        if (found := difference(*parts)) is not None:
            return (number, found)
    raise AssertionError("equal parts make an equal whole")


@pytest.mark.parametrize("seed", range(6))
@async_test
async def test_history_is_the_same_on_every_backend(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    here, there = SQLiteBackend(tmp_path / "store.db"), PostgresBackend(postgres_url)
    histories = [await played_on(backend, seed) for backend in (here, there)]
    for one, other in zip(histories[0].outcomes, histories[1].outcomes, strict=True):
        assert difference(one, other) is None
    expected, found = stored(here), stored(there)
    for table, rows in expected.items():
        assert found[table] == rows, table
    kinds = {row[1] for row in expected["entries"]}
    assert len(kinds) >= 13, f"the history is too plain: {kinds}"
