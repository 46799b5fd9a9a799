"""Which statements a change to the indexes, or a sweep, is made of."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.kernel import journal
from holdfast.kernel.budgets import AddBudget, AddReservation, DrawBudget, DropReservation, Limits
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
from holdfast.kernel.journal import ORIGIN, Position
from holdfast.kernel.messages import AddMessage
from holdfast.kernel.records import AddRevision, PutRecord
from holdfast.stores.contract import FIND_OF_AGENTS, Sweep
from holdfast.stores.sqlite.queries import SHAPES, Row

_DROPS: Final = (
    "drop_checkpoints",
    "drop_records",
    "drop_revisions",
    "drop_writes",
    "drop_marks",
)
# Changes whose statement finds nothing to do when their condition does not hold.
CONDITIONAL: Final = frozenset(
    {
        AddMark,
        AddEffect,
        SettleEffect,
        AddGroup,
        AddWait,
        SettleWait,
        AddSignal,
        TakeSignal,
        AddBudget,
        DrawBudget,
        AddReservation,
        DropReservation,
    }
)
Statement = tuple[str, Row]


def statements(tenant: str, run_id: str, change: Change) -> Iterable[Statement]:
    """The named statements that make one change, with their parameters."""
    match change:
        case AddCheckpoint(checkpoint):
            return (("add_checkpoint", SHAPES.checkpoint.row(checkpoint)),)
        case AddEffect(effect):
            return (("add_effect", SHAPES.effect.row(effect)),)
        case SettleEffect(effect_id, status, seq, at):
            return (("settle_effect_once", (tenant, effect_id.bytes, status.value, seq, at)),)
        case PutRun(run):
            return (("put_run", SHAPES.run.row(run)),)
        case AddGroup(group):
            return (("add_group", SHAPES.group.row(group)),)
        case AddWait(wait):
            return (("add_wait", SHAPES.wait.row(wait)),)
        case AddSignal(signal):
            return (("add_signal", SHAPES.signal.row(signal)),)
        case TakeSignal(signal_id, seq, at):
            return (("take_signal_once", (tenant, run_id, signal_id, seq, at)),)
        case _ if isinstance(change, MarkChange):
            return _mark_statements(tenant, run_id, change)
        case _:
            return _other_statements(tenant, run_id, change)


def _record_statement(change: PutRecord | AddRevision) -> tuple[str, Row]:
    match change:
        case PutRecord():
            return "put_record", msgspec.structs.astuple(change)
        case AddRevision(revision):
            return "add_revision", SHAPES.revision.row(revision)


def _mark_statements(tenant: str, run_id: str, change: MarkChange) -> Iterator[tuple[str, Row]]:
    match change:
        case AddMark(marked):
            yield "add_mark", SHAPES.mark.row(marked)
        case AddWrites(written):
            yield "add_writes", SHAPES.writes.row(written)
        case PutRecord() | AddRevision():
            yield _record_statement(change)
        case DropCheckpoint(version):
            yield from _drops(tenant, run_id, version, version)
        case DropCheckpoints(versions):
            for first, last in versions:
                yield from _drops(tenant, run_id, first, last)
        case MoveBase(version, base_seq):
            yield "move_base", (tenant, run_id, version, base_seq)
        case EraseBodies(seqs):
            yield "permit_removal", (tenant, run_id)
            for first, last in seqs:
                yield "erase_bodies", (tenant, run_id, first, last)
                yield "drop_erased_bodies", (tenant, run_id, first, last)
            yield "forbid_removal", (tenant, run_id)


def _drops(tenant: str, run_id: str, first: int, last: int) -> Iterator[tuple[str, Row]]:
    # Marks go last: they say whose writes go.
    yield "permit_removal", (tenant, run_id)
    for name in _DROPS:
        yield name, (tenant, run_id, first, last)
    yield "forbid_removal", (tenant, run_id)


def _budget_statement(
    tenant: str,
    run_id: str,
    change: AddBudget | DrawBudget | AddReservation | DropReservation,
) -> tuple[str, Row]:
    match change:
        case AddBudget(account):
            return "add_budget", SHAPES.account.row(account)
        case AddReservation(reservation):
            return "add_reservation", SHAPES.reservation.row(reservation)
        case DropReservation(reservation_id):
            return "drop_reservation", (tenant, run_id, reservation_id)
        case DrawBudget(limits, set_seq, spent, freed, reserved, needs, at, warned):
            limited = limits or Limits()
            asked = (needs.usd_micros, needs.tokens, needs.turns, at) if needs else (0, 0, 0, 0)
            return "draw_budget", (
                tenant,
                run_id,
                limits is not None,
                *msgspec.structs.astuple(limited),
                set_seq,
                *msgspec.structs.astuple(spent),
                *(
                    more - less
                    for more, less in zip(
                        msgspec.structs.astuple(reserved),
                        msgspec.structs.astuple(freed),
                        strict=True,
                    )
                ),
                *(need or None for need in asked),
                warned,
            )


def _other_statements(tenant: str, run_id: str, change: Change) -> Iterator[tuple[str, Row]]:
    match change:
        case SettleWait(wait_id, status, seq, by, at):
            yield "settle_wait_once", (tenant, wait_id, status.value, seq, by, at)
        case CountGroup(group_id, resolved, failed):
            yield "count_group", (tenant, run_id, group_id, resolved, failed)
        case CloseGroup(group_id, status, seq, by, at):
            yield "close_group", (tenant, run_id, group_id, status.value, seq)
            yield "owe_cancels_of_group", (tenant, run_id, group_id, seq, at)
            yield "cancel_waits_of_group", (tenant, run_id, group_id, seq, by, at)
        case CloseRunWaits(seq, by, at):
            yield "cancel_groups_of_run", (tenant, run_id, seq)
            yield "owe_cancels_of_run", (tenant, run_id, seq, at)
            yield "cancel_waits_of_run", (tenant, run_id, seq, by, at)
        case AddMessage(message):
            yield "add_message", SHAPES.message.row(message)
        case AddBudget() | DrawBudget() | AddReservation() | DropReservation():
            yield _budget_statement(tenant, run_id, change)
        case _:
            raise AssertionError(f"{type(change).__name__} is not a change")


def find_statement(sweep: Sweep, now: int) -> tuple[str, Row]:
    """The statement that finds the runs of a sweep."""
    if sweep.find == "lost_runs":
        lost = json.dumps(sweep.lost)
        return "find_lost_runs", (sweep.tenant, sweep.limit, journal.SCHEMA, lost)
    row: Row = (sweep.tenant, now, sweep.limit, journal.SCHEMA)
    if sweep.find == "ready_runs":
        row = (*row, sweep.with_suspects)
    if sweep.agents:
        return FIND_OF_AGENTS[sweep.find], (*row, json.dumps(sweep.agents))
    return f"find_{sweep.find}", row


def position_of(head: Row | None) -> Position:
    return ORIGIN if head is None else Position(head[0], head[1])
