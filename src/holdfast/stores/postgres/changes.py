"""What commits ask of the tables, sorted by the part of a statement that does it.

One statement sees the rows as they were before it, and changes each of them at most once. So what a
commit does to one row is folded into one record here: a group that is counted and closed, a wait
that is opened and settled.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.kernel import budgets
from holdfast.kernel.budgets import AddBudget, AddReservation, DrawBudget, DropReservation
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
)
from holdfast.kernel.journal import Entry
from holdfast.kernel.messages import AddMessage
from holdfast.kernel.records import AddRevision, PutRecord
from holdfast.stores.contract import Commit
from holdfast.stores.postgres import binary_arrays, budget_draws
from holdfast.stores.postgres.queries import PARTS, SHAPES
from holdfast.stores.rows import Shape

Record = dict[str, Any]
ALL: Final = frozenset(PARTS)


class Condition(NamedTuple):
    """A change that is refused unless its part reports it."""

    part: str
    item: str


_PARAMETER_OF: Final = {
    "put_run": "runs",
    "add_checkpoint": "checkpoints",
    "add_mark": "marks",
    "add_writes": "writes",
    "put_record": "records",
    "add_revision": "revisions",
    "drop_checkpoints": "dropped_versions",
    "drop_records": "dropped_versions",
    "drop_revisions": "dropped_versions",
    "drop_marks": "dropped_versions",
    "drop_writes": "dropped_versions",
    "erase_bodies": "erased_bodies",
    "move_base": "moved_bases",
    "add_effect": "effects",
    "restore_effect": "restored_effects",
    "settle_effect_once": "settled_effects",
    "add_group": "groups",
    "add_wait": "waits",
    "settle_wait_once": "settled_waits",
    "add_signal": "signals",
    "take_signal_once": "taken_signals",
    "add_budget": "budgets",
    "draw_budget": "drawn_budgets",
    "add_reservation": "reservations",
    "drop_reservation": "dropped_reservations",
    "count_group": "counted_groups",
    "add_message": "owed_messages",
    "begin_runs": "begun_runs",
    "owe_cancels_of_group": "closed_groups",
    "cancel_waits_of_group": "closed_groups",
    "cancel_groups_of_run": "ended_runs",
    "owe_cancels_of_run": "ended_runs",
    "cancel_waits_of_run": "ended_runs",
}


_DROPS: Final = (
    "drop_checkpoints",
    "drop_records",
    "drop_revisions",
    "drop_marks",
    "drop_writes",
)
_REMOVALS: Final = (DropCheckpoint, DropCheckpoints, MoveBase, EraseBodies)
_REMOVABLE: Final = (AddCheckpoint, AddMark, AddWrites, PutRecord, AddRevision, *_REMOVALS)


class Changes:
    """The records of one run's changes, by part; conditions by what they hang on.

    `later` are changes to be made one after another, when all else is done.
    """

    def __init__(
        self, run_id: str, wanted: Iterable[Change], later: Sequence["Changes"] = ()
    ) -> None:
        self.run_id = run_id
        self.later = later
        self.records: dict[str, dict[Any, Any]] = {}
        self.conditions: dict[Condition, Change] = {}
        for change in wanted:
            self._add(change)

    @property
    def is_stepwise(self) -> bool:
        """Whether some changes must come after others to the same rows, in a later statement."""
        parts = self.records.keys()
        waits = parts & {"add_wait", "settle_wait_once"}
        groups = parts & {"add_group", "count_group"}
        closes_waits = parts & {"cancel_waits_of_group", "cancel_waits_of_run"}
        return bool(
            self.later
            or (closes_waits and waits)
            or len(closes_waits) == 2
            or ("cancel_groups_of_run" in parts and groups)
        )

    def _add(self, change: Change) -> None:
        if isinstance(change, MarkChange):
            self._add_to_marks(change)
            return
        match change:
            case PutRun(run):
                self._put("put_run", run.run_id, run)
            case AddCheckpoint(checkpoint):
                self._put("add_checkpoint", checkpoint.version, checkpoint)
            case AddEffect(effect):
                self._put("add_effect", effect.effect_id, effect)
                self._require("add_effect", str(effect.effect_id), change)
            case SettleEffect(effect_id, status, seq, at):
                if not self._refold(
                    "add_effect", effect_id, status=status, result_seq=seq, settled_at=at
                ):
                    record = {"effect_id": effect_id, "status": status, "seq": seq, "at": at}
                    self._put("settle_effect_once", effect_id, self._of_run(record))
                    self._require("settle_effect_once", str(effect_id), change)
            case AddGroup(group):
                self._put("add_group", group.group_id, group)
                self._require("add_group", group.group_id, change)
            case AddWait(wait):
                self._put("add_wait", wait.wait_id, wait)
                self._require("add_wait", wait.wait_id, change)
            case AddSignal() | TakeSignal():
                self._add_to_signals(change)
            case _:
                self._add_to_others(change)

    def _add_to_marks(self, change: MarkChange) -> None:
        match change:
            case AddMark(marked):
                self._put("add_mark", marked.version, _record(SHAPES.mark, marked))
                self._require("add_mark", str(marked.version), change)
            case AddWrites(written):
                self._put("add_writes", written.seq, _record(SHAPES.writes, written))
            case PutRecord() | AddRevision():
                self._add_to_records(change)
            case DropCheckpoint(version):
                self._drop(((version, version),))
            case DropCheckpoints(versions):
                self._drop(versions)
            case MoveBase(version, base_seq):
                record = self._of_run({"version": version, "base_seq": base_seq})
                self._put("move_base", version, record)
            case EraseBodies(seqs):
                for first, last in seqs:
                    record = self._of_run({"first": first, "last": last})
                    self._put("erase_bodies", (first, last), record)

    def _add_to_records(self, change: PutRecord | AddRevision) -> None:
        match change:
            case PutRecord():
                records = self.records.setdefault("put_record", {})
                records[change.version] = records.get(change.version, {}) | change.set_fields
            case AddRevision(revision):
                self._put("add_revision", revision.seq, revision)

    def _drop(self, versions: Iterable[tuple[int, int]]) -> None:
        for first, last in versions:
            record = self._of_run({"first": first, "last": last})
            for part in _DROPS:
                self._put(part, (first, last), record)

    def _add_to_signals(self, change: AddSignal | TakeSignal) -> None:
        match change:
            case AddSignal(signal):
                self._put("add_signal", signal.signal_id, signal)
                self._require("add_signal", signal.signal_id, change)
            case TakeSignal(signal_id, seq, at):
                if not self._refold("add_signal", signal_id, taken_seq=seq, taken_at=at):
                    record = {"signal_id": signal_id, "seq": seq, "at": at}
                    self._put("take_signal_once", signal_id, self._of_run(record))
                    self._require("take_signal_once", signal_id, change)

    def _add_to_budgets(
        self, change: AddBudget | DrawBudget | AddReservation | DropReservation
    ) -> None:
        match change:
            case AddBudget(account):
                self._put("add_budget", self.run_id, account)
                self._require("add_budget", "budget", change)
            case DrawBudget():
                added = self.records.get("add_budget", {})
                if self.run_id in added:
                    added[self.run_id] = budgets.drawn(added[self.run_id], change)
                    return
                drawn = self.records.setdefault("draw_budget", {})
                record = drawn.setdefault(self.run_id, self._of_run(budget_draws.untouched()))
                budget_draws.fold(record, change)
                self._require("draw_budget", "budget", change)
            case AddReservation(reservation):
                self._put("add_reservation", reservation.reservation_id, reservation)
                self._require("add_reservation", reservation.reservation_id, change)
            case DropReservation(reservation_id):
                if self.records.get("add_reservation", {}).pop(reservation_id, None):
                    del self.conditions[Condition("add_reservation", reservation_id)]
                    return
                record = self._of_run({"reservation_id": reservation_id})
                self._put("drop_reservation", reservation_id, record)
                self._require("drop_reservation", reservation_id, change)

    def _add_to_others(self, change: Change) -> None:
        match change:
            case SettleWait(wait_id, status, seq, by, at):
                settled = {"result_seq": seq, "settled_by": by, "settled_at": at}
                if not self._refold("add_wait", wait_id, status=status, **settled):
                    record = {"wait_id": wait_id, "status": status, "seq": seq, "by": by, "at": at}
                    self._put("settle_wait_once", wait_id, self._of_run(record))
                    self._require("settle_wait_once", wait_id, change)
            case CountGroup(group_id, resolved, failed):
                counted = self._counted(group_id)
                counted["resolved"] += resolved
                counted["failed"] += failed
            case CloseGroup(group_id, status, seq, by, at):
                self._counted(group_id).update(status=status, seq=seq)
                record = {"group_id": group_id, "seq": seq, "by": by, "at": at}
                self._put("owe_cancels_of_group", group_id, self._of_run(record))
                self._put("cancel_waits_of_group", group_id, record)
            case CloseRunWaits(seq, by, at):
                record = self._of_run({"seq": seq, "by": by, "at": at})
                self._put("cancel_groups_of_run", self.run_id, record)
                self._put("owe_cancels_of_run", self.run_id, record)
                self._put("cancel_waits_of_run", self.run_id, record)
            case AddMessage(message):
                record = self._of_run(msgspec.structs.asdict(message))
                self._put("add_message", (message.queue, message.message_id), record)
            case AddBudget() | DrawBudget() | AddReservation() | DropReservation():
                self._add_to_budgets(change)
            case _:
                raise AssertionError(f"{type(change).__name__} is not a change")

    def _counted(self, group_id: str) -> Record:
        empty = {"group_id": group_id, "resolved": 0, "failed": 0, "status": None, "seq": None}
        return self.records.setdefault("count_group", {}).setdefault(group_id, self._of_run(empty))

    def _of_run(self, record: Record) -> Record:
        record["run_id"] = self.run_id
        return record

    def _put(self, part: str, key: Any, record: Any) -> None:
        self.records.setdefault(part, {})[key] = record

    def _refold(self, part: str, key: Any, **now: Any) -> bool:
        """Return whether this very commit adds the row: then it is added with its final values."""
        added = self.records.get(part, {})
        if key not in added:
            return False
        added[key] = msgspec.structs.replace(added[key], **now)
        return True

    def _require(self, part: str, item: str, change: Change) -> None:
        self.conditions[Condition(part, item)] = change


def _record(shape: Shape[Any], value: msgspec.Struct) -> Record:
    return dict(zip(value.__struct_fields__, shape.row(value), strict=True))


def changes_of(commit: Commit) -> Changes:
    run = [] if commit.run is None else [PutRun(commit.run)]
    if not any(isinstance(change, _REMOVALS) for change in commit.changes):
        return Changes(commit.run_id, [*run, *commit.changes])
    return _in_order(commit.run_id, [*run, *commit.changes])


def _in_order(run_id: str, wanted: Iterable[Change]) -> Changes:
    """What can be removed by a change of the same commit, or take the place of what is, is later.

    Changes of one type that follow each other are made together.
    """
    first: list[Change] = []
    later: list[list[Change]] = []
    for change in wanted:
        if not isinstance(change, _REMOVABLE):
            first.append(change)
        elif later and isinstance(change, type(later[-1][-1])):
            later[-1].append(change)
        else:
            later.append([change])
    return Changes(run_id, first, [Changes(run_id, group) for group in later])


class Parameters:
    """The parts of one statement, and the values of its parameters."""

    def __init__(self, tenant: str) -> None:
        self.values: dict[str, Any] = {"tenant": tenant}
        self.parts: set[str] = set()

    def add_entries(self, commits: Sequence[Commit]) -> None:
        """The entries of commits that are sorted by run."""
        first = [commit.entries[0] for commit in commits]
        rest = [entry for commit in commits for entry in commit.entries[1:]]
        self._add_columns("first", first)
        self.values["first_after"] = binary_arrays.blobs([commit.after.link for commit in commits])
        if rest:
            self.parts.add("append_entry")
            self._add_columns("rest", rest)
        begun = [each for commit in commits for each in commit.begun]
        if begun:
            self.parts |= {"begin_journal", "begin_runs"}
            entries = [entry for each in begun for entry in each.entries]
            owners = [each.run.parent_id for each in begun for _ in each.entries]
            self.values["begun_by"] = binary_arrays.texts(owners)
            self._add_columns("begun", entries)
            self.values["begun_runs"] = binary_arrays.records([each.run for each in begun])

    def add_changes(self, changes: Sequence[Changes], only: frozenset[str] = ALL) -> None:
        """The changes that `only` these parts make."""
        gathered: dict[str, list[Any]] = {}
        for each in changes:
            for part, records in each.records.items():
                if part in only:
                    gathered.setdefault(part, []).extend(records.values())
        for part, records in gathered.items():
            self.parts.add(part)
            self.values[_PARAMETER_OF[part]] = binary_arrays.records(records)

    def _add_columns(self, prefix: str, entries: Sequence[Entry]) -> None:
        for name, pack in _COLUMNS.items():
            values = [getattr(entry, name) for entry in entries]
            self.values[f"{prefix}_{name}"] = pack(values)


_COLUMNS: Final[dict[str, Any]] = {
    "run_id": binary_arrays.texts,
    "seq": binary_arrays.int8s,
    "kind": binary_arrays.texts,
    "at": binary_arrays.int8s,
    "actor": binary_arrays.texts,
    "schema": binary_arrays.int8s,
    "encoding": binary_arrays.texts,
    "key_id": binary_arrays.texts,
    "facts": binary_arrays.blobs,
    "nonce": binary_arrays.blobs,
    "body": binary_arrays.blobs,
    "erased_digest": binary_arrays.blobs,
    "link": binary_arrays.blobs,
    "proof": binary_arrays.blobs,
}
