"""A server of a NATS cluster is killed while messages flow: the others go on, nothing is lost."""

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.peers import open_transport
from holdfast.testing.nats import NatsServer, cluster_url, nats_cluster
from tests.flowing import KEYS, send_and_receive_while


def test_cluster_goes_on_without_one_of_its_servers(
    tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    if not is_chaos:
        pytest.skip("three servers and their elections take half a minute: make chaos plays it")
    for number in range(5):
        with nats_cluster(tmp_path / str(number)) as servers:
            victim = random.Random(seed + number).choice(servers)
            received = asyncio.run(disturbed(servers, victim))
            assert set(received) == KEYS, f"seed {seed + number}"


async def disturbed(servers: list[NatsServer], victim: NatsServer) -> list[str]:
    """Kill one while messages flow, and start it again when all of them have come."""
    url = cluster_url(servers)
    received = await send_and_receive_while(victim.kill, lambda: open_transport(url))
    victim.start()
    return received
