"""The rows of one run, in memory, and what changes of the indexes do to them."""

from collections.abc import Iterable
from functools import cached_property
from uuid import UUID

import msgspec

from holdfast.errors import JournalCorrupted
from holdfast.kernel import records, waits
from holdfast.kernel.budgets import AddBudget, AddReservation, Books, DrawBudget, DropReservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.indexes import (
    AddCheckpoint,
    AddEffect,
    AddGroup,
    AddMark,
    AddSignal,
    AddWait,
    AddWrites,
    Change,
    CloseGroup,
    CloseRunWaits,
    CountGroup,
    DropCheckpoint,
    DropCheckpoints,
    EraseBodies,
    MarkChange,
    MoveBase,
    PutRun,
    SettleEffect,
    SettleWait,
    TakeSignal,
    changes_of,
    facts_of,
    fold_run,
)
from holdfast.kernel.journal import Entry
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import AddMessage
from holdfast.kernel.records import AddRevision, PutRecord, RecordRow, Revision
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait


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
