"""The journal: reading it, following it, and verifying it against itself and the indexes."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from holdfast import codec, names
from holdfast.engine.context import Context
from holdfast.engine.reading.erasures import erased_among, erased_ranges
from holdfast.errors import IntegrityError, RunNotFound, SchemaMismatch
from holdfast.kernel import index_rows, journal, runs
from holdfast.kernel.index_rows import Indexes
from holdfast.kernel.journal import ORIGIN, Entry, Flaw, Position, Problem
from holdfast.kernel.waits import Wait
from holdfast.stores.hints import with_hints

_PAGE = 1000


class Journal:
    """Reading the record of runs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 1000, checked: bool = True
    ) -> list[Entry]:
        """Return entries of a run in order, after the seq given; raises JournalCorrupted on damage.

        With `checked=False` it returns them as stored, to look at the damage.
        """
        names.check(run_id, what="run id")
        names.check_count(after, what="after")
        names.check_count(limit, what="limit")
        # The entry before the first is read as well: its link is what the first must fit.
        page = await self._context.store.journal.read(
            run_id, after=max(0, after - 1), limit=limit + (after > 0)
        )
        anchor = Position(after, b"") if after else ORIGIN
        if after and page and page[0].seq == after:
            anchor = page.pop(0).position
        if checked:
            erased = await erased_among(self._context.store, run_id, page)
            for problem in journal.verify(page, after=anchor, erased=erased):
                raise journal.corrupted(problem)
        if not page and await self._context.store.journal.head(run_id) is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        return page[:limit]

    async def head(self, run_id: str) -> int:
        """Return the seq of the newest entry of a run."""
        found = await self._context.store.journal.head(names.check(run_id, what="run id"))
        if found is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        return found.seq

    async def tail(
        self, run_id: str, *, after: int = 0, checked: bool = True
    ) -> AsyncIterator[Entry]:
        """Yield entries as they are appended, until the run has ended; checked as by `read`."""
        await self.read(run_id, after=after, limit=1, checked=checked)
        async for _ in self._context.changes(f"run:{run_id}"):
            run = await self._context.store.runs.get(run_id)
            while page := await self.read(run_id, after=after, limit=_PAGE, checked=checked):
                for entry in page:
                    yield entry
                    after = entry.seq
            if run is None or run.status in runs.ENDED:
                return

    async def erased(self, run_id: str) -> list[tuple[int, int]]:
        """Return the seqs of a run, from and to, whose bodies were erased by recorded erasures."""
        names.check(run_id, what="run id")
        return await erased_ranges(self._context.store, run_id)

    async def verify(self, run_id: str) -> list[Problem]:
        """Return all problems of a run: in its chain, its bodies, and indexes that differ.

        Writes to the run meanwhile are not reported as problems.
        """
        names.check(run_id, what="run id")
        replay = _Replay()
        await self._replay(run_id, replay)
        stored = await self._stored(run_id)
        if replay.after == ORIGIN and stored.run is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        replay.compare_with(stored)
        # The rows were read one after another, each at some moment between the first reading of
        # the journal and this one: a row is right if it was so at any entry in between.
        await self._replay(run_id, replay)
        if replay.after == ORIGIN:
            what = "is missing: the run has rows but no journal"
            return [Problem(run_id, 1, Flaw.MISSING, what)]
        return replay.problems + list(replay.wrong_rows(run_id))

    async def _replay(self, run_id: str, replay: "_Replay") -> None:
        """Continue to the current end of the journal."""
        end = await self._context.store.journal.head(run_id)
        while end is not None and replay.after.seq < end.seq:
            after = replay.after.seq
            page = await self._context.store.journal.read(run_id, after=after, limit=_PAGE)
            if not page:
                return
            replay.apply(page, await erased_among(self._context.store, run_id, page))

    async def run_ids(self) -> AsyncIterator[str]:
        """Yield the ids of all runs, in order."""
        after = ""
        while page := await self._context.store.runs.ids(after, _PAGE):
            for run_id in page:
                yield run_id
            after = page[-1]

    async def _stored(self, run_id: str) -> Indexes:
        store = self._context.store
        rows = Indexes()
        rows.run = await store.runs.row(run_id)
        for checkpoint in await store.checkpoints.page(run_id, before=2**62, limit=2**31):
            rows.checkpoints[checkpoint.version] = checkpoint
        rows.marks = {mark.version: mark for mark in await store.marks.rows(run_id)}
        rows.writes = {written.seq: written for written in await store.writes.of_run(run_id)}
        rows.records = {row.version: row for row in await store.records.of_run(run_id)}
        rows.revisions = {each.seq: each for each in await store.records.revisions(run_id)}
        for effect in await store.effects.of_run(run_id):
            rows.effects[effect.effect_id] = effect
        for group in await store.waits.groups(run_id):
            rows.groups[group.group_id] = group
        for wait in await store.waits.of_run(run_id):
            rows.add_wait(wait)
        for signal in await store.signals.rows(run_id):
            rows.signals[signal.signal_id] = signal
        rows.books.account = await store.budgets.get(run_id)
        for reservation in await store.budgets.reservations(run_id):
            rows.books.reservations[reservation.reservation_id] = reservation
        return rows


def body_of(entry: Entry) -> Any:
    """Decode the body of a checked entry; None if it has no body."""
    data = journal.body_of(entry)
    return codec.decode(data) if data else None


class _Replay:
    """A journal being read: its problems, and the stored rows that it does not explain."""

    def __init__(self) -> None:
        self.after: Position = ORIGIN
        self.problems: list[Problem] = []
        self._rebuilt = Indexes()
        self._stored = Indexes()
        self._wrong: set[tuple[str, Any]] = set()

    def apply(self, page: Sequence[Entry], erased: frozenset[int]) -> None:
        self.problems += journal.verify(page, after=self.after, erased=erased)
        self.after = page[-1].position
        for entry in page:
            try:
                self._rebuilt.apply_entry(entry)
            except (
                IntegrityError,
                LookupError,
                AssertionError,
                ValueError,
                SchemaMismatch,
            ) as error:
                is_whole = all(problem.seq != entry.seq for problem in self.problems)
                if isinstance(error, SchemaMismatch) and is_whole:
                    raise  # a newer version wrote it, and can read it
                what = f"cannot be replayed: {index_rows.why(error)}"
                self.problems.append(Problem(entry.run_id, entry.seq, Flaw.SENSELESS, what))
            self._wrong = {row for row in self._wrong if self._is_wrong(*row)}

    def compare_with(self, stored: Indexes) -> None:
        self._stored = stored
        expected, found = _tables(self._rebuilt), _tables(stored)
        self._wrong = {
            (name, key)
            for name in expected
            for key in expected[name].keys() | found[name].keys()
            if self._is_wrong(name, key)
        }

    def wrong_rows(self, run_id: str) -> Iterator[Problem]:
        for name, key in sorted(self._wrong, key=str):
            row = _row(self._rebuilt, name, key) or _row(self._stored, name, key)
            seq = next((getattr(row, f) for f in _SEQS if hasattr(row, f)), 0)
            which = key or run_id
            what = f"the index row of {name} {which} is not what the journal says"
            yield Problem(run_id, seq, Flaw.WRONG_ROW, what)

    def _is_wrong(self, name: str, key: Any) -> bool:
        expected, found = _row(self._rebuilt, name, key), _row(self._stored, name, key)
        if isinstance(expected, Wait) and isinstance(found, Wait):
            expected = with_hints(expected, found)
        return expected != found


_SEQS = ("seq", "revised_seq", "set_seq", "issued_seq", "opened_seq", "closed_seq", "lease_seq")


def _tables(rows: Indexes) -> dict[str, Mapping[Any, Any]]:
    return {
        "run": {"": rows.run},
        "checkpoint": rows.checkpoints,
        "mark": rows.marks,
        "record": rows.records,
        "revision": rows.revisions,
        "writes": rows.writes,
        "effect": rows.effects,
        "group": rows.groups,
        "wait": rows.waits,
        "signal": rows.signals,
        "budget": {"": rows.books.account},
        "reservation": rows.books.reservations,
    }


def _row(rows: Indexes, name: str, key: Any) -> Any:
    return _tables(rows)[name].get(key)


async def read_after(context: Context, run_id: str, after: Position) -> list[Entry]:
    """Return every entry after a position, checked against the chain; raises JournalCorrupted."""
    found: list[Entry] = []
    while True:
        page = await context.store.journal.read(run_id, after=after.seq, limit=_PAGE)
        erased = await erased_among(context.store, run_id, page)
        for problem in journal.verify(page, after=after, erased=erased):
            raise journal.corrupted(problem)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1].position
