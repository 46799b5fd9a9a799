"""Transports: one contract, several ways to carry messages between agents.

The only module that names a transport's library.
"""

import importlib.util

from holdfast.broker_urls import is_broker
from holdfast.clock import Clock
from holdfast.engine.context import Context
from holdfast.errors import InvalidSetting, MisuseError
from holdfast.peers.transports.contract import DeadLetter, Delivery, Transport
from holdfast.peers.transports.jetstream_names import locate_nats
from holdfast.peers.transports.store_queue import StoreQueue
from holdfast.settings import Settings
from holdfast.stores import open_store
from holdfast.telemetry import Telemetry
from holdfast.wakeups import open_wakeups

__all__ = ["DeadLetter", "Delivery", "Transport", "open_transport"]


def open_transport(
    url: str,
    *,
    context: Context | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Transport:
    """Return the transport that a URL names; nothing is opened until its `open` is awaited.

    `nats://host:4222` is JetStream, the URL or path of a store means the queues in it, and `store:`
    those of the store in `context`, which is open already.
    """
    if url == "store:":
        if context is None:
            raise MisuseError("store: means the queues of an open store, and none was given")
        return StoreQueue(context)
    settings = settings or Settings()
    if is_broker(url):
        _check_has_client()
        from holdfast.peers.transports.jetstream import JetStreamTransport

        return JetStreamTransport(locate_nats(url), max_body_bytes=settings.max_body_bytes)
    store = open_store(url, settings=settings, clock=clock)
    wakeups = open_wakeups(url, store.look_for_foreign_commits)
    return StoreQueue(Context(store, wakeups, settings, Telemetry()), is_owner=True)


def _check_has_client() -> None:
    if importlib.util.find_spec("nats") is None:
        raise InvalidSetting("NATS needs its client: pip install 'holdfast[nats]'")
