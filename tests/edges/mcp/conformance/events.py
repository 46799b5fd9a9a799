"""What a client may have missed on a stream that was closed, in memory of this process."""

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage


class RememberedEvents(EventStore):
    """Every event in the order it came; its id is its place."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        seen = int(last_event_id)
        stream, _ = self._events[seen - 1]
        for place, (owner, message) in enumerate(self._events[seen:], seen + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(place)))
        return stream
