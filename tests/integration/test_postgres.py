"""What can happen to a PostgreSQL server, and what its users notice of it."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import clock
from holdfast.errors import (
    StoreBusy,
    StoreNotPermitted,
    StoreUnavailable,
    UnavailableError,
    UnsupportedValue,
)
from holdfast.kernel.checkpoints import Step
from holdfast.kernel.journal import Draft, Kind, Origin
from holdfast.stores.contract import Applied, Commit
from holdfast.stores.entry_sealer import seal_all
from holdfast.stores.postgres.rounds import OutsideRound
from holdfast.testing.postgres import free_port
from holdfast.testing.store_suite import async_test
from tests.backends import PostgresRaw
from tests.postgres import (
    IMPATIENT,
    LIMIT_SECONDS,
    Spare,
    check_whole,
    save,
    taking,
    terminate,
    until,
)
from tests.processes import Child
from tests.proxy import Proxy

# Getting in.


@async_test
async def test_wrong_password_is_said_and_never_shown(spare: Spare) -> None:
    right, wrong = secrets.token_hex(8), secrets.token_hex(8)
    with role(spare, "app", right):
        for user, password in (("app", wrong), ("app", ""), ("nobody", wrong)):
            url = spare.server.url(spare.database, user=user, password=password)
            with pytest.raises(StoreNotPermitted, match="user or password") as refused:
                async with holdfast.open(url):
                    pass
            said = "".join(traceback.format_exception(refused.value))
            assert not password or password not in said
            place = f"postgresql://{user}@127.0.0.1:{spare.server.port}/{spare.database}"
            assert place in str(refused.value)


@async_test
async def test_role_that_owns_its_database_needs_no_more(spare: Spare) -> None:
    password = secrets.token_hex(8)
    with role(spare, "app", password), PostgresRaw(spare.server.url()) as raw:
        raw.execute(f"ALTER DATABASE {spare.database} OWNER TO app")
        url = spare.server.url(spare.database, user="app", password=password)
        with Proxy(url) as proxy:
            async with holdfast.open(proxy.url(url)) as hf:
                assert password not in (await hf.info()).url
                run = await hf.runs.open("a")
                assert await save(run, 1) == 1
                await run.open_waits([holdfast.WaitSpec(wait_id="w")])
                # After this it asks whether replicas have what it finds stored.
                proxy.cut_at_commit()
                assert await save(run, 2) == 2
                proxy.cut_at_commit()
                assert (await hf.waits.resolve("w", 1, by="alice")).settled_by == "alice"
                assert proxy.cuts == 2
                await check_whole(hf, "a", [1, 2])


@contextlib.contextmanager
def role(spare: Spare, name: str, password: str) -> Iterator[None]:
    """A role that has to give its password; what it owns goes with it."""
    spare.server.add_role(name, password)
    yield
    with PostgresRaw(spare.url) as raw:
        raw.execute(f"REASSIGN OWNED BY {name} TO postgres")
        raw.execute(f"DROP OWNED BY {name}")
        raw.execute(f"DROP ROLE {name}")


@async_test
async def test_server_that_is_not_there_is_said_at_once() -> None:
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    hf = holdfast.open(url, settings=holdfast.Settings(busy_timeout_seconds=120))
    for _ in range(2):
        with taking(0, 60), pytest.raises(StoreUnavailable, match="is the server running"):
            async with hf:
                pass


@async_test
async def test_database_that_is_not_there_is_said(postgres_server: str) -> None:
    url = postgres_server.rpartition("/")[0] + "/no_such_database"
    with pytest.raises(StoreNotPermitted, match=r"no such database.*createdb"):
        async with holdfast.open(url):
            pass


@async_test
async def test_server_without_a_connection_left_says_what_to_do(spare: Spare) -> None:
    async with holdfast.open(spare.url, settings=IMPATIENT) as hf:
        run = await hf.runs.open("a")
        with contextlib.ExitStack() as strangers:
            raw = strangers.enter_context(PostgresRaw(spare.url))
            occupy_the_rest(spare, strangers)
            with pytest.raises(StoreBusy, match=r"raise its max_connections.*pooler"):
                async with holdfast.open(spare.url):
                    pass
            # Those that are open go on with the connections they have.
            await asyncio.gather(*(hf.runs.get("a") for _ in range(50)))
            assert await save(run, 1) == 1
            terminate(raw, "holdfast")
            occupy_the_rest(spare, strangers)
            with taking(0.4, LIMIT_SECONDS), pytest.raises(StoreBusy, match="max_connections"):
                await hf.runs.get("a")
            with pytest.raises(StoreBusy, match="max_connections"):
                await save(run, 2)
        assert (await run.checkpoint()).version == 2
        await check_whole(hf, "a", [1, 2])


def occupy_the_rest(spare: Spare, strangers: contextlib.ExitStack) -> None:
    """Take connections until there is none left."""
    for _ in range(1000):
        try:
            strangers.enter_context(psycopg.connect(spare.url, connect_timeout=5))
        except psycopg.OperationalError as error:
            if "too many clients" in str(error):
                return
            raise
    raise AssertionError("there is always another connection")


# The server goes away and comes back.


@async_test
async def test_calls_wait_for_a_server_that_is_away_and_go_on_when_it_is_back(
    spare: Spare,
) -> None:
    patient = holdfast.Settings(busy_timeout_seconds=1.0)
    async with holdfast.open(spare.url, settings=patient) as hf:
        run = await hf.runs.open("a")
        await save(run, 1)
        waiting = await hf.runs.open("b")
        await waiting.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        spare.server.stop()
        with (
            taking(0.5, LIMIT_SECONDS),
            pytest.raises(StoreUnavailable, match="is the server running"),
        ):
            await hf.runs.get("a")
        run.append("log", 2)
        for work in (run.checkpoint, lambda: hf.waits.resolve("w", 1), lambda: hf.runs.create("c")):
            with taking(0.5, LIMIT_SECONDS), pytest.raises(UnavailableError):
                await work()
        spare.server.restart()
        assert (await run.checkpoint()).version == 2
        assert (await hf.waits.resolve("w", 1)).accepted
        assert (await hf.runs.create("c")).run_id == "c"
        await check_whole(hf, "a", [1, 2])


@async_test
async def test_call_that_waits_succeeds_when_the_server_comes_back_in_time(
    spare: Spare,
) -> None:
    async with holdfast.open(spare.url) as hf:
        run = await hf.runs.open("a")
        spare.server.stop()
        working = [asyncio.create_task(save(run, 1)), asyncio.create_task(hf.runs.get("a"))]
        done, _ = await asyncio.wait(working, timeout=0.2)
        assert not done
        await asyncio.to_thread(spare.server.restart)
        assert await working[0] == 1
        assert (await working[1]).run_id == "a"


@async_test
async def test_nobody_notices_that_the_server_was_restarted_between_two_calls(
    spare: Spare, caplog: pytest.LogCaptureFixture
) -> None:
    server = spare.server
    async with holdfast.open(spare.url) as hf:
        run = await hf.runs.open("a")
        await asyncio.gather(*(hf.runs.get("a") for _ in range(20)))
        server.restart()
        assert await save(run, 1) == 1
        server.restart()
        assert (await hf.runs.get("a")).status == "running"
        server.kill()
        server.restart()
        group = await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        server.restart()
        assert (await hf.waits.resolve("w", "yes", by="alice")).accepted
        server.restart()
        held = await hf.leases.next(timeout_seconds=LIMIT_SECONDS)
        assert held is not None
        server.restart()
        await hf.reindex("a")
        assert [r.value for r in await hf.waits.results("a", group)] == ["yes"]
        await check_whole(hf, "a", [1])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


class Listener:
    """The session in which a store listens for wake-ups."""

    def __init__(self, hf: holdfast.Holdfast) -> None:
        self._wakeups: Any = hf._context.wakeups

    @property
    def pid(self) -> int:
        return self._wakeups._pid

    @property
    def has_waiters(self) -> bool:
        return self._wakeups.has_waiters

    async def lose(self, raw: PostgresRaw) -> None:
        """End the session, and wait until another one listens."""
        await until(lambda: self.pid != 0)
        lost = self.pid
        assert raw.rows("SELECT pg_terminate_backend(?, 10000)", lost) == [(True,)]
        await until(lambda: self.pid != lost)


@async_test
async def test_wake_ups_come_again_after_their_connection_was_lost(postgres_url: str) -> None:
    patient = holdfast.Settings(wakeup_poll_seconds=50)
    with PostgresRaw(postgres_url) as raw:
        async with (
            holdfast.open(postgres_url, settings=patient) as hf,
            holdfast.open(postgres_url, settings=patient) as other,
        ):
            for n in range(3):
                await Listener(hf).lose(raw)
                await Listener(other).lose(raw)
                waiting = asyncio.create_task(hf.leases.next(timeout_seconds=LIMIT_SECONDS))
                await until(lambda: Listener(hf).has_waiters)
                await other.runs.create(f"run-{n}")
                with taking(0, LIMIT_SECONDS / 2):
                    assert await waiting is not None


@async_test
async def test_lost_wake_up_connection_leaves_no_watch_on_a_closed_socket(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another socket gets its number; the loop would not hear of that one."""
    closed: list[set[int]] = []
    connect = psycopg.AsyncConnection.connect

    async def watched(conninfo: str, **options: Any) -> Any:
        closed.append({fd for fd in watched_files() if not is_open(fd)})
        return await connect(conninfo, **options)

    with PostgresRaw(postgres_url) as raw:
        async with holdfast.open(postgres_url) as hf:
            await until(lambda: Listener(hf).pid != 0)
            monkeypatch.setattr(psycopg.AsyncConnection, "connect", watched)
            await Listener(hf).lose(raw)
    assert closed == [set()]


def watched_files() -> list[int]:
    return list(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.mission("S3-082", "S3-105")
@async_test
async def test_sessions_ended_by_an_operator_again_and_again_cost_nothing_but_time(
    postgres_url: str,
) -> None:
    with PostgresRaw(postgres_url) as raw:
        await check_ended_sessions(postgres_url, raw)


async def check_ended_sessions(postgres_url: str, raw: PostgresRaw) -> None:
    # Under load a new connection may be ended before it was used, many times in a row.
    patient = holdfast.Settings(busy_timeout_seconds=120)
    async with holdfast.open(postgres_url, settings=patient) as hf:
        runs = [await hf.runs.open(f"run-{n}") for n in range(4)]
        waits = [holdfast.WaitSpec(wait_id=f"w{n}") for n in range(20)]
        group = await runs[0].open_waits(waits)
        ended = 0

        async def work(run: holdfast.LeasedRun) -> int:
            saved = 0
            while saved < 15 or ended < 3:
                await save(run, saved)
                saved += 1
            return saved

        async def answer() -> int:
            answers = [await hf.waits.resolve(f"w{n}", n, by="alice") for n in range(20)]
            return sum(answer.settled_by == "alice" for answer in answers)

        working = asyncio.gather(answer(), *(work(run) for run in runs))
        while not working.done() and ended < 30:
            ended += await asyncio.to_thread(terminate, raw, "holdfast")
        answered, *saved = await asyncio.wait_for(working, 300)
        assert (answered, ended >= 3) == (20, True)
        for run, many in zip(runs, saved, strict=True):
            await check_whole(hf, run.run_id, list(range(many)))
        assert [r.value for r in await hf.waits.results("run-0", group)] == [
            int(w[1:]) for w in sorted(f"w{n}" for n in range(20))
        ]


# Locks that others hold.


@contextlib.contextmanager
def locked(url: str, sql: str) -> Iterator[None]:
    """Locks of a stranger who began a transaction and does not end it."""
    with psycopg.connect(url) as stranger:
        stranger.execute(sql)
        yield
        stranger.rollback()


@async_test
async def test_lock_of_a_stranger_on_a_runs_row_stops_that_run_only_and_not_for_long(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url, settings=IMPATIENT) as hf:
        runs = {name: await hf.runs.open(name) for name in ("locked", "free")}
        for name, run in runs.items():
            await run.open_waits([holdfast.WaitSpec(wait_id=name)])
        before = await hf.journal.read("locked")
        with locked(postgres_url, "SELECT 1 FROM runs WHERE run_id = 'locked' FOR UPDATE"):
            # What changes the run's row waits, and is told that it did in vain.
            for work in (
                lambda: hf.waits.resolve("locked"),
                lambda: hf.runs.cancel("locked"),
                runs["locked"].release,
            ):
                with taking(0.05, LIMIT_SECONDS), pytest.raises(StoreBusy, match="lock"):
                    await work()
            assert await hf.journal.read("locked") == before
            # Others are not stopped, even those in the same batch.
            outcomes = await asyncio.gather(
                hf.waits.resolve("locked"),
                hf.waits.resolve("free"),
                *(hf.runs.create(f"new-{n}") for n in range(20)),
                return_exceptions=True,
            )
            assert isinstance(outcomes[0], StoreBusy)
            assert not any(isinstance(outcome, BaseException) for outcome in outcomes[1:])
            outcomes = await asyncio.gather(
                runs["locked"].release(), runs["free"].release(), return_exceptions=True
            )
            assert isinstance(outcomes[0], StoreBusy)
            assert outcomes[1] is None
            # A turn does not change the row.
            assert await save(runs["locked"], 1) == 1
            assert [entry.kind for entry in await hf.journal.read("locked")][-1] == (
                "CHECKPOINT_CREATED"
            )
        assert (await hf.waits.resolve("locked")).accepted
        await runs["locked"].release()
        for name in runs:
            assert await hf.journal.verify(name) == []


@async_test
async def test_lock_of_a_stranger_on_a_lost_run_does_not_keep_others_from_being_found(
    postgres_url: str,
) -> None:
    async with (
        holdfast.open(postgres_url, settings=IMPATIENT) as hf,
        holdfast.open(postgres_url) as gone,
    ):
        for name in ("locked", "lost"):
            await gone.runs.open(name)
        with PostgresRaw(postgres_url) as raw:
            assert raw.execute("DELETE FROM workers WHERE worker = ?", gone.worker) == 1
        with locked(postgres_url, "SELECT 1 FROM runs WHERE run_id = 'locked' FOR UPDATE"):
            assert await hf.leases.expire_lost() == 1
        assert (await hf.runs.get("locked")).status == "running"
        assert (await hf.runs.get("lost")).status == "ready"
        assert await hf.leases.expire_lost() == 1


@async_test
async def test_client_that_is_stopped_inside_a_transaction_does_not_stop_others_for_long(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url) as hf:
        run = await hf.runs.open("a")
        group = await run.open_waits([holdfast.WaitSpec(wait_id=f"w{n}") for n in range(2)])
        with (
            Child("tests.child", postgres_url, "idle_transaction_seconds=0.5") as stopped,
            PostgresRaw(postgres_url) as raw,
        ):
            stopped.ask(["stop_at", "batch.before_commit"])
            stopped.tell(["resolve", "w0", "by the stopped one"])
            await until(lambda: is_stopped(stopped) and idle_in_transaction(raw) == 1)
            with taking(0, LIMIT_SECONDS):
                assert (await hf.waits.resolve("w1", 1, by="alice")).accepted
                assert await save(run, 1) == 1
            assert idle_in_transaction(raw) == 0
            assert (await hf.waits.get("w0")).status == "open"
            stopped.signal(signal.SIGCONT)
            assert stopped.answer() == [True, "by the stopped one"]
        values = {r.wait_id: r.value for r in await hf.waits.results("a", group)}
        assert values == {"w0": "by the stopped one", "w1": 1}
        await check_whole(hf, "a", [1])


@async_test
async def test_holder_that_is_stopped_inside_a_transaction_is_fenced_when_it_wakes(
    postgres_url: str,
) -> None:
    with (
        Child("tests.child", postgres_url, "idle_transaction_seconds=0.5") as stopped,
        PostgresRaw(postgres_url) as raw,
    ):
        for stage in ("turns", "effects", "waits"):
            stopped.tell([stage])
            while stopped.answer() != "done":
                pass
        async with holdfast.open(postgres_url) as hf:
            stopped.ask(["stop_at", "batch.before_commit", 1])
            stopped.tell(["ending"])
            assert stopped.answer() == ["again", 1]
            await until(lambda: is_stopped(stopped) and idle_in_transaction(raw) == 1)
            with taking(0, LIMIT_SECONDS):
                run = await hf.runs.open("crash", takeover=True)
            await save(run, "by the successor")
            stopped.signal(signal.SIGCONT)
            assert stopped.answer() == ["not ended", 1]
            assert (await hf.checkpoints.load("crash"))["log"][-1] == "by the successor"
            assert await hf.journal.verify("crash") == []


def is_stopped(child: Child) -> bool:
    stat = Path(f"/proc/{child.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def idle_in_transaction(raw: PostgresRaw) -> int:
    ((count,),) = raw.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        " AND datname = current_database() AND application_name = 'holdfast'"
    )
    return count


# Batches.


async def step(hf: holdfast.Holdfast, run_id: str, name: str) -> Commit:
    """A commit that records a step, made by hand: its name is not looked at."""
    store = hf._context.store
    found = await store.runs.at_head(run_id)
    assert found is not None
    draft = Draft(Kind.STEP_RECORDED, Step("step"), b"")
    origin = Origin(store.tenant, run_id, name, store.clock.now())
    sealed = seal_all(found.run, found.position, [draft], origin)
    return Commit(store.tenant, run_id, found.position, tuple(sealed.entries), None, ())


@async_test
async def test_one_poisonous_commit_in_a_batch_of_a_hundred_fails_alone(postgres_url: str) -> None:
    counted: list[tuple[str, int]] = []

    def count(name: str, amount: int) -> None:
        counted.append((name, amount))

    async with holdfast.open(postgres_url, telemetry=count) as hf:
        await asyncio.gather(*(hf.runs.open(f"run-{n}") for n in range(100)))
        # A text that PostgreSQL cannot store; everywhere else it is refused long before.
        commits = [await step(hf, f"run-{n}", "a\0b" if n == 42 else "w") for n in range(100)]
        counted.clear()
        submit = hf._context.store.submit
        outcomes = await asyncio.gather(*map(submit, commits), return_exceptions=True)
        assert isinstance(outcomes[42], UnsupportedValue)
        assert [n for n, outcome in enumerate(outcomes) if outcome != Applied()] == [42]
        batches = [amount for name, amount in counted if name == "store.batch_committed"]
        assert sum(batches) == 99
        assert len(batches) <= 9
        for n in (41, 42, 43):
            kinds = [entry.kind for entry in await hf.journal.read(f"run-{n}")]
            assert kinds.count("STEP_RECORDED") == (n != 42)


@async_test
async def test_commits_whose_conditions_fail_are_refused_alone_and_in_one_round(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url) as hf:
        runs = await asyncio.gather(*(hf.runs.open(f"run-{n}") for n in range(50)))
        taken = holdfast.EffectRequest(tool="t", key="taken")
        await runs[7].begin_effects([taken])
        requests = [
            taken if n in (3, 33) else holdfast.EffectRequest(tool="t", key=f"key-{n}")
            for n in range(50)
        ]
        begun = await asyncio.gather(
            *(run.begin_effects([request]) for run, request in zip(runs, requests, strict=True))
        )
        answers = [answer.answer for (answer,) in begun]
        assert [n for n, answer in enumerate(answers) if answer == "in_flight"] == [3, 33]
        assert answers.count("fresh") == 48
        for run in runs[:8]:
            assert await hf.journal.verify(run.run_id) == []


@async_test
async def test_wait_that_is_opened_while_it_is_answered_is_answered_or_not_there(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the statement that locks its run and the one that looks at it."""
    look = OutsideRound._look
    async with holdfast.open(postgres_url) as hf:
        run = await hf.runs.open("a")

        async def look_late(*args: Any) -> Any:
            monkeypatch.undo()
            await run.open_waits([holdfast.WaitSpec(wait_id="w")])
            return await look(*args)

        monkeypatch.setattr(OutsideRound, "_look", look_late)
        with pytest.raises(holdfast.errors.WaitNotFound):
            await hf.waits.resolve("w", 1)
        assert (await hf.waits.resolve("w", 2)).accepted
        assert await hf.journal.verify("a") == []


# Its time.


def now_at(raw: PostgresRaw) -> int:
    return raw.rows("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[0][0]


@pytest.mark.mission("X-005")
@pytest.mark.parametrize("days", [-1, 1])
@async_test
async def test_deadlines_count_by_the_servers_clock_whatever_this_machines_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    machine = clock.SteadyClock(wall_ns=lambda: time.time_ns() + days * 86_400 * 10**9)
    monkeypatch.setattr(clock, "_PROCESS", machine)
    minute, hour = 60 * clock.MICROSECONDS, 3600 * clock.MICROSECONDS
    with PostgresRaw(postgres_url) as raw:
        async with holdfast.open(postgres_url) as hf:
            run = await hf.runs.open("a")
            began = now_at(raw)
            await run.open_waits([holdfast.WaitSpec(wait_id="w", timeout_seconds=3600)])
            deadline = (await hf.waits.get("w")).deadline
            assert began + hour - minute < deadline < now_at(raw) + hour + minute
            assert await hf.waits.expire_due() == 0
            assert await hf.waits.extend("w", timeout_seconds=0)
            assert await hf.waits.expire_due() == 1
