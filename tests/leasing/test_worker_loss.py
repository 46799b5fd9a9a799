"""Slow is not dead: real workers are stopped, cut off, wedged and killed, and no person is needed.

Judged by the journals as they lie in the tables, and by files that the agents leave.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import LeaseHeld
from holdfast.kernel import leases, runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.recoveries import Point
from holdfast.stores.contract import Beat, LateDecision, LostWorker, Snapshot
from holdfast.stores.postgres.connections import PostgresConnection, fetch_together, hang_up
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, PostgresBackend
from tests.chaos.test_spooling import freeze, thaw
from tests.conftest import OwnPostgres
from tests.leasing.laborer import LOOKED, agents, settings
from tests.processes import Child
from tests.suite.time_limits import limit_of

PATIENCE_SECONDS = 240.0
BUSY = "while True: pass"


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits end a little before the time limit of their test, so that they say what they miss."""
    seconds = 0.8 * limit_of(request.node)
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_SECONDS", seconds)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < until, f"waited too long until {what}"
        time.sleep(0.05)


class Shop:
    """A store, workers on it, and what can be seen of both from outside."""

    def __init__(self, backend: Backend, folder: Path, *, lease_seconds: float) -> None:
        self.backend = backend
        self.folder = folder
        self.lease_seconds = lease_seconds

    def worker(self, *stop_at: str) -> Child:
        return Child(
            "tests.leasing.laborer", self.backend.url, self.folder, self.lease_seconds, *stop_at
        )

    def start(self, agent: str, *run_ids: str, given: int | None = None) -> None:
        async def begin() -> None:
            known = {each.name: each for each in agents(self.folder)}
            async with holdfast.Holdfast(self.backend.url, settings=settings(60)) as hf:
                for run_id in run_ids:
                    input_ = () if given is None else (given,)
                    await hf.start(known[agent], *input_, run_id=run_id)

        asyncio.run(begin())

    def statuses(self) -> dict[str, str]:
        with self.backend.raw() as raw:
            return dict(raw.rows("SELECT run_id, status FROM runs"))

    def reasons(self) -> dict[str, str]:
        with self.backend.raw() as raw:
            return dict(
                raw.rows("SELECT run_id, blocked_reason FROM runs WHERE status = 'blocked'")
            )

    def counted(self) -> Counter[str]:
        with self.backend.raw() as raw:
            return Counter(kind for (kind,) in raw.rows("SELECT kind FROM journal"))

    def beats(self, worker: str) -> int:
        with self.backend.raw() as raw:
            return sum(n for (n,) in raw.rows("SELECT beats FROM workers WHERE worker = ?", worker))

    def holders(self) -> set[str]:
        with self.backend.raw() as raw:
            return {w for (w,) in raw.rows("SELECT worker FROM runs WHERE status = 'running'")}

    def wait_for(self, status: str, *run_ids: str) -> None:
        def is_so() -> bool:
            found = self.statuses()
            return all(found[run_id] == status for run_id in run_ids)

        wait_until(is_so, f"{run_ids} are {status}; {self.statuses()}")

    def stop(self, child: Child) -> None:
        """Stop a process, not in the middle of a write to a file that it would keep locked."""
        with self.backend.raw() as raw:
            if self.backend.name == "sqlite":
                raw.execute("BEGIN IMMEDIATE")
            child.signal(signal.SIGSTOP)
            # A thread that still runs could take the lock when it is free, and stop with it.
            wait_until(
                lambda: stop_states(child.process.pid) == {"T"}, "all its threads stand still"
            )
            if self.backend.name == "sqlite":
                raw.execute("ROLLBACK")

    def open_gate(self) -> None:
        (self.folder / "gate").touch()


def stop_states(pid: int) -> set[str]:
    """The state letters of a process's threads; T is stopped by a signal."""
    found = Path(f"/proc/{pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in found}


@pytest.mark.parametrize("stop_at", [LOOKED, "batch.after_decide"])
def test_sweeper_that_stands_still_between_look_and_write_expires_nobody_who_lives(
    backend: Backend, tmp_path: Path, stop_at: str
) -> None:
    """The worker stands still for a lease, is seen to, and beats again before that is written."""
    if stop_at == "batch.after_decide" and backend.name == "sqlite":
        stop_at = LOOKED  # there nobody else can beat inside the transaction
    shop = Shop(backend, tmp_path, lease_seconds=2)
    shop.start("linger", "r")
    with shop.worker() as living:
        worker = living.answer()
        shop.wait_for("running", "r")
        shop.stop(living)
        with shop.worker(f"{stop_at}") as sweeper:
            pid = sweeper.process.pid
            sweeper.answer()
            wait_until(lambda: stop_states(pid) == {"T"}, "the sweeper has seen enough")
            before = shop.beats(worker)
            living.signal(signal.SIGCONT)
            wait_until(lambda: shop.beats(worker) > before, "the worker beats again")
            sweeper.signal(signal.SIGCONT)
            seen = shop.beats(worker)
            wait_until(lambda: shop.beats(worker) > seen + 3, "the sweeper had time to write")
            assert shop.counted()["LEASE_EXPIRED"] == 0
            shop.open_gate()
            shop.wait_for("completed", "r")
    assert shop.counted()["RUN_LEASED"] == 1


def test_sweeper_that_dies_after_its_look_leaves_the_run_to_the_next_one(
    backend: Backend, tmp_path: Path
) -> None:
    shop = Shop(backend, tmp_path, lease_seconds=60)
    shop.start("linger", "r")
    with shop.worker() as first:
        first.answer()
        shop.wait_for("running", "r")
        first.process.kill()
        first.process.wait()
    with shop.worker(LOOKED) as second:
        pid = second.process.pid
        second.answer()
        wait_until(lambda: stop_states(pid) == {"T"}, "it has seen that the first one is gone")
        second.process.kill()
        second.process.wait()
    assert shop.counted()["LEASE_EXPIRED"] == 0
    shop.open_gate()
    with shop.worker() as third:
        third.answer()
        shop.wait_for("completed", "r")
    assert shop.counted()["LEASE_EXPIRED"] == 1


@contextmanager
def sqlite_away(backend: Backend) -> Iterator[None]:
    """Somebody has the write lock, and keeps it."""
    with backend.raw() as raw:
        raw.execute("BEGIN IMMEDIATE")
        yield
        raw.execute("ROLLBACK")


def test_outage_of_three_leases_costs_no_living_worker_its_runs(
    backend: Backend, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lease = 3.0
    if backend.name == "postgres":
        server = request.getfixturevalue("own_postgres")()
        backend = PostgresBackend(server.url())
    shop = Shop(backend, tmp_path, lease_seconds=lease)
    names = [f"r{n}" for n in range(12)]
    shop.start("linger", *names)
    with ExitStack() as stack:
        children = [stack.enter_context(shop.worker()) for _ in range(3)]
        for child in children:
            child.answer()
        shop.wait_for("running", *names)
        if backend.name == "postgres":
            freeze(server)
            time.sleep(3 * lease)
            thaw(server)
        else:
            with sqlite_away(backend):
                time.sleep(3 * lease)
        beats = {worker: shop.beats(worker) for worker in shop.holders()}
        wait_until(
            lambda: all(shop.beats(worker) > n + 4 for worker, n in beats.items()),
            "whoever wants to has expired somebody",
        )
        assert shop.counted()["LEASE_EXPIRED"] == 0
        shop.open_gate()
        shop.wait_for("completed", *names)
    assert not shop.reasons()


STEPPING = """
CREATE SCHEMA stepping;
CREATE TABLE stepping.by (amount interval NOT NULL);
INSERT INTO stepping.by VALUES ('0');
CREATE FUNCTION stepping.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT pg_catalog.clock_timestamp() + (SELECT amount FROM stepping.by) $$;
ALTER DATABASE postgres SET search_path = stepping, public, pg_catalog;
"""


@async_test
async def test_idle_process_learns_the_servers_new_time_before_it_sets_a_moment(
    own_postgres: OwnPostgres,
) -> None:
    """Else a run that it gives back would be ready for others in an hour only."""
    url = own_postgres().url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(STEPPING)
        async with holdfast.Holdfast(url, settings=settings(60)) as hf:
            await hf.runs.create("r")
            connection.execute("UPDATE stepping.by SET amount = '-1 hour'")
            hf._context.store._server_clock._learned_at -= 2_000_000  # some time has passed
            await hf.runs.block("r", "breaker")
            blocked = (await hf.journal.read("r"))[-1]
            (server,) = connection.execute(
                "SELECT extract(epoch FROM stepping.clock_timestamp())"
            ).fetchone() or (0,)
            assert abs(blocked.at / 1e6 - float(server)) < 600


@pytest.mark.parametrize("step", ["1 hour", "-1 hour"])
def test_step_of_the_servers_clock_costs_no_living_worker_its_runs(
    own_postgres: OwnPostgres, tmp_path: Path, step: str
) -> None:
    """A function before PostgreSQL's own one steps the clock that Holdfast asks for."""
    url = own_postgres().url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(STEPPING)
    shop = Shop(PostgresBackend(url), tmp_path, lease_seconds=2)
    names = [f"r{n}" for n in range(6)]
    shop.start("linger", *names)
    with ExitStack() as stack:
        children = [stack.enter_context(shop.worker()) for _ in range(3)]
        for child in children:
            child.answer()
        shop.wait_for("running", *names)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE stepping.by SET amount = %s", (step,))
        beats = {worker: shop.beats(worker) for worker in shop.holders()}
        wait_until(
            lambda: all(shop.beats(worker) > n + 6 for worker, n in beats.items()),
            "two leases are over",
        )
        assert shop.counted()["LEASE_EXPIRED"] == 0
        for child in children:
            child.process.kill()
            child.process.wait()
        # On another machine no pid tells that they are dead. A process that starts now knows only
        # the new time, by which all of them live for an hour, or have been dead for one.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE workers SET host = 'another'")
        stack.enter_context(shop.worker()).answer()
        shop.open_gate()
        shop.wait_for("completed", *names)


def test_run_that_blocks_the_loop_is_stopped_and_those_beside_it_are_not(
    backend: Backend, tmp_path: Path
) -> None:
    """It wedges every worker it touches; three of them, and no more."""
    shop = Shop(backend, tmp_path, lease_seconds=1)
    beside = [f"r{n}" for n in range(5)]
    shop.start("linger", *beside)
    shop.start("wedge", "culprit")
    workers: list[Child] = []
    with ExitStack() as stack:
        for _ in range(8):
            known = len([*tmp_path.glob("wedged-*")])
            workers.append(stack.enter_context(shop.worker()))
            workers[-1].answer()
            wait_until(
                lambda known=known: (
                    len([*tmp_path.glob("wedged-*")]) > known
                    or shop.statuses()["culprit"] == "blocked"
                ),
                "it wedges the next worker, or is stopped",
            )
            if shop.statuses()["culprit"] == "blocked":
                break
        shop.open_gate()
        stack.enter_context(shop.worker()).answer()
        shop.wait_for("completed", *beside)
        assert shop.reasons() == {"culprit": "breaker"}
        assert len([*tmp_path.glob("wedged-*")]) == 3


def test_worker_of_which_the_loop_stood_still_for_some_leases_goes_on(
    backend: Backend, tmp_path: Path
) -> None:
    """Its connections were cut meanwhile, and its runs expired; all get over it."""
    shop = Shop(backend, tmp_path, lease_seconds=1)
    names = [f"r{n}" for n in range(20)]
    shop.start("plod", *names, given=40)
    shop.start("nap", "sleeper")
    with shop.worker() as child, shop.worker() as other:
        child.answer()
        other.answer()
        shop.wait_for("completed", *names, "sleeper")
        shop.start("plod", "later", given=3)
        shop.wait_for("completed", "later")
        assert child.process.poll() is None
        assert other.process.poll() is None


def restart_until_blocked(shop: Shop, run_id: str) -> int:
    """Be a supervisor that starts the worker again and again; how often it died."""
    deaths = 0
    while shop.statuses()[run_id] != "blocked":
        with shop.worker() as child:
            child.answer()
            wait_until(
                lambda child=child: (
                    child.process.poll() is not None or shop.statuses()[run_id] == "blocked"
                ),
                "it dies, or the culprit is stopped",
            )
            deaths += child.process.poll() is not None
            assert deaths < 8, shop.counted()
    return deaths


def test_run_that_is_killed_for_memory_is_found_among_fifty_others(
    backend: Backend, tmp_path: Path
) -> None:
    """None of the others is blamed."""
    shop = Shop(backend, tmp_path, lease_seconds=1)
    beside = [*(f"r{n}" for n in range(45)), *(f"r{n}-slow" for n in range(5))]
    shop.start("linger", *beside)
    shop.start("devour", "culprit")
    deaths = restart_until_blocked(shop, "culprit")
    shop.open_gate()
    with shop.worker() as last:
        last.answer()
        shop.wait_for("completed", *beside)
        assert shop.reasons() == {"culprit": "breaker"}
    assert deaths == len([*tmp_path.glob("killed-*")])
    assert 3 <= deaths <= 5


def test_run_that_kills_its_process_after_its_first_trial_is_found_too(
    backend: Backend, tmp_path: Path
) -> None:
    """It lives for more than a lease each time: the trials become longer until one is enough."""
    shop = Shop(backend, tmp_path, lease_seconds=1)
    beside = [f"r{n}" for n in range(5)]
    shop.start("linger", *beside)
    shop.start("succumb", "culprit")
    restart_until_blocked(shop, "culprit")
    shop.open_gate()
    with shop.worker() as last:
        last.answer()
        shop.wait_for("completed", *beside)
        assert shop.reasons() == {"culprit": "breaker"}


def test_kill_and_start_again_resumes_at_once_on_one_machine(
    backend: Backend, tmp_path: Path
) -> None:
    """The lease is an hour; nobody waits for it."""
    shop = Shop(backend, tmp_path, lease_seconds=3600)
    shop.start("linger", "r")
    with shop.worker() as first:
        first.answer()
        shop.wait_for("running", "r")
        first.process.kill()
        first.process.wait()
    shop.open_gate()
    with shop.worker() as second:
        second.answer()
        shop.wait_for("completed", "r")
    assert shop.counted()["LEASE_EXPIRED"] == 1


def test_run_that_is_killed_twice_before_its_first_turn_resumes_at_once(
    backend: Backend, tmp_path: Path
) -> None:
    """It is tried alone by then, and that takes no lease of an hour either."""
    shop = Shop(backend, tmp_path, lease_seconds=3600)
    shop.start("linger", "r-slow")
    for kills in range(3):
        with shop.worker() as child:
            child.answer()
            wait_until(lambda n=kills: shop.counted()["RUN_LEASED"] == n + 1, "it is leased")
            if kills < 2:
                child.process.kill()
                child.process.wait()
                continue
            shop.open_gate()
            shop.wait_for("completed", "r-slow")
    assert shop.counted()["LEASE_EXPIRED"] == 2


def make_suspects(shop: Shop, *run_ids: str) -> None:
    asyncio.run(record_losses(shop, *run_ids))


async def record_losses(shop: Shop, *run_ids: str, counted: int = 2) -> None:
    """Record that two workers were lost while they held each of these runs; so many count."""
    losses = (runs.Loss("gone", 1, leases.Blame.BESIDE),) * counted
    drafts = (
        Draft(Kind.RUN_LEASED, runs.RunLeased("gone")),
        Draft(Kind.LEASE_EXPIRED, runs.LeaseExpired("gone", 2, 1, 2, losses)),
    )
    async with holdfast.open(shop.backend.url) as hf:
        context = hf._context  # pyright: ignore[reportPrivateUsage] - a sweeper has one
        for run_id in run_ids:
            await context.decide_late(run_id, lambda _: LateDecision(None, drafts))


def test_suspects_and_others_take_turns(backend: Backend, tmp_path: Path) -> None:
    """Each suspect needs a whole lease to prove itself; the others do not wait for all of them."""
    shop = Shop(backend, tmp_path, lease_seconds=1)
    suspects = [f"r{n}-slow" for n in range(6)]
    shop.start("linger", *suspects)
    shop.start("plod", "ordinary", given=3)
    make_suspects(shop, *suspects)
    with shop.worker() as child:
        child.answer()
        wait_until(
            lambda: all((tmp_path / f"lingers-{name}").exists() for name in suspects),
            "all suspects were tried",
        )
        shop.wait_for("completed", "ordinary")
        with backend.raw() as raw:
            leased = raw.rows("SELECT run_id, at FROM journal WHERE kind = 'RUN_LEASED'")
        order = [run_id for run_id, _ in sorted(leased, key=lambda found: found[1])]
        tried = order[len(suspects) :]  # after the leases that were lost
        assert tried.index("ordinary") <= 2, tried


def test_suspect_of_a_newer_version_is_left_alone_and_stops_nobody(
    backend: Backend, tmp_path: Path
) -> None:
    shop = Shop(backend, tmp_path, lease_seconds=1)
    shop.start("linger", "newer-slow")
    shop.start("plod", "ordinary", given=3)
    make_suspects(shop, "newer-slow")
    with backend.raw() as raw:
        raw.execute("UPDATE runs SET schema = 999 WHERE run_id = ?", "newer-slow")
    with shop.worker() as child:
        child.answer()
        shop.wait_for("completed", "ordinary")
        shop.start("plod", "second", given=3)
        shop.wait_for("completed", "second")
    assert shop.statuses()["newer-slow"] == "ready"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def most_losses(backend: Backend) -> int:
    """How often the unluckiest run was taken from a worker."""
    with backend.raw() as raw:
        lost = raw.rows("SELECT run_id FROM journal WHERE kind = 'LEASE_EXPIRED'")
    return max(Counter(run_id for (run_id,) in lost).values(), default=0)


@pytest.mark.chaos(count=[200])
@pytest.mark.parametrize("count", [24, 200])
def test_runs_beside_busy_loops_need_no_person(
    backend: Backend, tmp_path: Path, count: int
) -> None:
    """Workers stand still for more than a lease, one after another, and lose runs again and again.

    The runs have no checkpoint that could speak for them; more losses than block a run are seen.
    """
    shop = Shop(backend, tmp_path, lease_seconds=1)
    names = [f"r{n}-slow" for n in range(count)]
    shop.start("linger", *names)
    with busy_loops(8), ExitStack() as stack:
        workers = {(child := stack.enter_context(shop.worker())).answer(): child for _ in range(3)}
        shop.wait_for("running", *names)
        while most_losses(backend) <= leases.BREAKER_LOSSES:
            slow = most_burdened(backend)
            shop.stop(workers[slow])
            wait_until(lambda slow=slow: slow not in shop.holders(), "the others have its runs")
            assert not shop.reasons()
            beats = shop.beats(slow)
            workers[slow].signal(signal.SIGCONT)
            wait_until(lambda s=slow, n=beats: shop.beats(s) > n, "it beats again")
        shop.open_gate()
        wait_until(
            lambda: Counter(shop.statuses().values())["completed"] == count or bool(shop.reasons()),
            "all have ended",
        )
    assert not shop.reasons()
    assert Counter(shop.statuses().values()) == {"completed": count}


def most_burdened(backend: Backend) -> str:
    """The worker that has the run that was lost most often."""
    with backend.raw() as raw:
        found = raw.rows(
            "SELECT worker FROM runs WHERE status = 'running' ORDER BY lost DESC, run_id LIMIT 1"
        )
    return found[0][0] if found else most_burdened(backend)


@async_test
async def test_take_renews_a_row_with_less_than_half_a_lease_left_and_no_other(
    backend: Backend,
) -> None:
    async with holdfast.Holdfast(backend.url, settings=settings(60)) as hf:
        for name in "abc":
            await hf.runs.create(name)
        await hf.runs.open("a")
        with backend.raw() as raw:

            def row() -> tuple[int, int]:
                return raw.rows("SELECT expires_at, beats FROM workers")[0]

            full = row()
            await hf.runs.open("b")
            assert row() == full
            raw.execute("UPDATE workers SET expires_at = expires_at - 31000000")
            await hf.runs.open("c")
            assert row()[0] >= full[0]
            assert row()[1] == full[1] + 1


AHEAD = [(20, 20), (3600, 0)]
"""Seconds that a row is ahead of a beat, and stays so: more than a lease was another clock."""


@pytest.mark.parametrize(("ahead", "kept"), AHEAD)
@async_test
async def test_late_beat_never_moves_a_row_back_unless_the_clock_was_set_back(
    backend: Backend, ahead: int, kept: int
) -> None:
    async with holdfast.Holdfast(backend.url, settings=settings(60)) as hf:
        await hf.leases.renew()
        with backend.raw() as raw:
            moved = "UPDATE workers SET expires_at = expires_at + ? RETURNING expires_at"
            ((expires_at,),) = raw.rows(moved, ahead * 1_000_000)
            await hf.leases.renew()
            ((now,),) = raw.rows("SELECT expires_at FROM workers")
    assert (now == expires_at) is (kept == ahead)
    assert now >= expires_at - (ahead - kept) * 1_000_000


@pytest.mark.parametrize(("ahead", "kept"), AHEAD)
@async_test
async def test_take_that_meets_a_beat_never_moves_its_row_back(
    postgres_url: str, ahead: int, kept: int
) -> None:
    """PostgreSQL only: SQLite has one writer, and no beat comes between."""
    backend = PostgresBackend(postgres_url)
    async with (
        holdfast.Holdfast(postgres_url, settings=settings(60)) as hf,
        await psycopg.AsyncConnection.connect(postgres_url) as beating,
    ):
        await hf.runs.create("r")
        await hf.leases.renew()
        with backend.raw() as raw:
            ((full,),) = raw.rows("SELECT expires_at FROM workers")
            raw.execute("UPDATE workers SET expires_at = expires_at - 50000000")
            expires_at = full + ahead * 1_000_000
            await beating.execute("UPDATE workers SET expires_at = %s", (expires_at,))
            taking = asyncio.create_task(hf.runs.open("r"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while not raw.rows(waiting):
                    await asyncio.sleep(0.01)
            await beating.commit()
            await taking
            ((now,),) = raw.rows("SELECT expires_at FROM workers")
    assert (now == expires_at) is (kept == ahead)
    assert now >= full


@async_test
async def test_worker_of_which_the_row_is_gone_has_one_when_it_takes_a_run(
    backend: Backend,
) -> None:
    async with holdfast.Holdfast(backend.url, settings=settings(60)) as hf:
        await hf.runs.open("a")
        with backend.raw() as raw:
            raw.execute("DELETE FROM workers")
            await hf.runs.open("b")
            assert raw.rows("SELECT worker, pid FROM workers") == [(hf.worker, os.getpid())]


@async_test
async def test_runs_of_one_lost_worker_are_lost_beside_each_other_however_few_expire_at_once(
    backend: Backend,
) -> None:
    """What its row says of it is what it held when it was lost, not what is left of that."""
    async with holdfast.Holdfast(backend.url, settings=settings(0.5)) as hf:
        lost = hf.another_worker()
        for name in "ab":
            await lost.runs.open(name)
        assert lost.leases._beating is not None
        lost.leases._beating.cancel()
        expired = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while expired < 2:
                expired += await hf.leases.expire_lost(limit=1)
                await asyncio.sleep(0.05)
        with backend.raw() as raw:
            losses = raw.rows("SELECT losses FROM runs ORDER BY run_id")
    assert [json.loads(each)[0][2] for (each,) in losses] == ["beside", "beside"]


@async_test
async def test_waits_end_in_time_while_a_suspect_is_tried(backend: Backend, tmp_path: Path) -> None:
    """No run may begin meanwhile; what is due is done all the same."""
    shop = Shop(backend, tmp_path, lease_seconds=3600)
    suspect, linger = "r-slow", next(each for each in agents(tmp_path) if each.name == "linger")
    async with holdfast.Holdfast(backend.url, agents=[linger], settings=settings(3600)) as hf:
        await hf.start(linger, run_id=suspect)
        await record_losses(shop, suspect)
        waiting = await hf.runs.open("waiting", agent="elsewhere")
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (tmp_path / f"lingers-{suspect}").exists():
                await asyncio.sleep(0.02)
            spec = holdfast.WaitSpec(wait_id="w", timeout_seconds=0.1)
            await waiting.open_waits([spec], suspend=True)
            while (await hf.waits.get("w")).status != "expired":
                await asyncio.sleep(0.02)
        assert hf.leases._worker.trying_run == suspect
        shop.open_gate()
        await hf.run(linger, run_id=suspect)
        worker.stop()
        await working


@async_test
async def test_suspect_that_another_worker_has_taken_is_not_tried_here(backend: Backend) -> None:
    """Its loss would be blamed on a run that was not there."""
    async with holdfast.Holdfast(backend.url, settings=settings(60)) as hf:
        await hf.runs.open("taken")
        here = hf.another_worker()
        with pytest.raises(LeaseHeld):
            await here.leases.take_suspect("taken")
        rows = {row.worker: row.trying_run for row in await hf.leases.workers()}
    assert rows[here.worker] == ""


@async_test
async def test_worker_that_beats_again_is_not_forgotten(backend: Backend) -> None:
    """It was silent for days, and comes back after its row was read and before it is removed."""
    async with holdfast.Holdfast(backend.url, settings=settings(60)) as hf:
        silent = hf.another_worker()
        await silent.leases.renew()
        as_read = {row.worker: row for row in await hf.leases.workers()}[silent.worker]
        await silent.leases.renew()
        await hf._context.store.submit(Beat(as_read, is_last=True, if_unmoved=True))
        (there,) = [row for row in await hf.leases.workers() if row.worker == silent.worker]
        await hf._context.store.submit(Beat(there, is_last=True, if_unmoved=True))
        assert silent.worker not in {row.worker for row in await hf.leases.workers()}


@async_test
async def test_connections_that_are_let_go_hold_no_locks(postgres_url: str) -> None:
    """The server would keep them for an hour: it is not its limit that ends the transaction."""
    patient = holdfast.Settings(idle_transaction_seconds=3600, busy_timeout_seconds=3600)
    async with holdfast.Holdfast(postgres_url, settings=patient) as hf:
        await hf.runs.create("r")
        store = hf._context.store
        connections = store._connections  # type: ignore[attr-defined]
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:
            freed: list[str] = []

            async def stand_still() -> None:
                async with connections.lent() as lent, lent.pipeline() as pipeline:
                    await lent.execute("BEGIN")
                    await lent.execute("SELECT 1 FROM runs FOR UPDATE")
                    await pipeline.sync()
                    await asyncio.to_thread(store.abort_connections)
                    await other.execute("SET lock_timeout = '30s'")
                    await other.execute("SELECT 1 FROM runs FOR UPDATE")
                    freed.append("r")
                    await lent.execute("SELECT 1")

            with pytest.raises(psycopg.OperationalError):
                await stand_still()
            assert freed == ["r"]
        await hf.runs.create("s")


class _StandsStill(BaseException):
    """Raised where a process is stopped by a signal: nothing comes after it."""


async def read_and_stop(connection: PostgresConnection, step: int, reached: asyncio.Event) -> None:
    """Read two things beside a lock, and stand still at a step of the driver."""
    steps = 0
    real_wait = connection.wait

    def stepping(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        nonlocal steps
        given = None
        while True:
            try:
                wanted = generator.send(given)
            except StopIteration as end:
                return end.value
            steps += 1
            if steps == step:
                raise _StandsStill
            given = yield wanted

    async def wait(generator: Any, *options: Any) -> Any:
        try:
            return await real_wait(stepping(generator), *options)
        except _StandsStill:
            reached.set()
            try:
                return await asyncio.Event().wait()
            finally:
                with suppress(psycopg.Error):
                    generator.close()

    connection.wait = wait
    try:
        await fetch_together(
            connection,
            ("SELECT 1 FROM runs FOR UPDATE", ()),
            ("SELECT 2", ()),
            ("SELECT pg_sleep(0.1)", ()),  # the driver has to wait for the rows
        )
    finally:
        connection.wait = real_wait


async def until_server_waits(other: psycopg.AsyncConnection[Any], backend_pid: int) -> None:
    """Wait until a server process has done all it was sent: it waits for more, or has ended."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event IS DISTINCT FROM %s"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await (await other.execute(sql, (backend_pid, "ClientRead"))).fetchone():
            await asyncio.sleep(0.01)


@async_test
async def test_process_stopped_while_it_reads_keeps_no_locks(postgres_url: str) -> None:
    """At every step of the driver: the server ends the transaction of a client that is silent."""
    limited = holdfast.Settings(idle_transaction_seconds=0.2)
    async with (
        holdfast.Holdfast(postgres_url, settings=limited) as hf,
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other,
    ):
        await hf.runs.create("r")
        await other.execute("SET lock_timeout = '30s'")
        connections = hf._context.store._connections  # type: ignore[attr-defined]
        for step in count(1):
            connection = await connections.connect()
            connection.prepare_threshold = 0
            await connection.execute("BEGIN")
            reached = asyncio.Event()
            reading = asyncio.create_task(read_and_stop(connection, step, reached))
            stopping = asyncio.create_task(reached.wait())
            try:
                await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
                is_done = reading.done()
                if not is_done:
                    await until_server_waits(other, connection.info.backend_pid)
                    await other.execute("SELECT 1 FROM runs FOR UPDATE")
            finally:
                hang_up(connection)
                reading.cancel()
                stopping.cancel()
                await asyncio.gather(reading, stopping, return_exceptions=True)
                await connection.close()
            if is_done:
                break
        assert reading.exception() is None
        assert step > 2


@async_test
async def test_worker_that_beats_while_its_loss_is_written_keeps_its_run(postgres_url: str) -> None:
    """PostgreSQL only: SQLite reads and writes behind one lock."""
    backend = PostgresBackend(postgres_url)
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url) as other:
        held = await hf.runs.open("r")
        (row,) = await hf._context.store.workers.holding()

        def beats_meanwhile(snapshot: Snapshot) -> LateDecision:
            decided.append(1)
            if len(decided) > 1:
                return LateDecision("decided anew")
            assert snapshot.run is not None
            workers = {row.worker: row}
            newest = Point(*snapshot.newest)
            drafts = leases.expire(snapshot.run, newest, workers, note="", now=snapshot.now)
            with backend.raw() as raw:
                assert raw.execute("UPDATE workers SET beats = beats + 1") == 1
            return LateDecision(1, drafts, if_unmoved=LostWorker(row.worker, row.beats))

        decided: list[int] = []
        assert await other._context.decide_late("r", beats_meanwhile) == "decided anew"
        assert "LEASE_EXPIRED" not in [entry.kind for entry in await hf.journal.read("r")]
        assert (await hf.runs.get("r")).worker == row.worker
        await held.complete("done")
