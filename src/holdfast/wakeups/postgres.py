"""Wake-ups across the processes and machines that share a PostgreSQL database.

One connection of this process listens, and notifies others of what changed here: after the commit,
because NOTIFY inside one makes all committers of the database queue up, and at most every few
milliseconds, all that gathered in one message. When it is lost it is made again; until then polling
continues underneath.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, conninfo

from holdfast.telemetry import log
from holdfast.wakeups.local import SLOTS, LocalWakeups, slot_of

CHANNEL: Final = "holdfast"
_COALESCE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 5.0
_NEED_NOT_BE_ON_DISK: Final = "SET synchronous_commit = off"
_LISTEN: Final = f"LISTEN {CHANNEL}"
_NOTIFY: Final = "SELECT pg_notify($1, $2)"


class PostgresWakeups(LocalWakeups):
    """Local wake-ups, and NOTIFY between processes."""

    def __init__(self, url: str) -> None:
        super().__init__()
        given = conninfo.conninfo_to_dict(url)
        named = {"application_name": "holdfast wake-ups", "connect_timeout": "10"}
        self._conninfo = conninfo.make_conninfo(
            url, **{key: value for key, value in named.items() if key not in given}
        )
        self._unsent: set[str] = set()
        self._word = asyncio.Event()
        self._pid = 0
        self._tell_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._word = asyncio.Event()
        self._task = asyncio.create_task(self._keep_listening())

    async def close(self) -> None:
        await super().close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def notify(self, topics: Iterable[str]) -> None:
        topics = list(topics)
        super().notify(topics)
        if not self._unsent:
            # Whatever gathers until then goes in one message.
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._tell_at), self._word.set)
        self._unsent |= {str(slot_of(topic)) for topic in topics}

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                connection = await AsyncConnection.connect(
                    self._conninfo, autocommit=True, cursor_factory=AsyncRawCursor
                )
                async with connection:
                    await connection.execute(_NEED_NOT_BE_ON_DISK)
                    await connection.execute(_LISTEN)
                    # What happened while nobody listened is not known.
                    self.notify_all()
                    pause = 0.05
                    await self._exchange(connection)
            except psycopg.Error as error:
                if _is_being_closed():
                    # The driver raised the error of its query in place of the cancellation.
                    return
                log.debug("the connection for wake-ups is away, polling goes on: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _exchange(self, connection: AsyncConnection) -> None:
        """Receive and send until the connection is lost."""
        loop = asyncio.get_running_loop()
        connection.add_notify_handler(lambda heard: self._hear(heard.pid, heard.payload))
        self._pid = connection.info.backend_pid
        while True:
            # Not longer than the socket is open for sure: its number will be another's.
            descriptor = connection.fileno()
            loop.add_reader(descriptor, self._word.set)
            try:
                await self._word.wait()
            finally:
                loop.remove_reader(descriptor)
            self._word.clear()
            self._hear_all(connection)
            if self._unsent and loop.time() >= self._tell_at:
                await self._tell(connection)

    async def _tell(self, connection: AsyncConnection) -> None:
        payload, self._unsent = ",".join(self._unsent), set[str]()
        self._tell_at = asyncio.get_running_loop().time() + _COALESCE_SECONDS
        await connection.execute(_NOTIFY, (CHANNEL, payload))

    def _hear_all(self, connection: AsyncConnection) -> None:
        connection.pgconn.consume_input()
        while (heard := connection.pgconn.notifies()) is not None:
            self._hear(heard.be_pid, heard.extra.decode())

    def _hear(self, pid: int, payload: str) -> None:
        if pid == self._pid:
            return
        slots = payload.split(",")
        if not all(slot.isdecimal() and int(slot) < SLOTS for slot in slots):
            self.notify_all()
            return
        self.notify_slots(map(int, slots))


def _is_being_closed() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
