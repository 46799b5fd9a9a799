"""What an entry means for the indexes: one definition, for writing and for rebuilding.

`facts_of` reads an entry's facts, `changes_of` lists what it does to the rows, and `Indexes`
applies such changes in memory. A store makes the same changes to its tables in the entry's commit.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.errors import JournalCorrupted
from holdfast.kernel import (
    budgets,
    checkpoints,
    effects,
    journal,
    marks,
    records,
    runs,
    signals,
    versions,
    waits,
)
from holdfast.kernel.budgets import AddBudget, AddReservation, Books, DrawBudget, DropReservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry, Header, Kind, NoFacts
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import AddMessage
from holdfast.kernel.records import AddRevision, PutRecord, RecordRow, Revision
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait

FACTS: Final[dict[Kind, type[msgspec.Struct]]] = {
    Kind.RUN_CREATED: runs.RunCreated,
    Kind.RUN_LEASED: runs.RunLeased,
    Kind.RUN_RELEASED: runs.Released,
    Kind.RUN_WAITING: runs.Suspended,
    Kind.RUN_BLOCKED: runs.Blocked,
    Kind.RUN_UNBLOCKED: runs.Released,
    Kind.RUN_COMPLETED: runs.RunFinished,
    Kind.RUN_FAILED: runs.RunFinished,
    Kind.RUN_CANCELLED: runs.RunFinished,
    Kind.RUN_REWOUND: runs.Rewound,
    Kind.LEASE_EXPIRED: runs.LeaseExpired,
    Kind.CHECKPOINT_CREATED: checkpoints.CheckpointCreated,
    Kind.CHECKPOINT_CORRUPTED: checkpoints.Corrupted,
    Kind.CHECKPOINT_DELETED: checkpoints.Deleted,
    Kind.CHECKPOINT_UPDATED: records.Updated,
    Kind.CHECKPOINT_FINALIZED: records.Finalized,
    Kind.CHECKPOINT_LINKED: records.LinkedTo,
    Kind.CHECKPOINTS_PRUNED: marks.Pruned,
    Kind.WRITES_RECORDED: marks.Written,
    Kind.STATE_VALUES: NoFacts,
    Kind.STATE_BASE: checkpoints.BaseFacts,
    Kind.STEP_RECORDED: checkpoints.Step,
    Kind.VERSIONS_RECORDED: versions.Versions,
    Kind.EFFECT_ISSUED: effects.Issued,
    Kind.EFFECT_COMPLETED: effects.EffectSettled,
    Kind.EFFECT_NOT_DONE: effects.EffectSettled,
    Kind.EFFECT_UNKNOWN: effects.EffectSettled,
    Kind.WAITS_OPENED: waits.WaitsOpened,
    Kind.WAIT_RESOLVED: waits.WaitSettled,
    Kind.WAIT_EXPIRED: waits.WaitSettled,
    Kind.WAIT_CANCELLED: waits.WaitSettled,
    Kind.GROUP_CLOSED: waits.Closed,
    Kind.SIGNAL_RECEIVED: signals.SignalReceived,
    Kind.SIGNAL_TAKEN: signals.SignalTaken,
    Kind.BUDGET_SET: budgets.Set,
    Kind.BUDGET_RESERVED: budgets.Reserved,
    Kind.BUDGET_WARNED: budgets.Warned,
    Kind.COST_RECORDED: budgets.Recorded,
    Kind.BODIES_ERASED: marks.Erased,
    Kind.HANDOFF_REQUESTED: runs.Requested,
    Kind.AGENT_HANDOFF: runs.AgentHandoff,
    Kind.HANDOFF_RECEIVED: runs.HandoffReceived,
    Kind.HANDOFF_VERIFIED: runs.Verified,
    Kind.HANDOFF_SELECTED: runs.Selected,
    Kind.HANDOFF_ASSIGNED: runs.Assigned,
    Kind.HANDOFF_ACKNOWLEDGED: runs.Acknowledged,
    Kind.HANDOFF_REVERTED: runs.Reverted,
    Kind.RECOVERY_INITIATED: runs.RecoveryInitiated,
    Kind.RECOVERY_COMPLETED: runs.RecoveryCompleted,
    Kind.RECOVERY_FAILED: runs.RecoveryFailed,
}
_decoders: Final = {kind.value: msgspec.msgpack.Decoder(facts) for kind, facts in FACTS.items()}


class PutRun(msgspec.Struct, frozen=True, gc=False):
    """Write a run's row with its state after an entry."""

    run: RunRow


class AddCheckpoint(msgspec.Struct, frozen=True, gc=False):
    checkpoint: Checkpoint


class DropCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Forget the rows of a version that has a tombstone: its mark and the writes of that too."""

    version: int


class DropCheckpoints(msgspec.Struct, frozen=True, gc=False):
    """The same for ranges of versions."""

    versions: tuple[tuple[int, int], ...]


class MoveBase(msgspec.Struct, frozen=True, gc=False):
    """Let the loading of a version begin at another base."""

    version: int
    base_seq: int


class AddMark(msgspec.Struct, frozen=True, gc=False):
    """Refused when the name was used before."""

    marked: Marked


class AddWrites(msgspec.Struct, frozen=True, gc=False):
    written: WrittenAt


class EraseBodies(msgspec.Struct, frozen=True, gc=False):
    """Put digests in the place of bodies of the journal. The bodies are not to be read again."""

    seqs: tuple[tuple[int, int], ...]


class AddEffect(msgspec.Struct, frozen=True, gc=False):
    """Refused while the key is taken."""

    effect: Effect


class SettleEffect(msgspec.Struct, frozen=True, gc=False):
    """Refused when the outcome is known already."""

    effect_id: UUID
    status: effects.EffectStatus
    seq: int
    at: int


class AddGroup(msgspec.Struct, frozen=True, gc=False):
    group: Group


class AddWait(msgspec.Struct, frozen=True, gc=False):
    """Refused when the wait's id was used before."""

    wait: Wait


class SettleWait(msgspec.Struct, frozen=True, gc=False):
    """Refused unless the wait is open."""

    wait_id: str
    status: waits.WaitStatus
    seq: int
    by: str
    at: int


class CountGroup(msgspec.Struct, frozen=True, gc=False):
    group_id: str
    resolved: int
    failed: int


class CloseGroup(msgspec.Struct, frozen=True, gc=False):
    """Close a group and cancel those of its waits that are still open."""

    group_id: str
    status: waits.GroupStatus
    seq: int
    by: str
    at: int


class CloseRunWaits(msgspec.Struct, frozen=True, gc=False):
    """Cancel every open group and wait of a run that has ended or was rewound."""

    seq: int
    by: str
    at: int


class AddSignal(msgspec.Struct, frozen=True, gc=False):
    """Refused when the run has used the signal's id before."""

    signal: Signal


class TakeSignal(msgspec.Struct, frozen=True, gc=False):
    """Refused unless the signal is there and untaken."""

    signal_id: str
    seq: int
    at: int


MarkChange = (
    AddMark | AddWrites | records.Change | DropCheckpoint | DropCheckpoints | MoveBase | EraseBodies
)

Change = (
    PutRun
    | AddCheckpoint
    | MarkChange
    | AddEffect
    | SettleEffect
    | AddGroup
    | AddWait
    | SettleWait
    | CountGroup
    | CloseGroup
    | CloseRunWaits
    | AddSignal
    | TakeSignal
    | AddMessage
    | budgets.Change
)


def facts_of(entry: Header) -> Any:
    """Return what the indexes need of an entry; raises JournalCorrupted if it cannot be read."""
    journal.check_understood(entry)
    try:
        return _decoders[entry.kind].decode(entry.facts)
    except (KeyError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise JournalCorrupted(
            f"entry {entry.seq} of run {entry.run_id} has facts that cannot be read: {error}"
        ) from error


def fold_run(run: RunRow | None, entry: Header, facts: Any) -> RunRow:
    """The run after an entry, its waking by a closed group included."""
    if run is not None and entry.schema > run.schema:
        run = msgspec.structs.replace(run, schema=entry.schema)
    if isinstance(facts, waits.Closed):
        assert run is not None, "a journal begins with RUN_CREATED"
        return runs.woken(run, entry.at) if facts.wakes else run
    return runs.fold(run, entry, facts)


def changes_of(entry: Entry, facts: Any) -> list[Change]:
    """Return what an entry does to the indexes beside its run's row."""
    match facts:
        case checkpoints.CheckpointCreated():
            return _created(entry, facts)
        case checkpoints.Deleted() | marks.Pruned() | marks.Written() | marks.Erased():
            return _of_marks(entry, facts)
        case effects.Issued():
            return [AddEffect(effect_of(entry, facts))]
        case effects.EffectSettled(effect_id):
            status = effects.STATUS_OF[Kind(entry.kind)]
            return [SettleEffect(effect_id, status, entry.seq, entry.at)]
        case waits.WaitsOpened():
            return _opened(entry, facts)
        case waits.WaitSettled(wait_id, group_id, _):
            status = waits.STATUS_OF[Kind(entry.kind)]
            resolved = int(status is waits.WaitStatus.RESOLVED)
            return [
                SettleWait(wait_id, status, entry.seq, entry.actor, entry.at),
                CountGroup(group_id, resolved, 1 - resolved),
            ]
        case waits.Closed(group_id, status):
            return [CloseGroup(group_id, status, entry.seq, entry.actor, entry.at)]
        case runs.RunFinished() | runs.Rewound(keeps_waits=False):
            return [CloseRunWaits(entry.seq, entry.actor, entry.at)]
        case signals.SignalReceived() | signals.SignalTaken():
            return [_of_signal(entry, facts)]
        case _:
            return _of_others(entry, facts)


def _created(entry: Entry, facts: checkpoints.CheckpointCreated) -> list[Change]:
    added: list[Change] = [AddCheckpoint(checkpoints.row_of(entry, facts))]
    record, mark = facts.record, facts.mark
    if record is not None:
        added.append(records.put_of(entry, facts.version, record))
    if mark is None:
        return added
    marked = Marked(
        tenant=entry.tenant,
        run_id=entry.run_id,
        space=mark.space,
        name=mark.name,
        version=facts.version,
        parent=mark.parent,
        created_at=entry.at,
        tags=mark.tags,
    )
    return [*added, AddMark(marked)]


def _of_marks(
    entry: Entry, facts: checkpoints.Deleted | marks.Pruned | marks.Written | marks.Erased
) -> list[Change]:
    match facts:
        case checkpoints.Deleted(_, version):
            return [DropCheckpoint(version)]
        case marks.Pruned(versions, _, rebased):
            return [DropCheckpoints(tuple(versions)), *(MoveBase(*each) for each in rebased)]
        case marks.Erased(seqs):
            return [EraseBodies(tuple(seqs))]
        case marks.Written():
            written = WrittenAt(
                tenant=entry.tenant,
                run_id=entry.run_id,
                space=facts.space,
                name=facts.name,
                seq=entry.seq,
            )
            return [AddWrites(written)]


def effect_of(entry: Header, facts: effects.Issued) -> Effect:
    """The row of an effect that was just issued."""
    return Effect(
        tenant=entry.tenant,
        effect_id=facts.effect_id,
        key=facts.key,
        run_id=entry.run_id,
        tool=facts.tool,
        call_id=facts.call_id,
        args_digest=facts.args_digest,
        status=effects.EffectStatus.ISSUED,
        issued_seq=entry.seq,
        issued_at=entry.at,
        limit_at=facts.limit_at,
        lease_seq=facts.lease_seq,
    )


def _opened(entry: Entry, facts: waits.WaitsOpened) -> list[Change]:
    group = Group(
        tenant=entry.tenant,
        run_id=entry.run_id,
        group_id=facts.group_id,
        need=facts.need,
        total=len(facts.waits),
    )
    return [AddGroup(group), *(AddWait(_wait(entry, facts.group_id, w)) for w in facts.waits)]


def _wait(entry: Entry, group_id: str, facts: waits.WaitFacts) -> Wait:
    return Wait(
        tenant=entry.tenant,
        wait_id=facts.wait_id,
        run_id=entry.run_id,
        group_id=group_id,
        kind=facts.kind,
        name=facts.name,
        deadline=facts.deadline,
        status=waits.WaitStatus.OPEN,
        opened_seq=entry.seq,
        opened_at=entry.at,
        address=facts.address,
        patience=facts.patience,
    )


def _of_signal(entry: Entry, facts: signals.SignalReceived | signals.SignalTaken) -> Change:
    if isinstance(facts, signals.SignalTaken):
        return TakeSignal(facts.signal_id, entry.seq, entry.at)
    return AddSignal(
        Signal(
            tenant=entry.tenant,
            run_id=entry.run_id,
            signal_id=facts.signal_id,
            name=facts.name,
            seq=entry.seq,
            received_at=entry.at,
            received_by=entry.actor,
        )
    )


def _of_others(entry: Entry, facts: object) -> list[Change]:
    if isinstance(facts, records.Facts):
        return [*records.changes_of(entry, facts)]
    if not isinstance(facts, budgets.Facts):
        return []
    return [*budgets.changes_of(entry.tenant, entry.run_id, entry.seq, entry.at, facts)]


class Indexes:
    """The rows of one run, in memory: a rebuild from its journal, or what a decision looks at.

    One that `is_partial` has not seen which versions there are.
    """

    def __init__(self, *, is_partial: bool = False) -> None:
        self.run: RunRow | None = None
        self.checkpoints: dict[int, Checkpoint] = {}
        self.marks: dict[int, Marked] = {}
        self.writes: dict[int, WrittenAt] = {}
        self.records: dict[int, RecordRow] = {}
        self.revisions: dict[int, Revision] = {}
        self.effects: dict[UUID, Effect] = {}
        self.groups: dict[str, Group] = {}
        self.waits: dict[str, Wait] = {}
        self.signals: dict[str, Signal] = {}
        self._by_group: dict[str, list[str]] = {}
        self._newest_version = None if is_partial else 0

    @cached_property
    def books(self) -> Books:
        """The run's budget and reservations."""
        return Books()

    def add_wait(self, wait: Wait) -> None:
        """Add a wait's row."""
        self.waits[wait.wait_id] = wait
        self._by_group.setdefault(wait.group_id, []).append(wait.wait_id)

    def apply_entry(self, entry: Entry) -> None:
        facts = facts_of(entry)
        self.run = fold_run(self.run, entry, facts)
        self.apply(changes_of(entry, facts))

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._apply_one(change)

    def _apply_one(self, change: Change) -> None:
        if isinstance(change, MarkChange):
            self._apply_to_marks(change)
            return
        match change:
            case PutRun(run):
                self.run = run
            case AddCheckpoint(checkpoint):
                newest = self._newest_version
                if newest is not None and checkpoint.version != newest + 1:
                    raise ValueError(f"version {checkpoint.version} follows version {newest}")
                self.checkpoints[checkpoint.version] = checkpoint
                self._newest_version = checkpoint.version
            case AddEffect(effect):
                self.effects[effect.effect_id] = effect
            case SettleEffect(effect_id, status, seq, at):
                self.effects[effect_id] = msgspec.structs.replace(
                    self.effects[effect_id], status=status, result_seq=seq, settled_at=at
                )
            case AddGroup(group):
                self.groups[group.group_id] = group
            case AddWait(wait):
                self.add_wait(wait)
            case AddSignal() | TakeSignal():
                self._apply_to_signals(change)
            case _:
                self._apply_to_others(change)

    def _apply_to_marks(self, change: MarkChange) -> None:
        match change:
            case AddMark(marked):
                self.marks[marked.version] = marked
            case AddWrites(written):
                self.writes[written.seq] = written
            case PutRecord() | AddRevision():
                self._apply_to_records(change)
            case DropCheckpoint(version):
                self._drop_versions(version, version)
            case DropCheckpoints(versions):
                for first, last in versions:
                    self._drop_versions(first, last)
            case MoveBase(version, base_seq):
                self.checkpoints[version] = msgspec.structs.replace(
                    self.checkpoints[version], base_seq=base_seq
                )
            case EraseBodies():
                pass  # of no index

    def _apply_to_records(self, change: records.Change) -> None:
        if isinstance(change, AddRevision):
            self.revisions[change.revision.seq] = change.revision
            return
        empty = RecordRow(tenant=change.tenant, run_id=change.run_id, version=change.version)
        row = self.records.get(change.version, empty)
        self.records[change.version] = records.applied(row, change)

    def _drop_versions(self, first: int, last: int) -> None:
        for version in [v for v in self.records if first <= v <= last]:
            del self.records[version]
        self.revisions = {
            seq: each for seq, each in self.revisions.items() if not first <= each.version <= last
        }
        for version in [v for v in self.checkpoints if first <= v <= last]:
            del self.checkpoints[version]
        gone = {v: mark for v, mark in self.marks.items() if first <= v <= last}
        names = {(mark.space, mark.name) for mark in gone.values()}
        self.marks = {v: mark for v, mark in self.marks.items() if v not in gone}
        self.writes = {seq: w for seq, w in self.writes.items() if (w.space, w.name) not in names}

    def _apply_to_signals(self, change: AddSignal | TakeSignal) -> None:
        if isinstance(change, AddSignal):
            if change.signal.signal_id in self.signals:
                raise ValueError(f"the id of signal {change.signal.signal_id} was used before")
            self.signals[change.signal.signal_id] = change.signal
            return
        signal = self.signals[change.signal_id]
        if signal.is_taken:
            raise ValueError(f"signal {change.signal_id} was taken before")
        self.signals[change.signal_id] = msgspec.structs.replace(
            signal, taken_seq=change.seq, taken_at=change.at
        )

    def _apply_to_others(self, change: Change) -> None:
        match change:
            case AddMessage():
                pass  # of no index: a rebuild sends nothing again
            case AddBudget() | DrawBudget() | AddReservation() | DropReservation():
                self.books.apply(change)
            case SettleWait(wait_id, status, seq, by, at):
                self._settle(self.waits[wait_id], status, (seq, by, at))
            case CountGroup(group_id, resolved, failed):
                group = self.groups[group_id]
                self.groups[group_id] = waits.counted(group, resolved=resolved, failed=failed)
            case CloseGroup(group_id, status, seq, by, at):
                self._close(self.groups[group_id], status, (seq, by, at))
            case CloseRunWaits(seq, by, at):
                for group in list(self.groups.values()):
                    if group.status is waits.GroupStatus.OPEN:
                        self._close(group, waits.GroupStatus.CANCELLED, (seq, by, at))
            case _:
                raise AssertionError(f"{type(change).__name__} is not a change")

    def _close(self, group: Group, status: waits.GroupStatus, by: tuple[int, str, int]) -> None:
        self.groups[group.group_id] = msgspec.structs.replace(
            group, status=status, closed_seq=by[0]
        )
        for wait_id in self._by_group.get(group.group_id, ()):
            if self.waits[wait_id].status is waits.WaitStatus.OPEN:
                self._settle(self.waits[wait_id], waits.WaitStatus.CANCELLED, by)

    def _settle(self, wait: Wait, status: waits.WaitStatus, by: tuple[int, str, int]) -> None:
        self.waits[wait.wait_id] = msgspec.structs.replace(
            wait, status=status, result_seq=by[0], settled_by=by[1], settled_at=by[2]
        )


def why(error: Exception) -> str:
    """Return why an entry cannot be replayed, in words."""
    if isinstance(error, KeyError):
        return f"no entry before it tells of {error.args[0]}"
    return str(error) or "it does not follow from those before it"


def replayed(entries: Iterable[Entry]) -> Indexes:
    """The rows that a whole journal makes; raises JournalCorrupted where it cannot be followed."""
    rows = Indexes()
    for entry in entries:
        try:
            rows.apply_entry(entry)
        except (LookupError, AssertionError, ValueError) as error:
            raise JournalCorrupted(
                f"entry {entry.seq} of run {entry.run_id} cannot be replayed: {why(error)}; the "
                "indexes were left as they are, `holdfast audit verify` names every damaged entry"
            ) from error
    if rows.run is None:
        raise JournalCorrupted("there is no journal to rebuild from; the indexes were left alone")
    return rows
