"""Events into the queues of a transport: one message each, whose key is the event's id."""

import hashlib
from typing import Final

from holdfast import names
from holdfast.kernel.events import CONTENT_TYPE, Event
from holdfast.peers.exchange import Exchange
from holdfast.subscribers.deliverer import Publish

_HEADERS: Final = {"content-type": CONTENT_TYPE}


def published_by(exchange: Exchange) -> Publish:
    """Return a function that publishes events over an exchange."""

    async def publish(queue: str, event: Event, body: bytes) -> None:
        await exchange.publish(
            queue, body, key=_key(event.id), headers=_HEADERS, ordering=event.subject
        )

    return publish


def _key(event_id: str) -> str:
    """The id of an event, or a digest of one that is too long to be a key."""
    if len(event_id) <= names.MAX_LENGTH:
        return event_id
    return hashlib.sha256(event_id.encode()).hexdigest()
