"""A mesh of agents under constant kills: every answer once, every message at least twice.

Without --chaos it is a small one; tests/peers/test_mesh.py has the same with a transport.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.testing.nats import NatsServer, cluster_url, nats_cluster
from tests.backends import Backend, SQLiteBackend
from tests.peers.mesh import Mesh

LIMIT_SECONDS = 900.0
TASKS, PARTS = 200, 10
NODE_SECONDS = 4.0


@pytest.mark.mission("S0-020", "S0-021")
def test_mesh_in_one_store_under_constant_kills(
    backend: Backend, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    asyncio.run(mesh_in_one_store(backend, tmp_path, seed, is_chaos=is_chaos))


async def mesh_in_one_store(backend: Backend, tmp_path: Path, seed: int, *, is_chaos: bool) -> None:
    tasks = TASKS if is_chaos else 5
    async with Mesh(tmp_path, backend, seed=seed) as mesh:
        await mesh.start(tasks, PARTS)
        await mesh.work(
            kills=None if is_chaos else 1, pause=2.0 if is_chaos else 0.5, limit=LIMIT_SECONDS
        )
        await judge(mesh, tasks)


@pytest.mark.mission("S0-020", "S0-021")
def test_mesh_across_stores_and_a_cluster_that_loses_servers(
    tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    if not is_chaos:
        pytest.skip("tests/peers/test_mesh.py is the small one")
    asyncio.run(mesh_across_stores(tmp_path, seed))


async def mesh_across_stores(tmp_path: Path, seed: int) -> None:
    here, there = (SQLiteBackend(tmp_path / name) for name in ("here.db", "there.db"))
    with nats_cluster(tmp_path / "nats") as servers:
        url = cluster_url(servers)
        async with Mesh(tmp_path, here, there, transport=url, seed=seed) as mesh:
            await mesh.start(TASKS, PARTS)
            async with losing(servers, seed) as lost:
                await mesh.work(kills=None, pause=4.0, limit=LIMIT_SECONDS)
            print(f"{len(lost)} servers were killed")
            assert lost
            await judge(mesh, TASKS)


@asynccontextmanager
async def losing(servers: Sequence[NatsServer], seed: int) -> AsyncIterator[list[int]]:
    """One server after another is killed, and started again before the next."""
    lost: list[int] = []
    chance = random.Random(seed)

    async def lose() -> None:
        while True:
            await asyncio.sleep(NODE_SECONDS)
            server = chance.choice(servers)
            server.kill()
            lost.append(server.port)
            await asyncio.sleep(NODE_SECONDS / 2)
            await asyncio.to_thread(server.start)

    losing = asyncio.create_task(lose())
    try:
        yield lost
    finally:
        losing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await losing


async def judge(mesh: Mesh, tasks: int) -> None:
    assert mesh.faults() == []
    assert await mesh.wrong_answers() == []
    counts = mesh.counts()
    print(counts)
    assert (counts.answers, counts.results) == (tasks, tasks * PARTS)
    assert counts.duplicates >= tasks * PARTS / 2
