"""What an entry means for the indexes: one definition, for writing and for rebuilding.

`facts_of` reads an entry's facts, `changes_of` lists what it does to the rows, and `Indexes`
applies such changes in memory. A store makes the same changes to its tables in the entry's commit.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, get_args
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
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry, Header, Kind, NoFacts
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import AddMessage
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
    if run is not None and entry.kind not in runs.CHANGING:
        return run
    if isinstance(facts, waits.Closed):
        assert run is not None, "a journal begins with RUN_CREATED"
        return runs.woken(run, entry.at) if facts.wakes else run
    return runs.fold(run, entry, facts)


def changes_of(entry: Entry, facts: msgspec.Struct) -> Sequence[Change]:
    """Return what an entry does to the indexes beside its run's row."""
    find = CHANGES.get(type(facts))
    return () if find is None else find(entry, facts)


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


def _issued(entry: Entry, facts: effects.Issued) -> list[Change]:
    return [AddEffect(effect_of(entry, facts))]


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


def _settled(entry: Entry, facts: effects.EffectSettled) -> list[Change]:
    status = effects.STATUS_OF[Kind(entry.kind)]
    return [SettleEffect(facts.effect_id, status, entry.seq, entry.at)]


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


def _wait_settled(entry: Entry, facts: waits.WaitSettled) -> list[Change]:
    status = waits.STATUS_OF[Kind(entry.kind)]
    resolved = int(status is waits.WaitStatus.RESOLVED)
    return [
        SettleWait(facts.wait_id, status, entry.seq, entry.actor, entry.at),
        CountGroup(facts.group_id, resolved, 1 - resolved),
    ]


def _closed(entry: Entry, facts: waits.Closed) -> list[Change]:
    return [CloseGroup(facts.group_id, facts.status, entry.seq, entry.actor, entry.at)]


def _no_longer_waiting(entry: Entry, facts: runs.RunFinished | runs.Rewound) -> list[Change]:
    if isinstance(facts, runs.Rewound) and facts.keeps_waits:
        return []
    return [CloseRunWaits(entry.seq, entry.actor, entry.at)]


def _received(entry: Entry, facts: signals.SignalReceived) -> list[Change]:
    signal = Signal(
        tenant=entry.tenant,
        run_id=entry.run_id,
        signal_id=facts.signal_id,
        name=facts.name,
        seq=entry.seq,
        received_at=entry.at,
        received_by=entry.actor,
    )
    return [AddSignal(signal)]


def _taken(entry: Entry, facts: signals.SignalTaken) -> list[Change]:
    return [TakeSignal(facts.signal_id, entry.seq, entry.at)]


def _of_budget(entry: Entry, facts: budgets.Facts) -> list[Change]:
    return [*budgets.changes_of(entry.tenant, entry.run_id, entry.seq, entry.at, facts)]


CHANGES: Final[dict[type, Callable[[Entry, Any], Sequence[Change]]]] = {
    checkpoints.CheckpointCreated: _created,
    **dict.fromkeys(
        (checkpoints.Deleted, marks.Pruned, marks.Written, marks.Erased),
        _of_marks,
    ),
    effects.Issued: _issued,
    effects.EffectSettled: _settled,
    waits.WaitsOpened: _opened,
    waits.WaitSettled: _wait_settled,
    waits.Closed: _closed,
    runs.RunFinished: _no_longer_waiting,
    runs.Rewound: _no_longer_waiting,
    signals.SignalReceived: _received,
    signals.SignalTaken: _taken,
    **dict.fromkeys(get_args(records.Facts), records.changes_of),
    **dict.fromkeys(get_args(budgets.Facts), _of_budget),
}
"""What an entry does to the indexes, by the type of its facts. Entries of other types do nothing to
them beside their run's row."""
