"""When a worker counts as lost, by what one process sees of its row."""

import os
import socket
import subprocess
import sys

import msgspec
import pytest

from holdfast import process_identity
from holdfast.engine.liveness import WorkerWatch
from holdfast.kernel.leases import WorkerRow
from holdfast.process_identity import has_ended, of_this_process

LEASE = 1200


def row(beats: int = 1, *, name: str = "w", lease: int = LEASE, expires_at: int = 0) -> WorkerRow:
    return WorkerRow(
        tenant="default",
        worker=name,
        started_at=0,
        expires_at=expires_at,
        lease=lease,
        beats=beats,
    )


def look(watch: WorkerWatch, now: int, *rows: WorkerRow, took: int = 0, lease: int = LEASE) -> None:
    watch.look(rows, asked_at=now - took, now=now, lease=lease)


def watched(*looks: tuple[int, WorkerRow], lease: int = LEASE) -> WorkerWatch:
    watch = WorkerWatch()
    for now, seen in looks:
        look(watch, now, seen, lease=lease)
    return watch


def test_worker_is_lost_when_its_row_stood_still_for_a_whole_lease() -> None:
    still = [(5000 + n * 300, row()) for n in range(5)]
    assert not watched(*still[:4]).lost
    watch = watched(*still)
    assert watch.lost == (("w", 1),)
    assert watch.is_lost("w", 1)
    assert not watch.is_lost("w", 2)


def test_row_that_is_over_by_the_stores_clock_proves_nothing() -> None:
    assert not watched((5000, row(expires_at=0)), (5300, row(expires_at=0))).lost


def test_row_that_says_it_lives_for_an_hour_is_lost_all_the_same() -> None:
    far = row(expires_at=2**60)  # the server's clock was set back
    assert watched(*((5000 + n * 300, far) for n in range(5))).lost


def test_beat_begins_the_watch_anew() -> None:
    looks = [(5000 + n * 300, row(1 + (n > 3))) for n in range(8)]
    assert not watched(*looks).lost
    assert watched(*looks, (7400, row(2)), (7700, row(2))).lost


def test_time_that_this_process_did_not_see_counts_little() -> None:
    """Whoever stood still, and wakes first, must not expire the others."""
    assert not watched((5000, row()), (5300, row()), (99_000, row()), (99_001, row())).lost


def test_outage_begins_the_watch_anew() -> None:
    watch = watched(*((5000 + n * 300, row()) for n in range(4)))
    watch.begin_anew()
    for n in range(4):
        look(watch, 9000 + n * 300, row())
    assert not watch.lost
    look(watch, 9000 + 4 * 300, row())
    assert watch.lost


@pytest.mark.parametrize(("gap", "took"), [(LEASE + 1, 0), (LEASE, LEASE // 2 + 1)])
def test_outage_that_the_store_bridged_begins_the_watch_anew(gap: int, took: int) -> None:
    """A read that is tried again inside the store, or a commit before it, raises nothing."""
    watch = watched(*((5000 + n * 300, row()) for n in range(4)))
    after = 5900 + gap
    look(watch, after, row(), took=took)
    for n in range(1, 4):
        look(watch, after + n * 300, row())
    assert not watch.lost
    look(watch, after + 1200, row())
    assert watch.lost


@pytest.mark.parametrize(("gap", "took"), [(LEASE, 0), (300, LEASE // 2)])
def test_rows_that_come_just_in_time_count(gap: int, took: int) -> None:
    watch = WorkerWatch()
    for n in range(5):
        look(watch, 5000 + n * gap, row(), took=took)
    assert watch.lost == (("w", 1),)


def test_worker_is_remembered_with_all_it_held_when_it_last_beat() -> None:
    """Of fifty runs, forty-nine have been given back when the last one is judged."""
    rows = [msgspec.structs.replace(row(), held=held) for held in (50, 50, 1)]
    watch = watched(*((5000 + n * 300, each) for n, each in enumerate(rows)))
    assert watch.most_held(rows[-1]) == 50
    look(watch, 5900, msgspec.structs.replace(row(2), held=1))
    assert watch.most_held(msgspec.structs.replace(row(2), held=1)) == 1


def test_outage_forgets_who_was_lost() -> None:
    watch = watched(*((5000 + n * 300, row()) for n in range(5)))
    watch.begin_anew()
    assert not watch.lost
    assert not watch.is_lost("w", 1)


def test_each_worker_is_watched_by_its_own_lease() -> None:
    watch = WorkerWatch()
    for n in range(5):
        look(watch, 5000 + n * 300, row(name="short"), row(name="long", lease=99 * LEASE))
    assert [lost.worker for lost in watch.lost] == ["short"]


def test_row_of_an_older_version_moves_by_its_time_alone() -> None:
    old = [row(0, lease=0, expires_at=n) for n in range(3)]
    own = 15_000_000
    assert not watched(*((n * 4_000_000, old[n]) for n in range(3)), lease=own).lost
    assert watched(*((n * 4_000_000, old[0]) for n in range(5)), lease=own).lost


def test_what_was_seen_may_be_acted_on_for_a_moment_only() -> None:
    watch = watched(*((5000 + n * 300, row()) for n in range(5)))
    assert watch.may_expire(row(), now=6200 + LEASE // 2)
    assert not watch.may_expire(row(), now=6201 + LEASE // 2)
    assert not watch.may_expire(row(2), now=6200)


def test_process_that_is_gone_is_lost_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    state = process_identity._state_of(child.pid)
    assert state is not None
    this = of_this_process()
    about = this._replace(pid=child.pid, process_start=state[1])
    seen = msgspec.structs.replace(row(), **about._asdict())
    assert not watched((5000, seen)).lost
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert watched((5000, seen)).lost
    child.communicate()
    watch = watched((5000, seen))
    assert watch.lost
    assert watch.why("w") == f"worker w has ended: process {child.pid} on {this.host} is gone"
    assert watch.may_expire(seen, now=2**60)  # that stays so


def test_this_process_is_known_by_its_boot_and_start() -> None:
    this = of_this_process()
    assert this.host == socket.gethostname()
    assert this.pid == os.getpid()
    assert this.process_start > 0
    assert not has_ended(this, this)
    assert has_ended(this._replace(process_start=this.process_start - 1), this)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"boot_id": "another machine"},
        {"host": "a copy of this machine"},
        {"pid_namespace": "a container"},
        {"boot_id": ""},
        {"pid": 0},
    ],
)
def test_process_elsewhere_is_never_said_to_have_ended(elsewhere: dict[str, object]) -> None:
    this = of_this_process()
    gone = this._replace(pid=2**22 + 1)  # no pid is that high
    assert has_ended(gone, this)
    assert not has_ended(gone._replace(**elsewhere), this)
