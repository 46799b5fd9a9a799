"""The parts of the PostgreSQL backend that need no server: time, packing, folding, statements."""

import re
import time
from itertools import combinations
from typing import Any
from uuid import UUID

import pytest

from holdfast.clock import steady
from holdfast.errors import InvalidSetting
from holdfast.kernel.effects import Effect
from holdfast.kernel.effects import EffectStatus as EffectStatus
from holdfast.kernel.indexes import (
    AddEffect,
    AddSignal,
    AddWait,
    Change,
    CloseGroup,
    CloseRunWaits,
    CountGroup,
    SettleEffect,
    SettleWait,
    TakeSignal,
)
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import GroupStatus, Wait, WaitStatus
from holdfast.settings import Settings, locate_store, shown_store
from holdfast.stores.postgres.changes import Changes, Condition
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.connections import ConnectionPool
from holdfast.stores.postgres.queries import PARTS, change_statement, commit_statement
from holdfast.stores.postgres.rounds import DamagedRuns, _check_held

DAY = 86_400_000_000


def effect(number: int) -> Effect:
    return Effect(
        tenant="t",
        effect_id=UUID(int=number),
        key=f"key-{number}",
        run_id="r",
        tool="refund",
        call_id="",
        args_digest=b"\0\xff",
        status=EffectStatus.ISSUED,
        issued_seq=1,
        issued_at=1,
        limit_at=2,
        lease_seq=1,
    )


def wait(wait_id: str) -> Wait:
    return Wait(
        tenant="t",
        wait_id=wait_id,
        run_id="r",
        group_id="g",
        kind="reply",
        name="",
        deadline=0,
        status=WaitStatus.OPEN,
        opened_seq=1,
        opened_at=1,
    )


def signal(run_id: str) -> Signal:
    return Signal(
        tenant="t",
        run_id=run_id,
        signal_id="one",
        name="go",
        seq=2,
        received_at=1,
        received_by="me",
    )


def test_clock_follows_the_server_whatever_this_machine_believes() -> None:
    server = ServerClock()
    for server_now in (5 * DAY, 400 * DAY, 10 * DAY):
        server.learn(server_now, asked_at=steady())
        assert 0 <= server.now() - server_now < 1_000_000


def test_slow_answer_does_not_set_the_clock_back() -> None:
    server = ServerClock()
    server.learn(DAY, asked_at=steady())
    before = server.now()
    # The server said so at once, and its answer took an hour.
    server.learn(before, asked_at=steady() - 3_600_000_000)
    assert server.now() >= before


def test_clock_goes_on_by_itself() -> None:
    server = ServerClock()
    server.learn(DAY, asked_at=steady())
    first, since = server.now(), time.monotonic_ns()
    while time.monotonic_ns() - since < 2_000_000:
        pass
    assert 2_000 <= server.now() - first < 5_000_000


def test_counting_and_closing_a_group_is_one_record() -> None:
    changes = Changes(
        "r",
        [
            SettleWait("w", WaitStatus.RESOLVED, 5, "me", 9),
            CountGroup("g", 1, 0),
            CountGroup("g", 0, 1),
            CloseGroup("g", GroupStatus.SATISFIED, 6, "me", 9),
        ],
    )
    (counted,) = changes.records["count_group"].values()
    assert counted == {
        "run_id": "r",
        "group_id": "g",
        "resolved": 1,
        "failed": 1,
        "status": GroupStatus.SATISFIED,
        "seq": 6,
    }
    assert changes.is_stepwise, "the settled wait must not be cancelled by the same statement"


def test_what_is_added_and_settled_in_one_commit_is_added_as_settled() -> None:
    changes = Changes(
        "r",
        [
            AddEffect(effect(1)),
            SettleEffect(UUID(int=1), EffectStatus.COMPLETED, 7, 8),
            AddWait(wait("w")),
            SettleWait("w", WaitStatus.CANCELLED, 7, "me", 8),
            AddSignal(signal("r")),
            TakeSignal("one", 7, 8),
        ],
    )
    assert "take_signal_once" not in changes.records
    assert changes.records["add_signal"]["one"].taken_seq == 7
    assert "settle_effect_once" not in changes.records
    assert "settle_wait_once" not in changes.records
    assert changes.records["add_effect"][UUID(int=1)].status is EffectStatus.COMPLETED
    assert changes.records["add_wait"]["w"].status is WaitStatus.CANCELLED
    assert set(changes.conditions) == {
        Condition("add_effect", str(UUID(int=1))),
        Condition("add_wait", "w"),
        Condition("add_signal", "one"),
    }


def test_condition_of_one_run_does_not_hold_for_another() -> None:
    changes = [Changes(run_id, [AddSignal(signal(run_id))]) for run_id in ("a", "b")]
    told = [("stored", "a", "", 1), ("stored", "b", "", 1), ("add_signal", "a", "one", 0)]
    with pytest.raises(DamagedRuns) as raised:
        _check_held(changes, told)
    assert set(raised.value.damage) == {"b"}
    _check_held(changes, [*told, ("add_signal", "b", "one", 0)])


@pytest.mark.parametrize(
    ("wanted", "is_stepwise"),
    [
        ([CloseRunWaits(3, "me", 4)], False),
        ([CloseGroup("g", GroupStatus.FAILED, 3, "me", 4)], False),
        ([SettleWait("w", WaitStatus.RESOLVED, 3, "me", 4), CountGroup("g", 1, 0)], False),
        ([AddWait(wait("w")), CloseRunWaits(3, "me", 4)], True),
        ([CountGroup("g", 1, 0), CloseRunWaits(3, "me", 4)], True),
        ([CloseGroup("g", GroupStatus.FAILED, 3, "me", 4), CloseRunWaits(3, "me", 4)], True),
    ],
)
def test_only_changes_of_the_same_rows_go_step_by_step(
    wanted: list[Change], is_stepwise: bool
) -> None:
    assert Changes("r", wanted).is_stepwise is is_stepwise


@pytest.mark.parametrize("size", [0, 1, 2, len(PARTS)])
def test_statement_has_just_its_parts_and_numbers_every_parameter(size: int) -> None:
    for parts in combinations(PARTS, size):
        for make in (commit_statement, change_statement):
            statement = make(frozenset(parts))
            used = {int(number) for number in re.findall(r"\$(\d+)", statement.sql)}
            assert used == set(range(1, len(statement.parameters) + 1))
            assert not re.search(r"(?<!:):[a-z_]+", statement.sql.replace("'holdfast: ", "'"))
            named = {part for part in PARTS if f"{part} AS (" in statement.sql}
            assert named == set(parts)


@pytest.mark.mission("S1-078")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgres://me:secret@host/db?sslpassword=secret", "postgresql://me@host/db"),
        ("postgresql://me:se@cret:@host/db", "postgresql://me@host/db"),
        ("postgresql:///db?host=/run&password=secret", "postgresql:///db"),
        ("memory://", "memory://"),
        ("agents.db", "agents.db"),
    ],
)
def test_password_is_not_shown(url: str, shown: str) -> None:
    assert shown_store(url) == shown


def test_url_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidSetting, match="it looks like postgresql://") as refused:
        ConnectionPool("postgresql://me:secret@host/db?no_such_option=1", Settings())
    assert "secret" not in str(refused.value)


def test_lock_is_waited_for_only_briefly_after_one_was_waited_for_in_vain() -> None:
    connections = ConnectionPool("postgresql://host/db", Settings(busy_timeout_seconds=60))
    assert connections.lock_timeout == "60000ms"
    connections.hurry()
    assert connections.lock_timeout == "100ms"


@pytest.mark.mission("S1-077")
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_name_postgresql(scheme: str) -> None:
    assert locate_store(f"{scheme}://host/db").backend == "postgres"


@pytest.mark.parametrize("value", [1, "yes", None])
def test_flag_must_be_a_truth_value(value: Any) -> None:
    with pytest.raises(InvalidSetting, match="prepared_statements must be True or False"):
        Settings(prepared_statements=value)
