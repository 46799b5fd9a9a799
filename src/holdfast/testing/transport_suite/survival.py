"""Surviving: a worker that is killed with claimed messages loses none of them."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process

from holdfast.testing.store_suite.backend import async_test
from holdfast.testing.transport_suite.carrier import Carrier, Consumer, opened

LEASE = 5.0  # long enough that a busy machine acknowledges within it


async def _start_worker(carrier: Carrier, *args: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast.testing.transport_suite.worker",
        carrier.url,
        *args,
        stdout=PIPE,
    )


async def _kill(worker: Process) -> int:
    worker.kill()
    return await worker.wait()


class SurvivingSuite:
    """What a transport guarantees to those who die."""

    @async_test
    async def test_killed_worker_loses_no_message(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            for n in range(4):
                await transport.publish("inbox", b"%d" % n, key=f"k{n}")
            worker = await _start_worker(carrier, "take", "inbox", "3", str(LEASE))
            assert worker.stdout is not None
            taken = [(await worker.stdout.readline()).decode().strip() for _ in range(3)]
            assert taken == ["k0", "k1", "k2"]
            assert await _kill(worker) == -signal.SIGKILL
            attempts: dict[str, int] = {}
            async with Consumer(transport, "inbox", lease=LEASE) as consumer:
                while len(attempts) < 4:
                    got = await consumer.next()
                    attempts[got.key] = got.attempt
                    assert await got.ack()
            assert attempts == {"k0": 2, "k1": 2, "k2": 2, "k3": 1}

    @async_test
    async def test_killed_publisher_has_sent_all_that_it_was_told_of(
        self, carrier: Carrier
    ) -> None:
        async with opened(carrier) as transport:
            worker = await _start_worker(carrier, "publish", "inbox")
            assert worker.stdout is not None
            for n in range(20):
                assert (await worker.stdout.readline()).decode().strip() == f"k{n}"
            await _kill(worker)
            confirmed = 20 + (await worker.stdout.read()).count(b"\n")
            async with Consumer(transport, "inbox", prefetch=10) as consumer:
                for n in range(confirmed):
                    got = await consumer.next()
                    assert got.key == f"k{n}"
                    assert await got.ack()

    @async_test
    async def test_frozen_worker_is_told_that_it_lost_its_message(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            await transport.publish("inbox", b"", key="one")
            worker = await _start_worker(carrier, "late", "inbox", "1", str(LEASE))
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"one\n"
            os.kill(worker.pid, signal.SIGSTOP)
            async with Consumer(transport, "inbox", lease=LEASE) as consumer:
                got = await consumer.next()
                assert (got.key, got.attempt) == ("one", 2)
                os.kill(worker.pid, signal.SIGCONT)
                assert await worker.stdout.read() == b"False\n"
                assert await worker.wait() == 0
                await got.ack()
                await transport.publish("inbox", b"", key="two")
                assert (await consumer.next()).key == "two"
