"""Eight processes do everything at once to ten runs: nobody waits in a circle, nothing is lost."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

import holdfast
from tests.chaos.hunter import CALLS, is_damaged
from tests.chaos.oracle import Oracle
from tests.conftest import OwnPostgres
from tests.processes import Child

PROCESSES = 8
OPTIONS = {
    "deadlock_timeout": "50ms",  # a circle is found long before anybody loses patience
    "track_activity_query_size": "16kB",  # the log shows both statements of a circle
}
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
DAMAGE = "the index row of checkpoint"


def hunt(url: str, seed: int, seconds: float) -> list[dict[str, Any]]:
    """What each process reports."""
    children = [
        Child("tests.chaos.hunter", url, seed + number, seconds) for number in range(PROCESSES)
    ]
    try:
        reports: list[dict[str, Any]] = []
        for child in children:
            while not (report := child.answer()):
                pass
            reports.append(report)
        assert [child.wait() for child in children] == [0] * PROCESSES
        return reports
    finally:
        for child in children:
            child.close()


def told(reports: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The markers that were acknowledged, by run."""
    found: dict[str, list[str]] = {}
    for report in reports:
        for run_id, markers in report["acknowledged"].items():
            found.setdefault(run_id, []).extend(markers)
    return found


def circles(folder: Path) -> list[str]:
    """What the server's log says of deadlocks: who waited for whom, with what statement."""
    logs = [log.read_text(encoding="utf-8") for log in folder.rglob("postgres.log")]
    return [part[:20_000] for log in logs for part in log.split("deadlock detected")[1:]]


async def wrong_rows(url: str) -> list[str]:
    """What Holdfast finds wrong, besides the damage the hunters have done; that is mended."""
    found: list[str] = []
    async with holdfast.open(url) as hf:
        async for run_id in hf.journal.run_ids():
            found += [
                str(problem)
                for problem in await hf.journal.verify(run_id)
                if not (is_damaged(run_id) and problem.what.startswith(DAMAGE))
            ]
            await hf.reindex(run_id)
            found += map(str, await hf.journal.verify(run_id))
    return found


async def make_schema(url: str) -> None:
    async with holdfast.open(url):
        pass


def test_nobody_waits_in_a_circle(
    own_postgres: OwnPostgres, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    url = own_postgres(options=OPTIONS).url()
    asyncio.run(make_schema(url))
    reports = hunt(url, seed, 120 if is_chaos else 6)
    answers = sum((Counter(report["answers"]) for report in reports), Counter[str]())
    context = f"seed {seed}; {dict(sorted(answers.items()))}"
    assert circles(tmp_path) == [], context
    with psycopg.connect(url) as session:
        assert session.execute(DEADLOCKS).fetchone() == (0,), context
    surprises = [surprise for report in reports for surprise in report["surprises"]]
    assert surprises == [], "\n".join([context, *surprises[:10]])
    oracle = Oracle(url)
    assert [*oracle.look(), *oracle.missing(told(reports))] == [], context
    assert asyncio.run(wrong_rows(url)) == [], context
    idle = [call.__name__ for call in CALLS if not answers[f"{call.__name__} ok"]]
    assert idle == [], context
    print(context)
