"""Rows are changed behind Holdfast's back, column by column: no read or write believes one of them.

The tables and their columns come from the schema itself, so that a new one cannot be forgotten.
What is read before an attack is the truth; afterwards each operation gives the same, or a typed
error.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest

import holdfast
from holdfast.errors import CheckpointFinal, ConflictError, IntegrityError
from holdfast.kernel import checkpoints, records
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, Raw

PARTS = 5
TABLES = ("checkpoints", "records", "revisions")
"""The indexes of checkpoints. What is in `OTHERS` is none."""
OTHERS = {
    "journal": "the truth itself: its entries are hash-chained, and attacked elsewhere",
    "bodies": "the bodies of entries, which their links cover",
    "migrations": "what the schema is, not what was stored",
    "identity": "who the store is",
    "removals": "whom a transaction takes rows of; it gives no right to what the journal says",
    "workers": "who is alive: leases, which decide only when somebody tries",
    "messages": "a queue: each message is consumed once, and none is read as a record",
}
OPERATIONAL = {
    ("records", "id"): "the number of a row in SQLite, which its words are found by",
    ("records", "words"): "decides only what a search looks at; what it gives is compared",
}


def columns(raw: Raw, backend: Backend) -> list[tuple[str, str, bool]]:
    """Every column of every table, and whether it holds a number."""
    if backend.name == "sqlite":
        tables = [n for (n,) in raw.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = [n for n in tables if not n.startswith(("sqlite_", "record_words"))]
        return [
            (table, name, kind == "INTEGER")
            for table in tables
            for name, kind in raw.rows("SELECT name, type FROM pragma_table_info(?)", table)
        ]
    return [
        (table, name, kind == "bigint")
        for table, name, kind in raw.rows(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name IN (SELECT tablename FROM pg_tables "
            "WHERE schemaname = 'public')"
        )
    ]


class Stage:
    """A task whose second version was changed, linked and made final, the third is a draft."""

    async def play(self, hf: holdfast.Holdfast) -> None:
        self.service = service = CheckpointService(hf)
        self.hf = hf
        other = await service.create_checkpoint("other", "b", {}, label="other")
        made = [
            await service.create_checkpoint(
                "task",
                "a",
                {"metrics": {"tools_invoked": n}},
                label=f"l{n}",
                summary=f"word{n} all",
            )
            for n in range(3)
        ]
        self.ids = [each.checkpoint_id for each in made]
        for count in (7, 8):
            partial = {"metrics": {"tools_invoked": count}}
            for each in self.ids[1:]:
                await service.update_checkpoint(each, partial, summary=f"revised {count} all")
        for each in self.ids[1:]:
            await service.link_checkpoints(other.checkpoint_id, each)
        await service.finalize_checkpoint(self.ids[1], "complete")

    def reads(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        service, hf = self.service, self.hf
        found: dict[str, Callable[[], Awaitable[Any]]] = {
            "latest": lambda: service.get_latest_checkpoint("task"),
            "history": lambda: service.get_checkpoint_history("task"),
            "recovery point": lambda: service.find_recovery_point("task"),
            "hf.history": lambda: hf.checkpoints.history("task"),
            "hf.with_records": lambda: hf.checkpoints.with_records("task"),
            "hf.load": lambda: hf.checkpoints.load("task"),
        }
        for number, each in enumerate(self.ids):
            found[f"get {number}"] = lambda each=each: service.get_checkpoint(each)
            found[f"hf.get {number}"] = lambda each=each: hf.checkpoints.get(each)
            found[f"hf.load {number}"] = lambda v=number + 1: hf.checkpoints.load("task", v)
            for revision in (1, 2):
                found[f"get {number}.{revision}"] = lambda each=each, r=revision: (
                    service.get_checkpoint(each, revision=r)
                )
        return found

    def searches(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        service, hf = self.service, self.hf
        wanted: list[dict[str, Any]] = [
            {},
            {"task_id": "task"},
            {"agent_id": "a"},
            {"agent_type": "implementation"},
            {"phase": "planning"},
            {"status": "complete"},
            {"label": "l1"},
            {"text": "all"},
            {"label": "forged"},
            {"status": "forged"},
            {"agent_id": "forged"},
            {"phase": "forged"},
            {"agent_type": "forged"},
            {"text": "forged"},
        ]
        found: dict[str, Callable[[], Awaitable[Any]]] = {
            f"search {each}": lambda each=each: service.search_checkpoints(each) for each in wanted
        }
        found["by agent"] = lambda: service.get_checkpoints_by_agent("a")
        for each in ({}, {"run_id": "task"}, {"agent": "a"}, {"label": "l1"}, {"label": "forged"}):
            found[f"hf.search {each}"] = lambda each=each: hf.checkpoints.search(**each)
        return found

    async def outcomes(self, of: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, Any]:
        return {name: await outcome(ask) for name, ask in of.items()}


async def outcome(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except IntegrityError as error:
        return error


def forged(raw: Raw, table: str, column: str, is_number: bool, where: str) -> str:
    ((before,),) = raw.rows(f"SELECT {column} FROM {table} WHERE {where}")
    if is_number:
        return f"{column} = {column} + 1000"
    if isinstance(before, bytes):
        return f"{column} = x'0190aaaaaaaa7bbb8ccc000000000001'"
    if column == "checkpoint_id":
        return f"{column} = '0190aaaa-aaaa-7bbb-8ccc-000000000001'"
    return f"{column} = 'forged'"


def disarm(raw: Raw, backend: Backend) -> None:
    """What a stranger does first that owns the tables: nothing stands in the way any more."""
    if backend.name == "sqlite":
        named = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'final%'"
        for (name,) in raw.rows(named):
            raw.execute(f"DROP TRIGGER {name}")
    else:
        raw.execute("SET session_replication_role = replica")


def save(raw: Raw) -> None:
    for table in TABLES:
        raw.execute(f"CREATE TEMP TABLE saved_{table} AS SELECT * FROM {table}")


def restore(raw: Raw) -> None:
    for table in TABLES:
        raw.execute(f"DELETE FROM {table}")
        raw.execute(f"INSERT INTO {table} SELECT * FROM saved_{table}")


def believed(before: Any, after: Any) -> list[str]:
    """What differs from the truth, and is no typed error."""
    wrong: list[str] = []
    for name, truth in before.items():
        if isinstance(after[name], IntegrityError) or after[name] == truth:
            continue
        wrong.append(f"{name}: {truth!r} became {after[name]!r}")
    return wrong


def believed_found(before: Any, after: Any) -> list[str]:
    """What searches give that is not the truth. An index can hide a row, but not forge one."""
    wrong: list[str] = []
    for name, truth in before.items():
        given = after[name]
        if isinstance(given, IntegrityError):
            continue
        true, found = (getattr(each, "checkpoints", each) for each in (truth, given))
        wrong += [f"{name}: {each!r}" for each in found if each not in true]
    return wrong


def attacks(raw: Raw, backend: Backend) -> list[str]:
    """One statement for each column of each index, for final rows and drafts; and rows deleted."""
    found: list[str] = []
    for table, column, is_number in columns(raw, backend):
        assert (table in TABLES) or (table in OTHERS) or (table in ELSEWHERE), table
        if table not in TABLES or (table, column) in OPERATIONAL:
            continue
        for version in (1, 2, 3):
            where = f"run_id = 'task' AND version = {version}"
            if table == "revisions":
                where += " AND revision = 2"
            if not raw.rows(f"SELECT 1 FROM {table} WHERE {where}"):
                continue
            change = forged(raw, table, column, is_number, where)
            found.append(f"UPDATE {table} SET {change} WHERE {where}")
    for table in TABLES:
        versions = (2, 3) if table == "revisions" else (1, 2, 3)
        found += [f"DELETE FROM {table} WHERE run_id = 'task' AND version = {v}" for v in versions]
        found.append(f"DELETE FROM {table}")
    found += [
        "UPDATE records SET final_seq = 0, status = '' WHERE version = 2 AND run_id = 'task'",
        "UPDATE records SET revision = 2, revised_seq = 6 WHERE version = 3 AND run_id = 'task'",
        "UPDATE records SET revision = 1, revised_seq = 0 WHERE version = 3 AND run_id = 'task'",
        "UPDATE records SET linked = '' WHERE run_id = 'task'",
        "UPDATE records SET words = 'forged' WHERE run_id = 'task'",
        "UPDATE checkpoints SET seq = 2 WHERE run_id = 'task' AND version = 3",
    ]
    return found


ELSEWHERE = (
    "runs",
    "effects",
    "waits",
    "wait_groups",
    "signals",
    "budgets",
    "reservations",
    "marks",
    "writes",
)
"""Indexes that are not of checkpoints; of waits, see tests/integration/test_wait_rows.py."""


@pytest.mark.mission("S3-085", "S3-090", "S3-123")
@pytest.mark.parametrize("part", range(PARTS))
@async_test
async def test_no_column_of_an_index_is_believed(backend: Backend, part: int) -> None:
    stage = Stage()
    async with holdfast.open(backend.url) as hf:
        await stage.play(hf)
        reads = await stage.outcomes(stage.reads())
        searches = await stage.outcomes(stage.searches())
        assert not any(isinstance(each, IntegrityError) for each in reads.values())
        assert believed_found(searches, searches) == []
        problems: list[str] = []
        with backend.raw() as raw:
            disarm(raw, backend)
            wanted = attacks(raw, backend)
            save(raw)
            for statement in wanted[part::PARTS]:
                assert raw.execute(statement) > 0, statement
                after = believed(reads, await stage.outcomes(stage.reads()))
                after += believed_found(searches, await stage.outcomes(stage.searches()))
                after += await writes_that_believe(stage)
                problems += [f"{statement} → {each}" for each in after]
                restore(raw)
        assert problems == [], "\n".join(problems)
        assert len(wanted) > 70
        assert believed(reads, await stage.outcomes(stage.reads())) == [], "all is as it was"


async def writes_that_believe(stage: Stage) -> list[str]:
    """What is final is not changed, whatever the rows say."""
    service, final = stage.service, stage.ids[1]
    wrong: list[str] = []
    tries: dict[str, Callable[[], Awaitable[Any]]] = {
        "update": lambda: service.update_checkpoint(final, {"metrics": {"tools_invoked": 666}}),
        "finalize": lambda: service.finalize_checkpoint(final, "forged"),
        "link": lambda: service.link_checkpoints(stage.ids[0], final),
        "delete": lambda: stage.hf.checkpoints.delete("task", 2),
    }
    for name, ask in tries.items():
        try:
            await ask()
            wrong.append(f"{name} was done to what is final")
        except (CheckpointFinal, IntegrityError):
            pass
    try:
        made = await service.create_checkpoint(
            "task", "a", {}, expected_latest="0190aaaa-aaaa-7bbb-8ccc-000000000001"
        )
        wrong.append(f"version {made.run_version} was created after a forged one")
    except (ConflictError, IntegrityError):
        pass
    return wrong


@pytest.mark.mission("S3-090", "S3-108")
@pytest.mark.parametrize("way", ["rows gone", "permitted", "row says draft"])
@async_test
async def test_what_is_final_is_said_by_the_chain(backend: Backend, way: str) -> None:
    """The ways that were open: a setting, a row of permissions, and emptying an index."""
    stage = Stage()
    async with holdfast.open(backend.url) as hf:
        await stage.play(hf)
        before = await stage.service.get_checkpoint(stage.ids[1])
        with backend.raw() as raw:
            if way == "permitted" and backend.name == "sqlite":
                raw.execute("INSERT INTO removals VALUES ('default', 'task')")
                raw.execute("DELETE FROM records WHERE run_id = 'task'")
            elif way == "permitted":
                raw.execute("SET holdfast.removing = 'on'")
                raw.execute("DELETE FROM records WHERE run_id = 'task'")
            elif way == "rows gone":
                disarm(raw, backend)
                raw.execute("DELETE FROM records")
            else:
                disarm(raw, backend)
                raw.execute("UPDATE records SET final_seq = 0, status = ''")
        assert await writes_that_believe(stage) == []
        with pytest.raises(IntegrityError):
            await stage.service.get_checkpoint(stage.ids[1])
        await hf.reindex("task")
        assert await stage.service.get_checkpoint(stage.ids[1]) == before
        assert await hf.journal.verify("task") == []


def test_ids_lie_where_the_indexes_of_the_journal_look_for_them() -> None:
    one, two = UUID(int=1), UUID(int=2)
    facts: list[tuple[msgspec.Struct, int]] = [
        (checkpoints.CheckpointCreated(one, 1, 0, 0), 3),
        (checkpoints.Deleted(one, 1), 3),
        (records.Updated(one, 1, 2, [], "p", "t"), 3),
        (records.Finalized(one, 1, 1, "s", "h"), 3),
        (records.LinkedTo(two, one, 1), 21),
    ]
    encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
    for each, at in facts:
        assert encoder.encode(each)[at : at + 16] == one.bytes, type(each)
    assert encoder.encode(facts[0][0])[-1:] == b"\xc0"
    told = checkpoints.CheckpointCreated(one, 1, 0, 0, record=records.RecordSummary("qa"))
    assert encoder.encode(told)[-1:] != b"\xc0"
