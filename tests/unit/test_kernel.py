"""The kernel's rules: moves, groups, chains, edits and folds, on their own."""

import itertools
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.codec import Ref
from holdfast.errors import IllegalMove, IntegrityError, JournalCorrupted, MisuseError, RunEnded
from holdfast.kernel import (
    checkpoints,
    edits,
    effects,
    indexes,
    journal,
    peers,
    proofs,
    runs,
    waits,
)
from holdfast.kernel.checkpoints import END, Delta, Splice
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Kind, NoFacts, Origin, Position
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.state import Parts, diff

HERE = Origin("default", "a", "tester", 1_000_000)


def a_run(status: RunStatus) -> RunRow:
    return RunRow(tenant="default", run_id="a", root_id="a", status=status)


@pytest.mark.parametrize(("kind", "status"), list(itertools.product(runs.MOVES, RunStatus)))
def test_each_move_is_legal_from_its_states_and_refused_from_all_others(
    kind: Kind, status: RunStatus
) -> None:
    allowed, _ = runs.MOVES[kind]
    if status in allowed:
        assert runs.check_move(a_run(status), kind) is None
        return
    with pytest.raises(RunEnded if status in runs.ENDED else IllegalMove):
        runs.check_move(a_run(status), kind)


def test_every_state_can_be_reached_and_every_living_one_left() -> None:
    targets = {target for _, target in runs.MOVES.values()}
    assert targets == set(RunStatus)
    left = set().union(*(allowed for allowed, _ in runs.MOVES.values()))
    assert left == set(runs.ALIVE)


def test_every_entry_kind_has_facts_and_every_fact_decodes() -> None:
    assert set(indexes.FACTS) == set(Kind)
    entry = journal.seal(ORIGIN, Draft(Kind.RUN_LEASED, runs.RunLeased("w1")), HERE, bytes(16))
    assert indexes.facts_of(entry) == runs.RunLeased("w1")
    broken = msgspec.structs.replace(entry, facts=b"\xc1")
    with pytest.raises(JournalCorrupted, match="entry 1 of run a"):
        indexes.facts_of(broken)


def _made(kind: Any) -> Any:
    """Any value of a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        needed = [f for f in msgspec.structs.fields(kind) if f.required]
        return kind(**{f.name: _made(f.type) for f in needed})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if get_origin(kind) in (Union, UnionType):
        return None if NoneType in get_args(kind) else _made(get_args(kind)[0])
    if kind is Any:
        return None
    return UUID(int=1) if kind is UUID else (get_origin(kind) or kind)()


@pytest.mark.parametrize("kind", list(Kind))
def test_only_listed_kinds_of_entries_change_a_run_prove_a_row_or_make_a_run_owe(
    kind: Kind,
) -> None:
    facts, run = _made(indexes.FACTS[kind]), a_run(RunStatus.RUNNING)
    entry = Entry("t", "r", 2, kind.value, 1, "w", 1, "mp", "", b"", b"", b"", None, b"")
    if kind not in runs.CHANGING:
        assert runs.fold(run, entry, facts) is run
    if kind not in proofs.PROVING:
        assert proofs.proof_of("r", facts, None) is None
    if kind not in peers.OWING:
        assert peers.owed(run, entry, facts) == []


@given(
    need=st.integers(0, 6),
    outcomes=st.lists(st.booleans(), min_size=1, max_size=6),
)
def test_a_group_closes_once_and_as_early_as_can_be(need: int, outcomes: list[bool]) -> None:
    total = len(outcomes)
    need = min(need, total)
    group = waits.Group(tenant="t", run_id="a", group_id="g", need=need, total=total)
    closed_at = None
    for number, resolved in enumerate(outcomes, 1):
        group = waits.counted(group, resolved=int(resolved), failed=int(not resolved))
        if waits.judge(group) is not waits.GroupStatus.OPEN:
            closed_at = closed_at or (number, waits.judge(group))
    resolved_by = [sum(outcomes[:n]) for n in range(1, total + 1)]
    if need == 0:
        assert closed_at == (total, waits.GroupStatus.SATISFIED)
    elif sum(outcomes) >= need:
        first = next(n for n, count in enumerate(resolved_by, 1) if count >= need)
        assert closed_at == (first, waits.GroupStatus.SATISFIED)
    else:
        first = next(n for n in range(1, total + 1) if total - (n - resolved_by[n - 1]) < need)
        assert closed_at == (first, waits.GroupStatus.FAILED)


def test_wait_is_due_from_its_deadline_on_while_it_is_open_and_nobody_has_claimed_it() -> None:
    wait = waits.Wait(
        tenant="t",
        wait_id="w",
        run_id="a",
        group_id="g",
        kind="reply",
        name="",
        deadline=10,
        status=waits.WaitStatus.OPEN,
        opened_seq=1,
        opened_at=0,
        claimed_until=12,
    )
    assert [waits.is_due(wait, now) for now in (9, 10, 11, 12)] == [False, False, False, True]
    unclaimed = msgspec.structs.replace(wait, claimed_until=0)
    assert [waits.is_due(unclaimed, now) for now in (9, 10)] == [False, True]
    assert not waits.is_due(msgspec.structs.replace(unclaimed, deadline=0), 10)
    settled = msgspec.structs.replace(unclaimed, status=waits.WaitStatus.RESOLVED)
    assert not waits.is_due(settled, 10)


def test_effect_outcomes_are_final() -> None:
    effect = effects.Effect(
        tenant="t",
        effect_id=UUID(int=1),
        key="k",
        run_id="a",
        tool="t",
        call_id="",
        args_digest=b"",
        status=effects.EffectStatus.COMPLETED,
        issued_seq=1,
        issued_at=0,
        limit_at=10,
        lease_seq=2,
    )
    for status in effects.EffectStatus:
        with pytest.raises(IllegalMove):
            effects.settle(effect, status)
    unknown = msgspec.structs.replace(effect, status=effects.EffectStatus.UNKNOWN)
    assert effects.settle(unknown, effects.EffectStatus.NOT_DONE).kind is Kind.EFFECT_NOT_DONE
    issued = msgspec.structs.replace(effect, status=effects.EffectStatus.ISSUED)
    assert not effects.is_doubtful(issued, now=9)
    assert effects.is_doubtful(issued, now=10)


def test_key_depends_on_lineage_tool_and_arguments_and_nothing_else() -> None:
    key = effects.key_of("root", "tool", b"digest")
    assert key == effects.key_of("root", "tool", b"digest")
    others = [("root2", "tool", b"digest"), ("root", "tool2", b"digest"), ("root", "tool", b"d")]
    assert len({key, *(effects.key_of(*other) for other in others)}) == 4


def chain(count: int) -> list[journal.Entry]:
    entries: list[journal.Entry] = []
    position: Position = ORIGIN
    for number in range(count):
        draft = Draft(Kind.STEP_RECORDED, checkpoints.Step(f"s{number}"), b"\x01" * number)
        entries.append(journal.seal(position, draft, HERE, bytes([number]) * 16))
        position = entries[-1].position
    return entries


@given(st.integers(0, 9), st.data())
def test_a_chain_without_any_of_its_entries_is_not_whole(count: int, data: st.DataObject) -> None:
    entries = chain(count)
    assert list(journal.verify(entries)) == []
    if count > 1:
        missing = data.draw(st.integers(0, count - 2))
        rest = entries[:missing] + entries[missing + 1 :]
        assert list(journal.verify(rest))


def test_erased_body_is_accepted_only_on_the_record() -> None:
    entries = chain(4)
    gone = msgspec.structs.replace(entries[2], body=None, erased_digest=entries[2].digest)
    stored = [*entries[:2], gone, entries[3]]
    assert list(journal.verify(stored, erased=frozenset({3}))) == []
    (problem,) = journal.verify(stored)
    assert (problem.seq, "no body" in problem.what) == (3, True)
    forged = msgspec.structs.replace(gone, erased_digest=bytes(32))
    assert list(journal.verify([*entries[:2], forged, entries[3]], erased=frozenset({3})))


def raws(items: list[Any]) -> list[msgspec.Raw]:
    return [msgspec.Raw(codec.encode(item)) for item in items]


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_splices_turn_any_list_into_any_other(old: list[int], new: list[int]) -> None:
    result = raws(old)
    for start, delete, items in edits.find_splices(raws(old), raws(new)):
        result[start : start + delete] = items
    assert result == raws(new)


@pytest.mark.parametrize(
    ("old", "new", "written"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 1),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3, 4], [2, 3, 4, 5], 1),
        (["system", 1, 2, 3], ["system", 2, 3, 4], 1),
        ([1, 2, 3], [1], 0),
        ([1, 2, 3], [1, 2, 3], 0),
    ],
)
def test_common_changes_write_what_is_new(old: list[Any], new: list[Any], written: int) -> None:
    splices = edits.find_splices(raws(old), raws(new))
    assert sum(len(items) for _, _, items in splices) == written


def test_log_is_not_begun_under_the_name_of_a_value_that_is_not_saved_yet() -> None:
    changes = edits.Edits(Parts(), max_bytes=100)
    changes.set("plan", 1)
    with pytest.raises(MisuseError, match="'plan' is a value, not a log"):
        changes.append("plan", [2])
    delta, _ = changes.split(1)
    assert delta == Delta({}, {"plan": raws([1])[0]}, [])


def test_a_change_that_reaches_beyond_a_log_is_refused_when_folded() -> None:
    parts = Parts()
    parts.apply(
        Delta({"log": [Splice(END, 0, raws([1, 2]))]}, {}, []),
        at=Position(1, b""),
        version=1,
        size=1,
    )
    with pytest.raises(IntegrityError, match="beyond"):
        parts.apply(
            Delta({"log": [Splice(1, 5, [])]}, {}, []), at=Position(2, b""), version=2, size=1
        )


def test_what_is_replaced_or_dropped_is_not_alive_any_more() -> None:
    """Only what is alive counts when a base is considered, and named bodies go with their names."""
    parts = Parts()
    (large,) = raws(["x" * 1000])
    first = Delta({"log": [Splice(END, 0, [large, large])]}, {"a": large, "b": large}, [])
    parts.apply(first, at=Position(1, b""), version=1, size=4 * len(large))
    parts.apply(Delta({"log": [Splice(0, 1, [])]}, {}, []), at=Position(2, b""), version=2, size=0)
    assert parts.live_bytes == 3 * len(large)
    parts.apply(Delta({}, {"a": raws([1])[0]}, []), at=Position(3, b""), version=3, size=1)
    parts.apply(Delta({}, {}, ["b", "log"]), at=Position(4, b""), version=4, size=0)
    assert parts.live_bytes == 1


def test_body_of_a_result_is_kept_until_no_item_or_value_names_it() -> None:
    parts = Parts()
    (name,) = raws([Ref(1)])
    parts.recorded[1] = codec.encode("a result")
    first = Delta({"log": [Splice(END, 0, [name])]}, {"value": name}, [])
    parts.apply(first, at=Position(2, b""), version=1, size=1)
    parts.apply(Delta({}, {}, ["value"]), at=Position(3, b""), version=2, size=1)
    assert (parts.named_entries(), parts.decode()) == ({1}, {"log": ["a result"]})
    parts.apply(Delta({"log": [Splice(0, 1, [])]}, {}, []), at=Position(4, b""), version=3, size=1)
    assert (parts.named_entries(), parts.bodies) == (set(), {})


@pytest.mark.parametrize(
    ("before", "after", "is_empty"),
    [
        ({"log": [1], "plan": 2}, {"log": [1], "plan": 2}, True),
        ({}, {"plan": 2}, False),
        ({"plan": 2}, {}, False),
        ({"plan": 2}, {"plan": 3}, False),
        ({"log": [1]}, {"log": [1, 2]}, False),
    ],
)
def test_diff_is_empty_between_equal_states_only(
    before: dict[str, Any], after: dict[str, Any], is_empty: bool
) -> None:
    assert diff(before, after).is_empty is is_empty


@pytest.mark.parametrize("status", RunStatus)
def test_only_a_run_that_is_held_is_worked_on(status: RunStatus) -> None:
    if status is RunStatus.RUNNING:
        assert runs.check_leased(a_run(status)) is None
        return
    with pytest.raises(RunEnded if status in runs.ENDED else IllegalMove):
        runs.check_leased(a_run(status))


def test_no_facts_are_no_bytes_worth_mentioning() -> None:
    entry = journal.seal(ORIGIN, Draft(Kind.STATE_VALUES, NoFacts(), b""), HERE, bytes(16))
    assert entry.facts == b"\x90"
