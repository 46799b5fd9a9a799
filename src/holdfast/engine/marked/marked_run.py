"""A run whose versions a framework names: many may write it, and no writer needs a lease.

Every commit continues the journal from where this process knows it ends. If somebody else was
first, what came between is folded in, and the decision is made again on the current state.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast import codec, names
from holdfast.codec import Ref
from holdfast.engine import sweeper
from holdfast.engine.context import Context
from holdfast.engine.effect_intents import EffectIntents
from holdfast.engine.effects import Begun, EffectRequest, find
from holdfast.engine.leases.leases import Leases
from holdfast.engine.maintenance import recoveries
from holdfast.engine.reading.log_views import Items, LogFold, LogView, NamedEntries, changes_between
from holdfast.engine.reading.versions import check_not_final, load_entries, load_newest_folded
from holdfast.engine.writing.checkpoint_saver import About, CheckpointPlan
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter, WritePlan
from holdfast.errors import Fenced, HoldfastError, IllegalMove, RunBlocked, ThreadBusy
from holdfast.kernel import (
    checkpoints,
    effects,
    indexes,
    journal,
    runs,
    state,
)
from holdfast.kernel.edits import Edits
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.marks import Mark, Pruned, Written
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.state import Parts
from holdfast.stores.reads import RunAtHead

LARGE_BYTES: Final = 128
"""Items of this size are stored once; where they come again they are named."""
_KEPT_NAMES: Final = 512
OWN: Final = -1
"""In place of a lease: the one that this process has, or none."""


class _HeldElsewhere(HoldfastError):
    """Another process holds the run; it may be gone."""

    def __init__(self, run: RunRow) -> None:
        super().__init__(f"run {run.run_id} is held")
        self.run = run


class Stale(HoldfastError):
    """What this view of a run was made of is gone: open it anew."""


class _Known(NamedTuple):
    ref: Ref
    body: bytes


class VersionChange(NamedTuple):
    """The changes of a version: whole logs and values, and which parts to remove."""

    logs: Mapping[str, Items]
    values: Mapping[str, object]
    dropped: Sequence[str] = ()


class MarkedRun:
    """One process's view of a marked run, and the one place from which it writes it."""

    def __init__(
        self, context: Context, leases: Leases, found: RunAtHead, parts: Parts, fold: LogFold
    ) -> None:
        self._context = context
        self._leases = leases
        self._writer = RunWriter(
            context,
            found.run,
            found.position,
            recorded=parts.recorded,
            on_later=self._fold_in,
        )
        self._parts = parts
        self.fold = fold
        self._max_bytes = context.settings.max_body_bytes
        self._names: OrderedDict[bytes, _Known] = OrderedDict()
        self.is_stale = False
        """Whether it has to be opened again: what it was made of is gone."""

    @classmethod
    async def open(cls, context: Context, leases: Leases, run_id: str) -> "MarkedRun":
        """Open the current state of a run that exists."""
        found = await context.store.runs.at_head(run_id)
        assert found is not None, "it is created before"
        newest, fold = await load_newest_folded(context, run_id, found.position.seq)
        return cls(context, leases, found, newest.parts, fold)

    @property
    def run(self) -> RunRow:
        return self._writer.run

    @property
    def version(self) -> int:
        return self._parts.version

    @property
    def seq(self) -> int:
        """The end of its journal, as far as this process knows."""
        return self._writer.position.seq

    async def look(self) -> None:
        """Fold in what others have written."""
        await self._writer.look()

    async def save(
        self,
        mark: Mark,
        change: Callable[[LogView], VersionChange],
        *,
        token: int = 0,
        replacing: int = 0,
        note: str = "",
        keeping: Sequence[tuple[Written, Items]] = (),
    ) -> int:
        """Store a version with a mark. Returns its number.

        A version that it replaces is removed in the same commit; of its writes, those that are
        given again stay.

        `change` returns what differs from the newest state; it is called again whenever another
        writer was first. Raises ConditionFailed if the mark is refused, CheckpointFinal if the
        version to be removed is final.
        """
        if replacing:
            found = await self._context.store.checkpoints.get(self.run.run_id, replacing)
            if found is not None:
                await check_not_final(self._context, found)

        def decide(run: RunRow, seq: int) -> WritePlan:
            self._check(run, token)
            before: list[Draft] = []
            if replacing:
                gone = Pruned([(replacing, replacing)], note)
                before.append(Draft(Kind.CHECKPOINTS_PRUNED, gone))
            again = [Draft(Kind.WRITES_RECORDED, w, self._written(items)) for w, items in keeping]
            edits = Edits(self._parts, max_bytes=self._max_bytes)
            wanted = change(self.fold.newest)
            plain = self._edit(edits, wanted)
            saving = CheckpointPlan(
                self._parts,
                edits,
                About(mark=mark),
                staged=self._writer.staged,
                max_bytes=self._max_bytes,
                then=again,
                check=runs.check_alive,
            )
            plan = saving.plan(run, seq + len(before))

            def stored(entries: Sequence[Entry], drafts: Sequence[Draft]) -> None:
                own = slice(len(before), None)
                if plan.on_applied is not None:
                    plan.on_applied(entries[own], drafts[own])
                created = len(entries) - len(again) - 1
                self._learn_items(entries[created].seq, drafts[created].body)
                self.fold.apply(self._parts.version, plain)

            return WritePlan([*before, *plan.drafts], stored)

        await self._advance(decide)
        return self._parts.version

    async def write(
        self,
        written: Written,
        tokens: Sequence[msgspec.Raw],
        *,
        token: int = 0,
        then: Sequence[Draft] = (),
    ) -> int:
        """Store what a task has written after a mark. Returns the seq of the entry."""
        at = 0

        def decide(run: RunRow, seq: int) -> WritePlan:
            self._check(run, token)
            body = self._written(tokens)

            def stored(entries: Sequence[Entry], _: Sequence[Draft]) -> None:
                nonlocal at
                at = entries[0].seq
                self._learn_values(at, body, tokens)

            return WritePlan([Draft(Kind.WRITES_RECORDED, written, body), *then], stored)

        await self._advance(decide)
        return at

    async def hold(self) -> int:
        """Lease the run for this process. Returns the lease, which every write then has to name.

        Raises ThreadBusy while a living process holds it. A worker that is lost is counted against
        the run first, which may block it.
        """
        await self._leases.stay_alive(self.run.run_id)

        def decide(run: RunRow, seq: int) -> WritePlan:
            self._check(run, 0)
            return WritePlan([Draft(Kind.RUN_LEASED, runs.RunLeased(self._context.worker))])

        entries = await self._advance(decide)
        token = entries[0].seq
        if self.run.is_recovering:
            newest = await self._context.store.checkpoints.get(self.run.run_id, self.version)
            await self.advance(
                lambda run, seq: WritePlan([recoveries.completed(run, newest)]), token=token
            )
        return token

    async def release(self, token: int, group_id: str = "") -> None:
        """Release the run, or suspend it for a group of waits. A run that was lost is ignored."""

        def decide(run: RunRow, seq: int) -> WritePlan:
            if run.status is not RunStatus.RUNNING or run.lease_seq != token:
                return WritePlan(())
            if group_id and group_id not in self._writer.closed_groups:
                return WritePlan((Draft(Kind.RUN_WAITING, runs.Suspended(group_id)),))
            return WritePlan((Draft(Kind.RUN_RELEASED, runs.Released()),))

        await self._advance(decide)

    async def begin_effects(
        self, requests: Sequence[EffectRequest], *, token: int = OWN
    ) -> list[Begun]:
        """Record the intents of effects, all in one commit; see LeasedRun.begin_effects."""
        issuing = EffectIntents(
            self._context, self.run, requests, check=lambda run: self._check(run, token)
        )
        while True:
            try:
                entries = await self._advance(issuing.plan)
            except ConditionFailed as failed:
                await issuing.look_up(failed)
                continue
            return issuing.answers([entry for entry in entries if entry.kind == Kind.EFFECT_ISSUED])

    async def settle_effect(
        self, begun: Begun, status: effects.EffectStatus, *, result: object = None, note: str = ""
    ) -> None:
        """Record the outcome of an effect. An outcome recorded before stays."""
        is_done = status is effects.EffectStatus.COMPLETED
        body = codec.encode(result, name=f"result of {begun.effect.tool}") if is_done else b""
        codec.check_size(body, f"result of {begun.effect.tool}", self._max_bytes)
        draft = effects.settle(
            begun.effect, status, body=body, note=names.check_text(note, what="note")
        )
        try:
            await self._advance(lambda run, seq: WritePlan((draft,)))
        except ConditionFailed as failed:
            raise IllegalMove(
                f"effect {begun.effect.key} was settled meanwhile; its outcome stays"
            ) from failed

    async def wait_effect(self, begun: Begun) -> Begun | None:
        """Wait until an effect that runs elsewhere has ended, or its time limit is over.

        Returns None if it did not happen, and its key is free again.
        """
        async for _ in self._context.changes(f"run:{begun.effect.run_id}"):
            known = await find(self._context, begun.effect.key)
            if known is None or known.answer != "in_flight":
                return known
        raise AssertionError("it is looked at again and again")

    async def advance(
        self, decide: Callable[[RunRow, int], WritePlan], *, token: int = 0
    ) -> Sequence[Entry]:
        """Commit what a decision asks for, while a writer with this lease may write."""

        def permitted(run: RunRow, seq: int) -> WritePlan:
            self._check(run, token)
            return decide(run, seq)

        return await self._advance(permitted)

    def outdate(self, *_: object) -> None:
        """Mark this view as stale: what it was made of is gone."""
        self.is_stale = True

    def _check(self, run: RunRow, token: int) -> None:
        """Raise unless a writer with this lease, or with none, may write now."""
        if self.is_stale:
            raise Stale(run.run_id)
        runs.check_alive(run)
        if run.status is RunStatus.BLOCKED:
            raise RunBlocked(
                f"run {run.run_id} is blocked ({run.blocked_reason}); `holdfast runs show "
                f"{run.run_id}` tells why"
            )
        if token == OWN:
            is_own = run.status is RunStatus.RUNNING and run.worker == self._context.worker
            token = run.lease_seq if is_own else 0
        if token and (run.status is not RunStatus.RUNNING or run.lease_seq != token):
            raise Fenced(
                f"the lease {token} on thread {run.run_id} was lost: stop working on it, whoever "
                "has taken it goes on"
            )
        if run.status is RunStatus.RUNNING and not token:
            raise _HeldElsewhere(run)

    async def _advance(self, decide: Callable[[RunRow, int], WritePlan]) -> Sequence[Entry]:
        while True:
            try:
                return await self._writer.advance(decide)
            except _HeldElsewhere as held:
                await self._look_for(held.run)

    async def _look_for(self, run: RunRow) -> None:
        """Raise ThreadBusy if the holder of a lease is alive; else expire it as a sweep does.

        So the loss counts against the run, and may block it. What is known of the run may be old,
        so it is read first.
        """
        await self._writer.look()
        if not self._is_held_by(run):
            return
        if not await sweeper.is_lost(self._context, run.worker):
            raise _busy(run)
        while await self._leases.expire_lost() == sweeper.BATCH:
            pass
        await self._writer.look()
        if self._is_held_by(run):
            raise _busy(run)  # its worker has beaten again

    def _is_held_by(self, holder: RunRow) -> bool:
        """Whether a lease has not ended, as far as this process knows."""
        run = self.run
        return (run.status, run.lease_seq) == (holder.status, holder.lease_seq)

    def _edit(self, edits: Edits, wanted: VersionChange) -> checkpoints.Delta:
        """Make the edits. Returns their delta with every item in full."""
        newest = self.fold.newest
        logs: dict[str, list[checkpoints.Splice]] = {}
        for name in wanted.dropped:
            edits.drop(name)
        for name, items in wanted.logs.items():
            is_there = name in newest.logs and name not in wanted.dropped
            changes = changes_between(newest.items(name), items) if is_there else [(0, 0, items)]
            if not changes:
                continue
            edits.change_log(name, [(s, d, [self._named(raw) for raw in n]) for s, d, n in changes])
            logs[name] = [checkpoints.Splice(s, d, n) for s, d, n in changes]
        values: dict[str, msgspec.Raw] = {}
        for name, value in wanted.values.items():
            edits.set(name, value)
            values[name] = msgspec.Raw(codec.encode(value))
        return checkpoints.Delta(logs, values, list(wanted.dropped))

    def _written(self, tokens: Sequence[msgspec.Raw]) -> bytes:
        """Return the body of writes: their tokens by their numbers."""
        named = {str(index): self._named(raw) for index, raw in enumerate(tokens)}
        body = checkpoints.encode_body(named)
        codec.check_size(body, "what this task has written", self._max_bytes)
        return body

    def _named(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return an item, or the name of where the same one is stored already."""
        if memoryview(raw).nbytes < LARGE_BYTES:
            return raw
        known = self._names.get(bytes(raw))
        if known is None:
            return raw
        self._names.move_to_end(bytes(raw))
        self._parts.recorded[known.ref.seq] = known.body
        return msgspec.Raw(codec.encode(known.ref))

    def _learn_items(self, seq: int, body: bytes) -> None:
        delta = checkpoints.decode_delta(body)
        for log, splices in delta.logs.items():
            for number, splice in enumerate(splices):
                for index, raw in enumerate(splice.items):
                    self._learn(raw, Ref(seq, (log, number, index)), body)

    def _learn_values(self, seq: int, body: bytes, tokens: Iterable[msgspec.Raw]) -> None:
        for index, raw in enumerate(tokens):
            if bytes(raw) not in self._names:
                self._learn(raw, Ref(seq, (str(index),)), body)

    def _learn(self, raw: msgspec.Raw, ref: Ref, body: bytes) -> None:
        if memoryview(raw).nbytes < LARGE_BYTES or state.as_ref(raw) is not None:
            return
        self._names[bytes(raw)] = _Known(ref, body)
        while len(self._names) > _KEPT_NAMES:
            self._names.popitem(last=False)

    async def _fold_in(self, later: Sequence[Entry]) -> None:
        """Fold in what others have appended."""
        for entry in later:
            if entry.kind == Kind.BODIES_ERASED:
                self.is_stale = True
        if self.is_stale:
            return
        for entry in later:
            if entry.kind in (Kind.WRITES_RECORDED, Kind.STATE_VALUES, Kind.STEP_RECORDED):
                self._parts.recorded[entry.seq] = journal.body_of(entry)
            elif entry.kind == Kind.STATE_BASE:
                self._parts.begin_at_base(entry.seq, len(journal.body_of(entry)))
            elif entry.kind == Kind.CHECKPOINT_CREATED:
                await self._fold_version(entry)

    async def _fold_version(self, entry: Entry) -> None:
        body = journal.body_of(entry)
        delta = checkpoints.decode_delta(body)
        version = indexes.facts_of(entry).version
        bodies = {**self._parts.bodies, **self._parts.recorded}
        named = set(_refs_in(delta))
        missing = sorted({ref.seq for ref in named} - bodies.keys())
        for found in await load_entries(self._context, self.run.run_id, missing):
            bodies[found.seq] = self._parts.recorded[found.seq] = journal.body_of(found)
        self._parts.recorded.update({ref.seq: bodies[ref.seq] for ref in named})
        self._parts.apply(delta, at=entry.position, version=version, size=len(body))
        lookup = NamedEntries(bodies)
        self.fold.apply(version, _resolved(delta, lookup))


def _busy(run: RunRow) -> ThreadBusy:
    return ThreadBusy(
        f"thread {run.run_id} is worked on by worker {run.worker}; nothing was stored. Wait until "
        "it is done, and try again; if its process is gone, the thread is free when its lease ends"
    )


def _refs_in(delta: checkpoints.Delta) -> Iterable[Ref]:
    for raw in _raws_in(delta):
        if (ref := state.as_ref(raw)) is not None:
            yield ref


def _raws_in(delta: checkpoints.Delta) -> Iterable[msgspec.Raw]:
    for splices in delta.logs.values():
        for splice in splices:
            yield from splice.items
    yield from delta.values.values()


def _resolved(delta: checkpoints.Delta, named: NamedEntries) -> checkpoints.Delta:
    def plain(raw: msgspec.Raw) -> msgspec.Raw:
        ref = state.as_ref(raw)
        return raw if ref is None else named.raw_of(ref)

    return checkpoints.Delta(
        {
            name: [
                checkpoints.Splice(s.start, s.delete, [plain(raw) for raw in s.items]) for s in each
            ]
            for name, each in delta.logs.items()
        },
        {name: plain(raw) for name, raw in delta.values.items()},
        delta.dropped,
    )
