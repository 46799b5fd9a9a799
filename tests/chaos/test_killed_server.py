"""PostgreSQL is killed again and again under load: all that was acknowledged is there, once."""

import asyncio
import random

import pytest

from holdfast.testing.postgres import PostgresServer
from tests.chaos.judging import faults_in
from tests.chaos.oracle import Oracle
from tests.chaos.servers import kill, kill_all
from tests.chaos.sessions import Ledger, disturbed
from tests.conftest import OwnPostgres


class Killing:
    """Kills and restarts a server, and looks at what is stored after each time."""

    def __init__(self, server: PostgresServer, ledger: Ledger, seed: int) -> None:
        self.kills = 0
        self.oracle = Oracle(server.url())
        self._server = server
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._seed = seed

    async def kill(self, times: int) -> None:
        for _ in range(times):
            await self._ledger.reach(self._chance.randint(1, 30))
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            await asyncio.to_thread(self._chance.choice((kill, kill_all)), self._server)
            self.kills += 1
            await asyncio.sleep(self._chance.choice((0, 0, 0.4)))
            await asyncio.to_thread(self._server.restart)
            await self.check()

    async def check(self) -> None:
        told = self._ledger.told()
        problems = await asyncio.to_thread(self.oracle.look)
        assert problems + self.oracle.missing(told) == [], str(self)

    def __str__(self) -> str:
        return f"seed {self._seed}, {self.kills} kills; {self._ledger}"


@pytest.mark.mission("S3-082", "S3-105")
def test_what_was_acknowledged_outlives_every_kill(
    own_postgres: OwnPostgres, seed: int, is_chaos: bool
) -> None:
    kills = 300 if is_chaos else 5

    async def main() -> None:
        ledger, server = Ledger(), own_postgres()
        killing = Killing(server, ledger, seed)
        await disturbed(server.url(), lambda: killing.kill(kills), ledger, seed=seed)
        assert await faults_in(server.url(), ledger, killing.oracle) == [], str(killing)
        print(killing)

    asyncio.run(asyncio.wait_for(main(), 20 * kills))
