"""Remove versions of a marked run, and erase what only they need.

The chain stays whole: a tombstone names the versions, an erasure the entries whose bodies are gone.
Before an erasure, each remaining version gets a separate base and needs no erased entry.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from holdfast import ids
from holdfast.engine.context import Context
from holdfast.engine.marked.marked_run import MarkedRun, Stale
from holdfast.engine.reading import proved_checkpoints
from holdfast.engine.reading.versions import check_not_final, load_entries, load_parts
from holdfast.engine.writing.run_writer import WritePlan
from holdfast.kernel import checkpoints, journal, state
from holdfast.kernel.checkpoints import Base, Checkpoint
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.marks import Erased, Pruned, ranges_of
from holdfast.kernel.runs import RunRow

_NO_LIMIT: Final = 2**62
_MOST_BASES: Final = 16
_PAGE: Final = 1000
_OF_STATE: Final = frozenset(
    {Kind.CHECKPOINT_CREATED, Kind.STATE_VALUES, Kind.STATE_BASE, Kind.WRITES_RECORDED}
)


async def prune(
    context: Context, run: MarkedRun, drop: Collection[int], *, note: str, token: int = 0
) -> None:
    """Put a tombstone on versions; if up to 16 remain, erase the state that those do not need.

    If more remain, nothing is erased: they are built on the removed ones. Without the newest
    version, the run has an empty state. Raises CheckpointFinal if a version to remove is final.
    """
    await run.look()
    rows = await _rows(context, run.run.run_id)
    await proved_checkpoints.check_rows(context, rows)
    final = await proved_checkpoints.final_among(context, rows)
    for row in rows:
        if row.version in final and row.version in drop:
            await check_not_final(context, row)
    kept = [row for row in rows if row.version not in drop]
    gone = sorted(row.version for row in rows if row.version in drop)
    if not gone:
        return
    pruning = _Pruner(context, run, note)
    pruning.begin_anew = run.version in gone
    if len(kept) <= _MOST_BASES:
        await pruning.rebase(kept)
        pruning.need({row.seq for row in kept if row.version in final})
        await pruning.erase(_OF_STATE)
    await pruning.commit(gone, token)


async def erase(context: Context, run: MarkedRun, *, note: str, token: int = 0) -> None:
    """Remove every version, and erase every body of the run that is known here.

    It may be repeated.
    """
    rows = await _rows(context, run.run.run_id)
    pruning = _Pruner(context, run, note)
    pruning.begin_anew = True
    await pruning.erase(frozenset(Kind) - {Kind.RUN_CREATED})
    await pruning.commit(sorted(row.version for row in rows), token)


class _Pruner:
    """One pruning, decided on the current run; a write meanwhile makes it begin again."""

    def __init__(self, context: Context, run: MarkedRun, note: str) -> None:
        self._context = context
        self._run = run
        self._run_id = run.run.run_id
        self._at = run.seq
        self._version = run.version
        self._note = note
        self._bases: list[tuple[int, bytes]] = []
        self._needed: set[int] = set()
        self._erased: list[int] = []
        self.begin_anew = False

    async def rebase(self, kept: Sequence[Checkpoint]) -> None:
        """Store the whole state of each version that stays."""
        for checkpoint in kept:
            parts = await load_parts(self._context, checkpoint)
            base = Base({n: log.segments for n, log in parts.logs.items()}, dict(parts.values))
            self._bases.append((checkpoint.version, checkpoints.encode_body(base)))
            self._needed |= parts.named_entries()
            self._needed |= {s.seq for log in parts.logs.values() for s in log.segments}
        versions = {row.version for row in kept}
        marked = await self._context.store.marks.of_run(self._run_id)
        keys = [(mark.space, mark.name) for mark in marked if mark.version in versions]
        rows = await self._context.store.writes.of_marks(self._run_id, keys)
        await self._need_writes([row.seq for row in rows])

    def need(self, seqs: Collection[int]) -> None:
        """Keep the bodies of these entries, too."""
        self._needed |= set(seqs)

    async def _need_writes(self, seqs: Sequence[int]) -> None:
        self._needed |= set(seqs)
        for entry in await load_entries(self._context, self._run_id, seqs):
            for raw in checkpoints.decode_values(journal.body_of(entry)).values():
                if (ref := state.as_ref(raw)) is not None:
                    self._needed.add(ref.seq)

    async def erase(self, kinds: Iterable[Kind]) -> None:
        """Erase the bodies of entries of these kinds that no remaining version needs."""
        wanted = {kind.value for kind in kinds}
        after = 0
        while page := await self._context.store.journal.read(
            self._run_id, after=after, limit=_PAGE
        ):
            self._erased += [e.seq for e in page if e.kind in wanted and self._goes(e)]
            after = page[-1].seq

    def _goes(self, entry: Entry) -> bool:
        return entry.body is not None and entry.seq not in self._needed and entry.seq <= self._at

    async def commit(self, gone: Sequence[int], token: int) -> None:
        def decide(run: RunRow, seq: int) -> WritePlan:
            if seq != self._at + 1:
                raise Stale(self._run_id)
            return WritePlan(self._drafts(gone, seq), self._run.outdate)

        await self._run.advance(decide, token=token)

    def _drafts(self, gone: Sequence[int], seq: int) -> list[Draft]:
        drafts = [
            Draft(Kind.STATE_BASE, checkpoints.BaseFacts(version), body)
            for version, body in self._bases
        ]
        rebased = [(version, seq + at) for at, (version, _) in enumerate(self._bases)]
        drafts.append(
            Draft(Kind.CHECKPOINTS_PRUNED, Pruned(ranges_of(list(gone)), self._note, rebased))
        )
        if self.begin_anew:
            base_seq = seq + len(drafts)
            nothing = checkpoints.encode_body(Base({}, {}))
            created = checkpoints.CheckpointCreated(
                ids.uuid7(), self._version + 1, self._version, base_seq
            )
            delta = checkpoints.encode_body(checkpoints.Delta({}, {}, []))
            drafts += [
                Draft(Kind.STATE_BASE, checkpoints.BaseFacts(self._version), nothing),
                Draft(Kind.CHECKPOINT_CREATED, created, delta),
            ]
        if self._erased:
            facts = Erased(ranges_of(self._erased), self._note)
            drafts.append(Draft(Kind.BODIES_ERASED, facts))
        return drafts


async def _rows(context: Context, run_id: str) -> list[Checkpoint]:
    return await context.store.checkpoints.page(run_id, before=_NO_LIMIT, limit=2**31)
