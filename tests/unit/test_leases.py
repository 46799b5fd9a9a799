"""What the loss of a worker says about the run it held."""

from collections.abc import Iterable

import msgspec
import pytest

from holdfast.kernel import leases, runs
from holdfast.kernel.journal import Kind
from holdfast.kernel.leases import Blame, WorkerRow
from holdfast.kernel.recoveries import Point
from holdfast.kernel.runs import Loss, RunRow, RunStatus

BEFORE, AFTER = Point(6, 1, None), Point(8, 2, None)
SECOND = 1_000_000


def held_by(worker: str, *losses: Loss, attempts: int | None = None) -> RunRow:
    return RunRow(
        tenant="default",
        run_id="r",
        status=RunStatus.RUNNING,
        worker=worker,
        lease_seq=7,
        attempts=len(losses) if attempts is None else attempts,
        lost=len(losses),
        losses=msgspec.json.encode(losses).decode(),
    )


def worker(name: str, *, beats: int = 1, held: int = 1, blocking_run: str = "") -> WorkerRow:
    return WorkerRow(
        tenant="default",
        worker=name,
        started_at=0,
        expires_at=0,
        beats=beats,
        held=held,
        blocking_run=blocking_run,
    )


def rows(*workers: WorkerRow) -> dict[str, WorkerRow]:
    return {each.worker: each for each in workers}


def expire(run: RunRow, *workers: WorkerRow, newest: Point = BEFORE) -> list[object]:
    return [draft.facts for draft in leases.expire(run, newest, rows(*workers), note="gone", now=5)]


def is_blocked(losses: Iterable[Loss], *workers: WorkerRow) -> bool:
    standing = leases.standing(losses, rows(*workers))
    return not leases.judge("r", standing, len(standing)).is_recoverable


def alone(name: str, beats: int = 1) -> Loss:
    return Loss(name, beats, Blame.ALONE)


def beside(name: str, beats: int = 1) -> Loss:
    return Loss(name, beats, Blame.BESIDE)


def blocking(name: str, beats: int = 1) -> Loss:
    return Loss(name, beats, Blame.BLOCKED_LOOP)


def test_loss_says_which_worker_held_the_run_and_how() -> None:
    lost, initiated = expire(held_by("w1"), worker("w1", beats=4))
    assert lost == runs.LeaseExpired("w1", 1, 5, 1, (Loss("w1", 4, "alone"),))
    assert isinstance(initiated, runs.RecoveryInitiated)
    assert initiated.ready_at == 5  # the first one is tried again at once


def test_worker_that_held_others_too_is_lost_beside_them() -> None:
    lost, _ = expire(held_by("w1"), worker("w1", held=51))
    assert isinstance(lost, runs.LeaseExpired)
    assert lost.losses == (Loss("w1", 1, "beside"),)


def test_loop_that_is_held_is_blamed_on_the_run_that_holds_it() -> None:
    own, _ = expire(held_by("w1"), worker("w1", held=51, blocking_run="r"))
    others, _ = expire(held_by("w1"), worker("w1", held=1, blocking_run="another"))
    assert isinstance(own, runs.LeaseExpired)
    assert isinstance(others, runs.LeaseExpired)
    assert (own.losses[0].how, others.losses[0].how) == ("blocked_loop", "beside")


def test_worker_that_ended_well_does_not_count() -> None:
    lost, initiated = expire(held_by("w1", alone("w0")))
    assert lost == runs.LeaseExpired("w1", 1, 5, 1, ())
    assert isinstance(initiated, runs.RecoveryInitiated)


def test_loss_of_a_worker_that_beats_again_is_forgotten_except_in_the_pause() -> None:
    run = held_by("w2", alone("w0"), alone("w1"))
    lost, initiated = expire(run, worker("w0", beats=2), worker("w1"), worker("w2"))
    assert lost == runs.LeaseExpired("w2", 3, 5, 3, (alone("w1"), alone("w2")))
    assert isinstance(initiated, runs.RecoveryInitiated)
    assert initiated.ready_at > 5 + SECOND


def test_run_of_workers_that_beat_again_is_no_suspect() -> None:
    run = held_by("w3", alone("w0"), alone("w1"), alone("w2"))
    lost, _ = expire(run, *(worker(f"w{n}", beats=2) for n in range(3)), worker("w3"))
    assert isinstance(lost, runs.LeaseExpired)
    assert not leases.is_suspect(held_by("w4", *lost.losses))


def test_progress_resets_the_losses() -> None:
    lost, initiated = expire(held_by("w3", alone("w1"), alone("w2")), worker("w3"), newest=AFTER)
    assert lost == runs.LeaseExpired("w3", 1, 5, 1, (alone("w3"),))
    assert isinstance(initiated, runs.RecoveryInitiated)


def test_result_without_a_checkpoint_resets_the_losses() -> None:
    drafts = leases.expire(
        held_by("w3", alone("w1"), alone("w2")),
        BEFORE,
        rows(worker("w3")),
        note="gone",
        now=5,
        has_results=True,
    )
    assert drafts[0].facts == runs.LeaseExpired("w3", 1, 5, 1, (alone("w3"),))


def test_third_loss_in_a_row_blocks() -> None:
    drafts = leases.expire(
        held_by("w3", alone("w1"), alone("w2")),
        BEFORE,
        rows(worker("w1"), worker("w2"), worker("w3")),
        note="gone",
        now=5,
    )
    kinds = [draft.kind for draft in drafts]
    assert kinds == [Kind.LEASE_EXPIRED, Kind.RECOVERY_FAILED, Kind.RUN_BLOCKED]
    blocked = drafts[-1].facts
    assert isinstance(blocked, runs.Blocked)
    assert blocked.note == "3 workers in a row were lost without progress: gone"


@pytest.mark.parametrize(
    ("losses", "workers"),
    [
        pytest.param([alone("w1"), alone("w2")], [worker("w1"), worker("w2")], id="two"),
        pytest.param(
            [alone("w1"), alone("w2"), alone("w3")], [worker("w3")], id="two have ended well since"
        ),
        pytest.param(
            [alone("w1"), alone("w2"), alone("w3")], [worker("w2", beats=2)], id="one lives"
        ),
        pytest.param(
            [alone("w1")] * 3, [worker("w1", beats=1)], id="one worker only, not heard of since"
        ),
        pytest.param([beside(f"w{n}") for n in range(9)], [], id="any of its neighbours may be it"),
        pytest.param([*[beside(f"w{n}") for n in range(9)], alone("x")], [], id="blamed once"),
    ],
)
def test_run_that_may_be_innocent_is_not_blocked(
    losses: list[Loss], workers: list[WorkerRow]
) -> None:
    assert not is_blocked(losses, *workers)


@pytest.mark.parametrize(
    ("losses", "workers"),
    [
        pytest.param(
            [alone("w1"), alone("w2"), alone("w3")],
            [worker("w1"), worker("w2"), worker("w3")],
            id="none has beaten since",
        ),
        pytest.param(
            [beside("w1"), beside("w2"), alone("w3"), alone("w4")],
            [worker("w1"), worker("w2"), worker("w3"), worker("w4")],
            id="then alone",
        ),
        pytest.param(
            [blocking("w1")] * 3, [worker("w1", beats=99)], id="it blocks the same living worker"
        ),
    ],
)
def test_run_that_is_to_blame_is_blocked(losses: list[Loss], workers: list[WorkerRow]) -> None:
    assert is_blocked(losses, *workers)


def test_reason_says_if_the_code_of_a_blocked_run_blocks_the_event_loop() -> None:
    lost = "3 workers in a row were lost without progress"
    losses = [alone("w1"), alone("w2"), blocking("w3")]
    assert leases.judge("r", losses, 3).why_not == f"{lost}; its code blocks the event loop"
    losses = [alone("w1"), alone("w2"), alone("w3")]
    assert leases.judge("r", losses, 3).why_not == lost


def test_pauses_double_from_a_second_on_up_to_ten_minutes() -> None:
    pauses = [leases.judge("r", (), lost).delay / SECOND for lost in range(1, 20)]
    assert pauses[0] == 0
    for n, pause in enumerate(pauses[1:]):
        assert 0.5 * min(600, 2**n) <= pause <= min(600, 1.5 * 2**n)
    assert min(pauses[12:]) >= 300


def test_run_is_a_suspect_from_its_second_loss_in_a_row_on() -> None:
    assert not leases.is_suspect(held_by("w1", alone("a")))
    assert leases.is_suspect(held_by("w1", alone("a"), beside("b")))


@pytest.mark.parametrize(
    ("losses", "trial"),
    [(0, 15), (1, 15), (2, 15), (3, 30), (4, 60), (7, 480), (8, 600), (99, 600)],
)
def test_trial_doubles_with_each_further_loss_up_to_ten_minutes(losses: int, trial: int) -> None:
    run = held_by("w1", *(beside("a") for _ in range(losses)))
    assert leases.trial_seconds(run, 15) == trial


def test_trial_takes_a_lease_at_least() -> None:
    assert leases.trial_seconds(held_by("w1"), 3600) == 3600
