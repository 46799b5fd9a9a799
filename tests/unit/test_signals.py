"""The rules of signals, on their own: which wait one resolves, and that each counts once."""

import msgspec
import pytest

from holdfast import codec
from holdfast.errors import IntegrityError, JournalCorrupted, RunCancelled, RunEnded
from holdfast.kernel import index_rows, journal, runs, signals, waits
from holdfast.kernel.journal import ORIGIN, Draft, Kind, Origin
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import Group, Wait, WaitStatus
from holdfast.stores.entry_sealer import seal_all

HERE = Origin("default", "a", "alice", 1_000_000)
WAITING = RunRow(tenant="default", run_id="a", status=RunStatus.WAITING, waiting_on="g")
GROUPS = {"g": Group(tenant="default", run_id="a", group_id="g", need=0, total=1)}


def a_wait(wait_id: str = "w", **changed: object) -> Wait:
    wait = Wait(
        tenant="default",
        wait_id=wait_id,
        run_id="a",
        group_id="g",
        kind="signal",
        name="go",
        deadline=0,
        status=WaitStatus.OPEN,
        opened_seq=3,
        opened_at=0,
    )
    return msgspec.structs.replace(wait, **changed)


def received(*open_waits: Wait) -> list[Draft]:
    drafts = signals.receive(WAITING, "one", "go", b"body", open_waits=open_waits, groups=GROUPS)
    return list(drafts)


def test_signal_that_nobody_awaits_is_one_entry() -> None:
    assert received() == [Draft(Kind.SIGNAL_RECEIVED, signals.SignalReceived("one", "go"), b"body")]


def test_awaited_signal_resolves_the_wait_with_its_id_and_wakes_the_run() -> None:
    _, resolved, closed = received(a_wait())
    assert resolved == Draft(Kind.WAIT_RESOLVED, waits.WaitSettled("w", "g"), codec.encode("one"))
    assert closed.facts == waits.Closed("g", waits.GroupStatus.SATISFIED, wakes=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "stop"},
        {"kind": "reply"},
        {"status": WaitStatus.EXPIRED},
        {"run_id": "b"},
    ],
)
def test_wait_for_something_else_is_passed_over(changed: dict[str, object]) -> None:
    assert len(received(a_wait(**changed))) == 1


def test_first_wait_is_the_one_that_was_opened_first() -> None:
    among = [a_wait("w9"), a_wait("w1", opened_seq=4), a_wait("w2"), a_wait("w3")]
    assert received(*among)[1].facts == waits.WaitSettled("w2", "g")


def test_wait_without_a_group_is_damage() -> None:
    with pytest.raises(IntegrityError, match="holdfast store reindex"):
        signals.receive(WAITING, "one", "go", b"", open_waits=[a_wait()], groups={})


@pytest.mark.parametrize("status", RunStatus)
def test_only_a_run_that_has_ended_takes_no_signals(status: RunStatus) -> None:
    run = msgspec.structs.replace(WAITING, status=status)
    if status not in runs.ENDED:
        assert signals.receive(run, "one", "go", b"", groups={})
        return
    with pytest.raises(RunCancelled if status is RunStatus.CANCELLED else RunEnded):
        signals.receive(run, "one", "go", b"", groups={})


def test_rows_follow_from_the_entries_and_each_counts_once() -> None:
    created = Draft(Kind.RUN_CREATED, runs.RunCreated())
    sent = Draft(Kind.SIGNAL_RECEIVED, signals.SignalReceived("one", "go"), b"body")
    entries = seal_all(None, ORIGIN, [created, sent], HERE).entries
    (signal,) = index_rows.replayed(entries).signals.values()
    assert (signal.seq, signal.received_by, signal.received_at) == (2, "alice", 1_000_000)
    assert not signal.is_taken
    taken = signals.take("one", b"answer")
    entries = seal_all(None, ORIGIN, [created, sent, taken], HERE).entries
    (signal,) = index_rows.replayed(entries).signals.values()
    assert (signal.taken_seq, signal.taken_at) == (3, 1_000_000)
    assert signal.is_taken


@pytest.mark.parametrize(
    ("drafts", "what"),
    [
        ([signals.SignalReceived("one", "go")] * 2, "was used before"),
        (
            [signals.SignalReceived("one", "go"), *[signals.SignalTaken("one")] * 2],
            "was taken before",
        ),
        ([signals.SignalTaken("one")], "cannot be replayed"),
    ],
)
def test_journal_that_contradicts_itself_is_not_followed(
    drafts: list[msgspec.Struct], what: str
) -> None:
    kinds = {signals.SignalReceived: Kind.SIGNAL_RECEIVED, signals.SignalTaken: Kind.SIGNAL_TAKEN}
    entries = [journal.seal(ORIGIN, Draft(Kind.RUN_CREATED, runs.RunCreated()), HERE, bytes(16))]
    for facts in drafts:
        draft = Draft(kinds[type(facts)], facts)
        entries.append(journal.seal(entries[-1].position, draft, HERE, bytes(16)))
    with pytest.raises(JournalCorrupted, match=what):
        index_rows.replayed(entries)
