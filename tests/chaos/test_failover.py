"""The server is killed for good and its synchronous standby takes over: nothing is lost."""

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.testing.postgres import PostgresServer
from tests.chaos.judging import faults_in
from tests.chaos.oracle import Oracle
from tests.chaos.sessions import Ledger, disturbed
from tests.conftest import OwnPostgres

ACKNOWLEDGED = 200


def url_of(*servers: PostgresServer) -> str:
    """Whichever of them takes writes."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


@pytest.mark.mission("S3-081")
def test_synchronous_standby_has_all_that_was_acknowledged(
    own_postgres: OwnPostgres, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    for number in range(5 if is_chaos else 1):
        found = fail_over_once(own_postgres(), tmp_path / f"standby-{number}", seed + number)
        assert found == [], f"seed {seed + number}"


def fail_over_once(primary: PostgresServer, folder: Path, seed: int) -> list[str]:
    """Everything that is wrong afterwards."""
    chance = random.Random(seed)
    ledger = Ledger()

    async def fail_over(standby: PostgresServer) -> None:
        await ledger.reach(ACKNOWLEDGED)
        await asyncio.sleep(chance.uniform(0, 0.05))
        await asyncio.to_thread(primary.kill)
        await asyncio.sleep(chance.choice((0, 1)))
        await asyncio.to_thread(standby.promote)
        await ledger.reach(ACKNOWLEDGED)

    async def main(standby: PostgresServer) -> list[str]:
        url = url_of(primary, standby)
        await disturbed(url, lambda: fail_over(standby), ledger, seed=seed)
        oracle = Oracle(standby.url())
        print(f"seed {seed}; {ledger}")
        return await faults_in(standby.url(), ledger, oracle)

    with primary.standby(folder, synchronous=True) as standby:
        return asyncio.run(asyncio.wait_for(main(standby), 120))
