"""What a batch of decisions looks at: read in one round trip, and put together for each run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, LiteralString, NamedTuple
from uuid import UUID

from holdfast.errors import IndexCorrupted, IntegrityError
from holdfast.kernel import proofs
from holdfast.kernel.index_rows import Indexes
from holdfast.kernel.journal import ORIGIN, Position
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import Wait
from holdfast.stores.contract import NO_CHECKPOINT, AtCheckpoint, Holder, Late, Snapshot
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.connections import PostgresConnection, fetch, fetch_together
from holdfast.stores.postgres.queries import SHAPES, SQL
from holdfast.stores.readers import check_run_proof, checked_group
from holdfast.stores.rows import Row, taking

_RUN_COLUMNS: Final = len(RunRow.__struct_fields__)
_WAIT_COLUMNS: Final = len(Wait.__struct_fields__)


class Rows(NamedTuple):
    """What decisions look at, as stored in the tables."""

    runs: dict[str, Row]
    wrong: dict[str, IndexCorrupted]
    """Runs whose rows differ from their journals."""
    waits: dict[str, Row]
    groups: dict[tuple[str, str], Row]
    effects: dict[UUID, Row]
    signals: dict[tuple[str, str], Row]
    budgets: dict[str, Row]
    reservations: dict[tuple[str, str], Row]
    awaiting: dict[str, list[Row]]
    """Of each run the open waits that its signals may resolve."""
    workers: dict[str, WorkerRow]
    with_results: frozenset[str]
    """Runs that have recorded a result since they were leased; looked for with the workers."""


async def look(
    connection: PostgresConnection,
    tenant: str,
    run_ids: Iterable[str],
    late: Sequence[Late],
    *,
    now: int,
    with_workers: bool,
) -> Rows:
    """Read, in statements after the locks, all that these writes and those of `run_ids` need.

    A worker that takes a run is alive: rows of takers are renewed on the way.
    """
    wait_ids = {wait_id for write in late for wait_id in write.wait_ids}
    effect_ids = {effect_id for write in late for effect_id in write.effect_ids}
    signal_ids = {(write.run_id, id_) for write in late for id_ in write.signal_ids}
    names = {(write.run_id, name) for write in late for name in write.signal_names}
    # Where the journals end is read first: what a holder adds meanwhile makes us decide anew.
    of_runs = binary_arrays.texts(dict.fromkeys(run_ids))
    asked: dict[str, Row] = {"list_snapshots": (of_runs,)}
    if wait_ids:
        of_waits = binary_arrays.texts(wait_ids)
        asked |= {"list_waits_by_id": (of_waits,), "list_groups_of_waits": (of_waits,)}
    if effect_ids:
        asked["list_effects_by_id"] = (binary_arrays.uuids(effect_ids),)
    if signal_ids:
        asked["list_signals_by_id"] = _columns(signal_ids)
    if names:
        asked["list_waits_for_signals"] = _columns(names)
    asked |= _asked_of_budgets(late)
    if with_workers:
        asked |= {"list_workers": (), "list_runs_with_results": (of_runs,)}
    takers = {write.taker.worker: write.taker for write in late if write.taker}
    statements: list[tuple[LiteralString, Row]] = [
        (SQL[name], (tenant, *row)) for name, row in asked.items()
    ]
    for name, row in (taking(taker, now) for taker in takers.values()):
        statements.append((SQL[name], row))
    found = (await fetch_together(connection, *statements))[: len(asked)]
    rows = _rows_of(dict(zip(asked, found, strict=True)))
    for run_id, row in rows.runs.items():
        run, proof = SHAPES.run.value(row[:_RUN_COLUMNS]), row[_RUN_COLUMNS]
        if not proofs.is_proven(run, proof):
            proving_rows = await fetch(connection, SQL["get_run_proof"], (tenant, run_id))
            try:
                check_run_proof(run, proving_rows)
            except IndexCorrupted as wrong:
                rows.wrong[run_id] = wrong
    return rows


def _asked_of_budgets(late: Sequence[Late]) -> dict[str, Row]:
    asked: dict[str, Row] = {}
    owners = {write.run_id for write in late if write.has_budget}
    if owners:
        asked["list_budgets_by_run"] = (binary_arrays.texts(owners),)
    reservations = {(write.run_id, id_) for write in late for id_ in write.reservation_ids}
    if reservations:
        asked["list_reservations_by_id"] = _columns(reservations)
    return asked


def _columns(pairs: Iterable[tuple[str, str]]) -> Row:
    """Pairs of texts as an array of the first ones and an array of the others."""
    return tuple(binary_arrays.texts(column) for column in zip(*pairs, strict=True))


def _rows_of(found: Mapping[str, list[Row]]) -> Rows:
    runs = {row[1]: row for row in found["list_snapshots"]}
    groups = {(row[1], row[2]): row for row in found.get("list_groups_of_waits", ())}
    awaiting: dict[str, list[Row]] = {}
    for row in found.get("list_waits_for_signals", ()):
        wait, group = row[:_WAIT_COLUMNS], row[_WAIT_COLUMNS:]
        awaiting.setdefault(wait[2], []).append(wait)
        if group[0] is not None:
            groups[group[1], group[2]] = group
    return Rows(
        runs=runs,
        wrong={},
        # One that was opened after the locks were taken, of a run that is not locked, is not
        # there yet.
        waits={row[1]: row for row in found.get("list_waits_by_id", ()) if row[2] in runs},
        groups=groups,
        effects={row[1]: row for row in found.get("list_effects_by_id", ())},
        signals={(row[1], row[2]): row for row in found.get("list_signals_by_id", ())},
        budgets={row[1]: row for row in found.get("list_budgets_by_run", ())},
        reservations={(row[1], row[2]): row for row in found.get("list_reservations_by_id", ())},
        awaiting=awaiting,
        workers={row[1]: SHAPES.worker.value(row) for row in found.get("list_workers", ())},
        with_results=frozenset(run_id for (run_id,) in found.get("list_runs_with_results", ())),
    )


def snapshot_of(run_id: str, writes: Sequence[Late], rows: Rows, *, now: int) -> Snapshot:
    """What the writes of one run decide on."""
    seen = _indexes_of(run_id, writes, rows)
    position, newest, holder = ORIGIN, NO_CHECKPOINT, None
    if run_id in rows.runs:
        if run_id in rows.wrong:
            raise rows.wrong[run_id]
        *run, _, seq, link, at, version, checkpoint_id, expires_at, beats = rows.runs[run_id]
        if at is not None:
            newest = AtCheckpoint(at, version, checkpoint_id)
        holder = None if beats is None else Holder(expires_at, beats)
        seen.run = SHAPES.run.value(tuple(run))
        if seq is None:
            raise IntegrityError(f"run {run_id} has a row but no journal: it was deleted")
        position = Position(seq, link)
    return Snapshot(
        position=position,
        indexes=seen,
        now=now,
        newest=newest,
        holder=holder,
        workers=rows.workers,
        has_results=run_id in rows.with_results,
    )


def _indexes_of(run_id: str, writes: Sequence[Late], rows: Rows) -> Indexes:
    seen = Indexes(is_partial=True)
    named = dict.fromkeys(wait_id for write in writes for wait_id in write.wait_ids)
    waits = {wait_id: rows.waits[wait_id] for wait_id in named if wait_id in rows.waits}
    waits |= {row[1]: row for row in rows.awaiting.get(run_id, ())}
    for wait in map(SHAPES.wait.value, waits.values()):
        seen.add_wait(wait)
    for group_id in {wait.group_id for wait in seen.waits.values()}:
        if (run_id, group_id) in rows.groups:
            seen.groups[group_id] = checked_group(SHAPES.group, rows.groups[run_id, group_id])
    for effect_id in {effect_id for write in writes for effect_id in write.effect_ids}:
        if effect_id in rows.effects:
            seen.effects[effect_id] = SHAPES.effect.value(rows.effects[effect_id])
    for signal_id in {signal_id for write in writes for signal_id in write.signal_ids}:
        if (run_id, signal_id) in rows.signals:
            seen.signals[signal_id] = SHAPES.signal.value(rows.signals[run_id, signal_id])
    _read_books(seen, run_id, writes, rows)
    return seen


def _read_books(seen: Indexes, run_id: str, writes: Sequence[Late], rows: Rows) -> None:
    if run_id in rows.budgets:
        seen.books.account = SHAPES.account.value(rows.budgets[run_id])
    for reservation_id in {id_ for write in writes for id_ in write.reservation_ids}:
        if (run_id, reservation_id) in rows.reservations:
            row = rows.reservations[run_id, reservation_id]
            seen.books.reservations[reservation_id] = SHAPES.reservation.value(row)
