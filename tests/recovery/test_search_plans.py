"""Searches in SQLite go by an index, and not through all checkpoints of a store.

PostgreSQL chooses by what is searched for and by how much there is; SQLite by the query alone.
"""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.sqlite.queries import SQL
from holdfast.testing.store_suite import async_test
from tests.backends import SQLiteBackend

CONDITIONS = {
    "search_checkpoints": "checkpoints_by_id (tenant=? AND checkpoint_id<?)",
    "search_checkpoints_of_run": "(tenant=? AND run_id=?)",
    "search_checkpoints_by_agent": "checkpoints_by_agent (tenant=? AND agent=?",
    "search_checkpoints_by_label": "checkpoints_by_label (tenant=? AND label=?",
    "search_records": "checkpoints_by_id (tenant=? AND checkpoint_id<?)",
    "search_records_of_run": "(tenant=? AND run_id=?)",
    "search_records_by_agent": "checkpoints_by_agent (tenant=? AND agent=?",
    "search_records_by_label": "checkpoints_by_label (tenant=? AND label=?",
    "search_records_by_words": "record_words VIRTUAL TABLE INDEX",
    "get_checkpoint_record": "checkpoints_by_id (tenant=? AND checkpoint_id=?)",
    "list_checkpoint_records": "(tenant=? AND run_id=? AND version<?)",
}
WHOLE = re.compile(r"SCAN (?:checkpoints|records|c|r)\b")


def plan_of(backend: SQLiteBackend, query: str) -> str:
    """What the database does for whatever is searched for."""
    nothing = [None] * len(set(re.findall(r"\?\d+", SQL[query])))
    with backend.raw() as raw:
        return "\n".join(
            line for *_, line in raw.rows(f"EXPLAIN QUERY PLAN {SQL[query]}", *nothing)
        )


@pytest.mark.mission("S3-129")
@async_test
async def test_search_goes_by_an_index(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "store.db")
    async with holdfast.open(backend.url):
        pass
    for query, condition in CONDITIONS.items():
        plan = plan_of(backend, query)
        assert condition in plan, f"{query}: {plan}"
        assert not WHOLE.search(plan), f"{query}: {plan}"
