"""The journal: reading it, following it, and verifying it against itself and the indexes."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from holdfast import codec, names
from holdfast.engine.context import Context
from holdfast.errors import IntegrityError, RunNotFound
from holdfast.kernel import journal, runs
from holdfast.kernel.indexes import Indexes
from holdfast.kernel.journal import ORIGIN, Entry, Position, Problem

_PAGE = 1000


class Journal:
    """Reading the record of runs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Entries of a run in order, after the seq given."""
        names.check(run_id, what="run id")
        found = await self._context.store.journal.read(run_id, after=after, limit=limit)
        if not found and await self._context.store.journal.head(run_id) is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        return found

    async def tail(self, run_id: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """Entries as they are appended, until the run has ended."""
        await self.read(run_id, after=after, limit=1)
        async for _ in self._context.changes(f"run:{run_id}"):
            run = await self._context.store.runs.get(run_id)
            while page := await self._context.store.journal.read(run_id, after=after, limit=_PAGE):
                for entry in page:
                    yield entry
                    after = entry.seq
            if run is None or run.status in runs.ENDED:
                return

    async def verify(self, run_id: str) -> list[Problem]:
        """Everything wrong with a run: its chain, its bodies, and indexes that tell otherwise."""
        names.check(run_id, what="run id")
        problems: list[Problem] = []
        rebuilt = Indexes()
        after: Position = ORIGIN
        while page := await self._context.store.journal.read(run_id, after=after.seq, limit=_PAGE):
            problems += journal.verify(page, after=after)
            problems += _replay(rebuilt, page)
            after = page[-1].position
        stored = await self._stored(run_id)
        if after == ORIGIN:
            if stored.run is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            return [Problem(run_id, 1, "is missing: the run has rows but no journal")]
        return problems + list(compare(run_id, rebuilt, stored))

    async def run_ids(self) -> AsyncIterator[str]:
        """The ids of all runs, in order."""
        after = ""
        while page := await self._context.store.runs.ids(after, _PAGE):
            for run_id in page:
                yield run_id
            after = page[-1]

    async def _stored(self, run_id: str) -> Indexes:
        store = self._context.store
        rows = Indexes()
        rows.run = await store.runs.get(run_id)
        for checkpoint in await store.checkpoints.page(run_id, before=2**62, limit=2**31):
            rows.checkpoints[checkpoint.version] = checkpoint
        for effect in await store.effects.of_run(run_id):
            rows.effects[effect.effect_id] = effect
        for group in await store.waits.groups(run_id):
            rows.groups[group.group_id] = group
        for wait in await store.waits.of_run(run_id):
            rows.waits[wait.wait_id] = wait
        return rows


def body_of(entry: Entry) -> Any:
    """What the body of an entry that was checked says; None if it has none."""
    data = journal.body_of(entry)
    return codec.decode(data) if data else None


def _replay(rebuilt: Indexes, page: Iterable[Entry]) -> list[Problem]:
    problems: list[Problem] = []
    for entry in page:
        try:
            rebuilt.apply_entry(entry)
        except (IntegrityError, LookupError, AssertionError, ValueError) as error:
            problems.append(Problem(entry.run_id, entry.seq, f"cannot be replayed: {error}"))
    return problems


def compare(run_id: str, rebuilt: Indexes, stored: Indexes) -> Iterable[Problem]:
    """Where the stored indexes differ from what the journal says."""
    pairs: list[tuple[str, Mapping[Any, Any], Mapping[Any, Any]]] = [
        ("run", {run_id: rebuilt.run}, {run_id: stored.run}),
        ("checkpoint", rebuilt.checkpoints, stored.checkpoints),
        ("effect", rebuilt.effects, stored.effects),
        ("group", rebuilt.groups, stored.groups),
        ("wait", _without_hints(rebuilt), _without_hints(stored)),
    ]
    for name, expected, found in pairs:
        for key in expected.keys() | found.keys():
            if expected.get(key) != found.get(key):
                row = expected.get(key) or found.get(key)
                seq = next((getattr(row, f) for f in _SEQS if hasattr(row, f)), 0)
                what = f"the index row of {name} {key} is not what the journal says"
                yield Problem(run_id, seq, what)


_SEQS = ("seq", "issued_seq", "opened_seq", "closed_seq", "lease_seq")


def _without_hints(rows: Indexes) -> dict[str, Any]:
    """Waits without what peers may change beside the journal."""
    return {
        wait_id: msgspec.structs.replace(wait, deadline=0, duplicates=0, progress_at=0)
        for wait_id, wait in rows.waits.items()
    }
