"""A tenth of tests/chaos/test_peers.py: a mesh on one NATS server, everything twice, one kill."""

from pathlib import Path

import pytest

from holdfast.testing.nats import nats_server
from holdfast.testing.store_suite import async_test
from tests.backends import SQLiteBackend
from tests.peers.mesh import Mesh

TASKS, PARTS = 20, 10


@pytest.mark.mission("S0-020", "S0-021")
@async_test
async def test_tasks_and_their_parts_elsewhere_each_end_once(tmp_path: Path, seed: int) -> None:
    here, there = (SQLiteBackend(tmp_path / name) for name in ("here.db", "there.db"))
    with nats_server(tmp_path / "nats") as server:
        async with Mesh(tmp_path, here, there, transport=server.url, seed=seed) as mesh:
            await mesh.start(TASKS, PARTS)
            await mesh.work(kills=1, pause=1.0, limit=60)
            assert mesh.faults() == []
            assert await mesh.wrong_answers() == []
            counts = mesh.counts()
            print(counts)
            assert (counts.answers, counts.results) == (TASKS, TASKS * PARTS)
            assert counts.duplicates
