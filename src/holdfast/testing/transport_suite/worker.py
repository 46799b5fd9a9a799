"""A process for the suite to kill: takes messages and keeps them, or publishes without end."""

import asyncio
import sys
from itertools import count

from holdfast.peers.transports import open_transport


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _take(url: str, queue: str, number: str, lease: str, *, is_late: bool) -> None:
    transport = open_transport(url)
    await transport.open()
    kept = 0
    async for delivery in transport.consume(queue, lease=float(lease), prefetch=int(number)):
        _say(delivery.key)
        kept += 1
        if is_late:
            # Longer than the lease: meanwhile the process is stopped, and another has the message.
            await asyncio.sleep(1.5 * float(lease))
            _say(str(await delivery.ack()))
            break
        if kept == int(number):
            await asyncio.Event().wait()
    await transport.close()


async def _publish(url: str, queue: str) -> None:
    transport = open_transport(url)
    await transport.open()
    for n in count():
        await transport.publish(queue, b"%d" % n, key=f"k{n}")
        _say(f"k{n}")


def main() -> None:
    url, what, *rest = sys.argv[1:]
    match what:
        case "publish":
            asyncio.run(_publish(url, *rest))
        case _:
            asyncio.run(_take(url, *rest, is_late=what == "late"))


if __name__ == "__main__":
    main()
