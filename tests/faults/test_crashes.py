"""Every fault point, by exception and by SIGKILL: what was acknowledged is there, nothing is torn.

The oracle reads what the child printed (its acknowledgements) and the stored bytes through its own
small reader of the tables; it does not use the code that wrote them.
"""

import hashlib
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import faults
from holdfast.testing.store_suite import async_test
from tests import forked, spoolers
from tests.agents import test_budget_kills, test_kill_sweep
from tests.backends import BACKENDS, Backend, Raw
from tests.events import test_webhooks
from tests.handoff import test_kills
from tests.leasing.laborer import LOOKED
from tests.peers import test_peer_kills
from tests.processes import Child

STAGES = ("turns", "effects", "waits", "signals", "ending")
# Points that a backend does not have, and why.
ABSENT = {
    "sqlite": {},
    "postgres": {"commit.after_first_entry": "all entries of a batch are one statement"},
}
BATCH = {"batch.before_begin", "batch.after_begin", "batch.after_commit"}
BATCH |= {"batch.before_acknowledge"}
INSIDE = {"commit.after_entries", "commit.after_changes", "batch.before_commit"}
DECIDED = {"batch.after_decide"}
# Which stage passes which points. On PostgreSQL what lies inside a transaction of several
# statements is passed by outside writers, and by commits that one statement cannot do.
PASSED = {
    "sqlite": {
        stage: BATCH | INSIDE | {"commit.after_first_entry"} | (DECIDED if has_outsiders else set())
        for stage, has_outsiders in zip(STAGES, (True, False, True, True, True), strict=True)
    },
    "postgres": {
        "turns": BATCH | INSIDE | DECIDED,
        "effects": BATCH | {"commit.after_entries"},
        "waits": BATCH | INSIDE | DECIDED,
        "signals": BATCH | INSIDE | DECIDED,
        "ending": BATCH | INSIDE | DECIDED,
    },
}
Passes = dict[str, dict[str, int]]
# When a stage passes a point several times: SQLite writes everything in the same way.
MOMENTS = {"sqlite": ["last"], "postgres": ["first", "last"]}
CASES = [
    (backend, stage, point, moment)
    for backend in BACKENDS
    for stage in STAGES
    for point in sorted(PASSED[backend][stage])
    for moment in MOMENTS[backend]
]
ACTIONS = ("raise", "kill")


def _struck() -> list[Any]:
    """Each case with each action. Every point is struck in every stage by one of them, in turn; the
    other ways are tried with --chaos."""
    struck: list[Any] = []
    places = [(name, stage, point) for name in BACKENDS for stage, point in _places(name)]
    for number, place in enumerate(places):
        ways = [(moment, action) for action in ACTIONS for moment in MOMENTS[place[0]]]
        # By stages: the points of all stages are the same, so that each meets every way.
        chosen = (number + STAGES.index(place[1])) % len(ways)
        for index, way in enumerate(ways):
            marks = [] if index == chosen else [pytest.mark.chaos]
            struck.append(pytest.param(*place, *way, marks=marks))
    return struck


def _places(name: str) -> list[tuple[str, str]]:
    return [(stage, point) for stage in STAGES for point in sorted(PASSED[name][stage])]


@pytest.fixture(scope="session")
def passes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> dict[str, Passes]:
    """How often each stage passes each point when nothing goes wrong, on each backend."""
    file = str(tmp_path_factory.mktemp("passes") / "store.db")
    counted: dict[str, Passes] = {}
    for name, url in {"sqlite": file, "postgres": postgres_database}.items():
        with Child("tests.child", url, 'tenant="passes"') as child:
            child.tell(["count_points", STAGES])
            while not isinstance(told := child.answer(), dict):
                pass
            counted[name] = told
    return counted


def check_chain(
    entries: list[tuple[Any, ...]], proofs: Mapping[tuple[str, int], bytes | None]
) -> None:
    """Gapless, and each link recomputed from the documented formula alone."""
    previous = bytes(32)
    for number, row in enumerate(entries, 1):
        seq, kind, tenant, run_id, at, actor, schema, encoding, key_id, facts, nonce, body, link = (
            row
        )
        assert seq == number
        columns = (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts)
        proof = proofs[run_id, seq]
        header = msgspec.msgpack.encode(columns if proof is None else (*columns, proof))
        digest = hashlib.sha256(nonce + body).digest()
        assert link == hashlib.sha256(previous + header + digest).digest()
        previous = link


def acknowledged(child: Child) -> dict[str, int]:
    """What the child said was done before it ended, the last of each kind."""
    done: dict[str, int] = {}
    while True:
        try:
            answer = child.answer()
        except EOFError:
            return done
        if answer == "done" or isinstance(answer, dict):
            return done
        done[answer[0]] = answer[1]


def check_acknowledged(entries: list[tuple[Any, ...]], done: dict[str, Any]) -> None:
    kinds = Counter(row[1] for row in entries)
    assert kinds["CHECKPOINT_CREATED"] >= done.get("checkpoint", 0)
    assert kinds["EFFECT_ISSUED"] >= done.get("issued", 0)
    assert kinds["EFFECT_COMPLETED"] >= done.get("completed", 0)
    assert kinds["WAITS_OPENED"] >= done.get("waiting", 0) + done.get("awaiting", 0)
    assert kinds["SIGNAL_RECEIVED"] >= done.get("signalled", 0)
    assert kinds["SIGNAL_TAKEN"] >= done.get("taken", 0)
    assert kinds["RUN_LEASED"] >= ("opened" in done) + done.get("held", 0) + done.get("again", 0)
    assert kinds["RUN_RELEASED"] >= done.get("released", 0)
    assert kinds["RUN_COMPLETED"] >= done.get("ended", 0)
    # Nothing happened twice, and nothing unasked: at most one step beyond what was acknowledged.
    assert kinds["CHECKPOINT_CREATED"] <= min(3, done.get("checkpoint", 0) + 1)
    assert kinds["EFFECT_ISSUED"] <= 1
    assert kinds["SIGNAL_RECEIVED"] <= min(2, done.get("signalled", 0) + 1)
    assert kinds["SIGNAL_TAKEN"] <= 1
    # A signal that is waited for has resolved the wait, in its own commit.
    replies = kinds["WAIT_RESOLVED"] - min(1, kinds["SIGNAL_RECEIVED"])
    assert done.get("resolved", 0) <= replies <= min(2, done.get("resolved", 0) + 1)
    assert kinds["GROUP_CLOSED"] == replies // 2 + min(1, kinds["SIGNAL_RECEIVED"])
    assert done.get("refused", "in_flight") == "in_flight"
    # The last commit has both of its entries, or none.
    assert (kinds["WAITS_OPENED"] == 3) == (kinds["RUN_COMPLETED"] == 1)


def check_rows(raw: Raw, entries: list[tuple[Any, ...]]) -> None:
    """Each index has a row for each of its entries, no more and no less."""
    kinds = Counter(row[1] for row in entries)
    for table, expected in {
        "runs": kinds["RUN_CREATED"],
        "checkpoints": kinds["CHECKPOINT_CREATED"],
        "effects": kinds["EFFECT_ISSUED"],
        "wait_groups": kinds["WAITS_OPENED"],
        "waits": kinds["WAITS_OPENED"] + min(1, kinds["WAITS_OPENED"]),
        "signals": kinds["SIGNAL_RECEIVED"],
    }.items():
        assert raw.rows(f"SELECT count(*) FROM {table}") == [(expected,)], table
    settled = raw.rows("SELECT count(*) FROM waits WHERE status <> 'open'")
    assert settled == [(kinds["WAIT_RESOLVED"] + kinds["RUN_COMPLETED"],)]
    taken = raw.rows("SELECT count(*) FROM signals WHERE taken_seq > 0")
    assert taken == [(kinds["SIGNAL_TAKEN"],)]


async def finish(store: str) -> None:
    """Another process's view: whole, consistent, and it can go on."""
    async with holdfast.open(store) as hf:
        if "crash" not in [run.run_id for run in await hf.runs.list()]:
            return
        assert await hf.journal.verify("crash") == []
        state = await hf.checkpoints.load("crash")
        assert state.get("log", []) == [
            {"n": n, "text": "word " * 50} for n in range(state.version)
        ]
        run = await hf.runs.get("crash")
        if run.status in ("ready", "running"):
            held = await hf.runs.open("crash", takeover=True)
            held.append("log", "after the crash")
            await held.checkpoint()
            await held.complete("recovered")
        assert await hf.journal.verify("crash") == []


@pytest.mark.parametrize(
    ("backend", "stage", "point", "moment", "action"), _struck(), indirect=["backend"]
)
@pytest.mark.mission(
    "S0-022",
    "S1-020",
    "S3-045",
    "S3-046",
    "S3-103",
    "S3-163",
    "S3-199",
    "S3-203",
    "S4-001",
    "S4-035",
    "S4-045",
)
@async_test
async def test_no_fault_loses_what_was_acknowledged_or_tears_a_commit(
    passes: dict[str, Passes], backend: Backend, stage: str, point: str, moment: str, action: str
) -> None:
    skip = passes[backend.name][stage][point] - 1 if moment == "last" else 0
    done: dict[str, Any] = {}
    with Child("tests.child", backend.url) as child:
        for name in STAGES[: STAGES.index(stage)]:
            child.tell([name])
            done |= acknowledged(child)
        child.ask(["arm", point, action, skip])
        child.tell([stage])
        done |= acknowledged(child)
        if action == "kill":
            assert child.wait() == -signal.SIGKILL
    with backend.raw() as raw:
        entries = raw.entries()
        check_chain(entries, raw.proofs())
        check_acknowledged(entries, done)
        check_rows(raw, entries)
    await finish(backend.url)


@pytest.mark.parametrize("name", BACKENDS)
def test_stages_pass_the_points_they_are_said_to(name: str, passes: dict[str, Passes]) -> None:
    assert {stage: set(counts) for stage, counts in passes[name].items()} == PASSED[name]


MIGRATION = ("migration.before_commit", "migration.after_commit")
REINDEX = ("reindex.before_commit",)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_point_strikes_in_some_test_or_is_said_to_be_absent(name: str) -> None:
    struck = {point for backend, _, point, _ in CASES if backend == name}
    agents = {*test_kill_sweep.AGENT_POINTS, *test_budget_kills.BUDGET_POINTS}
    between = {*test_peer_kills.RELAY, *test_peer_kills.RECEIVER}
    peers = {*test_peer_kills.OUTBOX, *test_peer_kills.REPLIES, *between}
    own = {*test_webhooks.POINTS, *test_kills.POINTS, *spoolers.POINTS, LOOKED}
    elsewhere = {*MIGRATION, *REINDEX, *agents, *peers, *own, spoolers.EVIDENCE}
    assert struck | elsewhere | set(ABSENT[name]) == set(faults.POINTS)
    assert not struck & set(ABSENT[name])


def test_no_point_is_absent_everywhere() -> None:
    assert set.intersection(*(set(points) for points in ABSENT.values())) == set()


MIGRATE = """
import asyncio, sys, holdfast
from holdfast.testing import arm
arm(sys.argv[2], sys.argv[3])
async def main():
    async with holdfast.open(sys.argv[1]):
        pass
asyncio.run(main())
"""


@pytest.mark.parametrize("action", ["raise", "kill"])
@pytest.mark.parametrize("point", MIGRATION)
@async_test
async def test_fault_during_a_migration_leaves_a_store_that_opens(
    unopened: Backend, point: str, action: str
) -> None:
    ended = forked.run(["-c", MIGRATE, unopened.url, point, action])
    assert ended.returncode == (-signal.SIGKILL if action == "kill" else 1)
    async with holdfast.open(unopened.url) as hf:
        await hf.runs.create("a")
        assert (await hf.info()).schema == (await hf.info()).newest_schema


@pytest.mark.parametrize("action", ["raise", "kill"])
@pytest.mark.parametrize("point", REINDEX)
@async_test
async def test_fault_during_a_reindex_leaves_the_rows_as_they_were(
    backend: Backend, point: str, action: str
) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        for n in range(2):
            run.append("log", n)
            await run.checkpoint()
    with backend.raw() as raw:
        assert raw.execute("DELETE FROM checkpoints WHERE version = 1") == 1
        with Child("tests.child", backend.url) as child:
            child.ask(["arm", point, action])
            child.tell(["reindex", "a"])
            with pytest.raises(EOFError):
                child.answer()
            assert child.wait() == (-signal.SIGKILL if action == "kill" else 1)
        assert raw.rows("SELECT version FROM checkpoints") == [(2,)]
        async with holdfast.open(backend.url) as hf:
            assert (await hf.checkpoints.load("a"))["log"] == [0, 1]
            await hf.reindex("a")
            assert await hf.journal.verify("a") == []
        assert raw.rows("SELECT version FROM checkpoints ORDER BY version") == [(1,), (2,)]
