"""Peers: what agents send to each other outlives the processes that send and receive it."""

from holdfast.peers.transports import Delivery, Transport, open_transport

__all__ = ["Delivery", "Transport", "open_transport"]
