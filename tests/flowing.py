"""Messages that flow through a transport while its server is disturbed."""

import asyncio
from collections.abc import Callable

from holdfast.peers import Transport

SENT = 150
KEYS = {f"k{n}" for n in range(SENT)}


async def send_and_receive_while(
    disturb: Callable[[], None], open_one: Callable[[], Transport]
) -> list[str]:
    """Publish and consume, with the server disturbed in the middle; the keys that were received."""
    sender, receiver = open_one(), open_one()
    await sender.open()
    await receiver.open()
    received: list[str] = []
    halfway = asyncio.Event()

    async def send() -> None:
        for n in range(SENT):
            await sender.publish("inbox", b"%d" % n, key=f"k{n}")
            if n == SENT // 3:
                halfway.set()

    async def receive() -> None:
        async for delivery in receiver.consume("inbox", lease=2, prefetch=5):
            assert delivery.body == delivery.key[1:].encode()
            await delivery.ack()
            received.append(delivery.key)
            if len(set(received)) == SENT:
                return

    async def interrupt() -> None:
        await halfway.wait()
        await asyncio.to_thread(disturb)

    try:
        await asyncio.wait_for(asyncio.gather(send(), receive(), interrupt()), 90)
    finally:
        await sender.close()
        await receiver.close()
    return received
