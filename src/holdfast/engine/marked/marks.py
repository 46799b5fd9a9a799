"""Marked runs: opening them, and reading what a framework has stored in them."""

import contextlib
from collections.abc import Collection, Sequence

from holdfast import names
from holdfast.engine.context import Context
from holdfast.engine.leases.leases import Leases
from holdfast.engine.marked import pruner
from holdfast.engine.marked.marked_run import MarkedRun
from holdfast.engine.reading.log_views import Items, LogView, NamedEntries
from holdfast.engine.reading.versions import load_entries, load_views
from holdfast.engine.writing import unheld_runs
from holdfast.errors import IndexCorrupted, InputDiffers, RunExists
from holdfast.kernel import checkpoints, indexes, journal, runs, state
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.marks import Marked, Written, WrittenAt
from holdfast.kernel.runs import RunRow
from holdfast.stores.reads import MarkFilter


class Marks:
    """The marked runs of one agent's name, which no worker works on."""

    def __init__(self, context: Context, leases: Leases, agent: str) -> None:
        self._context = context
        self._leases = leases
        self._agent = agent

    async def open(self, run_id: str, *, note: str = "") -> MarkedRun:
        """Open a run to write to; create it, with a note, if it does not exist."""
        if await self.find(run_id) is None:
            await self._create(run_id, runs.RunCreated(agent=self._agent, note=note))
        return await MarkedRun.open(self._context, self._leases, run_id)

    async def open_copy(self, run_id: str, source_id: str, *, note: str = "") -> None:
        """Create a run for a copy, with its source's lineage, unless it exists already."""
        source = await self.find(source_id)
        if source is not None and await self.find(run_id) is None:
            root, newest = (
                source.root_id,
                await self._context.store.checkpoints.page(source_id, before=2**62, limit=1),
            )
            facts = runs.RunCreated(
                agent=self._agent,
                root_id=root,
                forked_from=source_id,
                forked_version=newest[0].version if newest else 0,
                note=note,
                owner=source.owner,
            )
            await self._create(run_id, facts)

    async def _create(self, run_id: str, facts: runs.RunCreated) -> None:
        with contextlib.suppress(RunExists):
            await unheld_runs.create(self._context, run_id, [Draft(Kind.RUN_CREATED, facts)])

    async def note(self, run_id: str) -> str:
        """Return the note that a run was created with."""
        first = await self._context.store.journal.read(run_id, after=0, limit=1)
        return indexes.facts_of(first[0]).note if first else ""

    async def find(self, run_id: str) -> RunRow | None:
        """Return the row of a run; raises InputDiffers if it is another agent's."""
        run = await self._context.store.runs.get(names.check(run_id, what="thread id"))
        if run is not None and run.agent != self._agent:
            raise InputDiffers(
                f"{run_id!r} is a run of agent {run.agent!r}, not a thread of {self._agent}; "
                "choose another id"
            )
        return run

    async def get(self, run_id: str, space: str, name: str) -> Marked | None:
        return await self._context.store.marks.get(run_id, space, name)

    async def latest(self, run_id: str, space: str) -> Marked | None:
        """Return the mark that was made last in a space, under any name."""
        return await self._context.store.marks.latest(run_id, space)

    async def page(self, wanted: MarkFilter) -> list[Marked]:
        return await self._context.store.marks.page(wanted)

    async def of_run(self, run_id: str) -> list[Marked]:
        """Return all marks of a run in the order they were made."""
        return await self._context.store.marks.of_run(run_id)

    async def tagged(self, tag: str, values: Sequence[str]) -> list[Marked]:
        """Return the marks of any run whose tag is one of the values."""
        return await self._context.store.marks.tagged(tag, values)

    async def idle(self, before: int, limit: int) -> list[str]:
        """Return runs that were not marked since a moment, and wait for nobody."""
        return await self._context.store.marks.idle_runs(self._agent, before, limit)

    async def writes(self, run_id: str, keys: Sequence[tuple[str, str]]) -> list[WrittenAt]:
        """Return the positions of the writes after marks, in order."""
        return await self._context.store.writes.of_marks(run_id, keys)

    async def read_writes(
        self, run_id: str, rows: Sequence[WrittenAt]
    ) -> dict[int, tuple[Written, Items]]:
        """Read the entries of writes by their seqs, with every token as it was given.

        Raises IndexCorrupted if a row leads to an entry that is not of its mark.
        """
        entries = await load_entries(self._context, run_id, [row.seq for row in rows])
        _check_writes(run_id, rows, entries)
        bodies = {entry.seq: journal.body_of(entry) for entry in entries}
        raws = {seq: list(checkpoints.decode_values(body).values()) for seq, body in bodies.items()}
        refs = {ref.seq for items in raws.values() for ref in map(state.as_ref, items) if ref}
        for entry in await load_entries(self._context, run_id, sorted(refs - bodies.keys())):
            bodies[entry.seq] = journal.body_of(entry)
        named = NamedEntries(bodies)
        for items in raws.values():
            for index, raw in enumerate(items):
                if (ref := state.as_ref(raw)) is not None:
                    items[index] = named.raw_of(ref)
        return {entry.seq: (indexes.facts_of(entry), raws[entry.seq]) for entry in entries}

    async def prune(
        self, run: MarkedRun, drop: Collection[int], *, note: str, token: int = 0
    ) -> None:
        """Remove versions; see pruner.prune."""
        await pruner.prune(self._context, run, drop, note=note, token=token)

    async def erase(self, run: MarkedRun, *, note: str, token: int = 0) -> None:
        """Remove every version, and erase every body; see pruner.erase."""
        await pruner.erase(self._context, run, note=note, token=token)

    async def views(
        self, run_id: str, versions: Collection[int], known: MarkedRun | None = None
    ) -> dict[int, LogView]:
        """Return the states at versions; those in `known` are not read again."""
        found: dict[int, LogView] = {}
        if known is not None and not known.is_stale:
            views = known.fold.views
            found = {version: views[version] for version in versions if version in views}
        missing = set(versions) - found.keys()
        if missing:
            found |= await load_views(self._context, run_id, missing)
        return found


def _check_writes(run_id: str, rows: Sequence[WrittenAt], entries: Sequence[Entry]) -> None:
    facts = {entry.seq: indexes.facts_of(entry) for entry in entries}
    for row in rows:
        found = facts.get(row.seq)
        if not isinstance(found, Written) or (found.space, found.name) != (row.space, row.name):
            raise IndexCorrupted(
                f"the index row that leads to entry {row.seq} of run {run_id} differs from the "
                "journal: it was changed outside Holdfast. Nothing was done with it; "
                f"`holdfast store reindex {run_id}` rebuilds the row"
            )
