"""Bodies that are too large for a message of NATS: they are in an object store, by name."""

import base64
from typing import Final

from nats.js.errors import NotFoundError

from holdfast import ids
from holdfast.peers.transports.jetstream_link import JetStreamLink

# A server refuses messages above 1 MiB, headers included, unless configured otherwise.
LARGEST_IN_MESSAGE: Final = 900_000


class Bodies:
    """Stores each body under a unique name, until its message is processed."""

    def __init__(self, link: JetStreamLink) -> None:
        self._link = link

    async def put(self, body: bytes) -> str:
        """Store a body; return its name."""
        bucket, name = await self._link.bodies(), str(ids.uuid7())
        await self._link.asked(lambda: bucket.put(name, body))
        return name

    async def get(self, name: str) -> bytes | None:
        """Return a body; None if it was dropped."""
        bucket = await self._link.bodies()
        try:
            found = await self._link.asked(lambda: bucket.get(name))
        except NotFoundError:
            return None
        return found.data

    async def drop(self, name: str) -> None:
        """Delete a body, and every trace of it."""
        if not name:
            return
        bucket = await self._link.bodies()
        at = self._link.location.bodies
        subject = f"$O.{at}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
        try:
            await self._link.asked(lambda: bucket.delete(name))
        except NotFoundError:
            return
        await self._link.asked(lambda: self._link.js.purge_stream(f"OBJ_{at}", subject=subject))
