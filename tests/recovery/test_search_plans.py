"""Searches go by an index, and not through all checkpoints of a store."""

import re

import pytest

import holdfast
from holdfast.stores.postgres.queries import SQL as POSTGRES
from holdfast.stores.sqlite.queries import SQL as SQLITE
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

INDEXES = {
    "search_checkpoints": "checkpoints_by_id",
    "search_checkpoints_by_agent": "checkpoints_by_agent",
    "search_checkpoints_by_label": "checkpoints_by_label",
    "search_records": "checkpoints_by_id",
    "search_records_by_agent": "checkpoints_by_agent",
    "search_records_by_label": "checkpoints_by_label",
    "search_records_by_words": "words",
    "get_checkpoint_record": "checkpoints_by_id",
}
OF_ONE_RUN = ("search_checkpoints_of_run", "search_records_of_run", "list_checkpoint_records")
TABLES = r"\b(?:checkpoints|records|c|r)\b"


def plan_of(backend: Backend, query: str) -> str:
    """What the database does for whatever is searched for; it may not go through a whole table."""
    with backend.raw() as raw:
        if backend.name == "postgres":
            raw.execute("SET enable_seqscan = off")  # a new store is too small for an index
            told = raw.rows(f"EXPLAIN (GENERIC_PLAN) {POSTGRES[query]}")
            return "\n".join(line for (line,) in told)
        nothing = [None] * len(set(re.findall(r"\?\d+", SQLITE[query])))
        told = raw.rows(f"EXPLAIN QUERY PLAN {SQLITE[query]}", *nothing)
        return "\n".join(line for *_, line in told)


@pytest.mark.mission("S3-129")
@async_test
async def test_search_goes_by_an_index(backend: Backend) -> None:
    async with holdfast.open(backend.url):
        pass
    for query, index in INDEXES.items():
        plan = plan_of(backend, query)
        assert index in plan, f"{query}: {plan}"
        assert not re.search(rf"Seq Scan on {TABLES}|SCAN {TABLES}", plan), f"{query}: {plan}"
    if backend.name == "sqlite":  # PostgreSQL goes by how many there are, and here is none
        for query in OF_ONE_RUN:
            assert "(tenant=? AND run_id=?" in plan_of(backend, query)
