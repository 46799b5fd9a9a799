"""Transports: one contract, several ways to carry messages between agents.

The only module that names a transport's library.
"""

from holdfast.clock import Clock
from holdfast.engine.context import Context
from holdfast.errors import MisuseError
from holdfast.peers.transports.contract import DeadLetter, Delivery, Transport
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
    """The transport a URL names: `store:` for the queues of the store in `context`, the URL or path
    of a store for the queues in it. Nothing is opened until its `open` is awaited.
    """
    if url == "store:":
        if context is None:
            raise MisuseError("store: means the queues of an open store, and none was given")
        return StoreQueue(context)
    settings = settings or Settings()
    store = open_store(url, settings=settings, clock=clock)
    return StoreQueue(Context(store, open_wakeups(url), settings, Telemetry()), is_owner=True)
