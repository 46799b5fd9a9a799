"""Identifiers: the only module that makes them.

Runs carry the caller's string or a UUIDv7; checkpoints and effects a UUIDv7; a worker gets a new id
at every start, so that two incarnations are never taken for one another.
"""

import os
import threading
import time
import uuid

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_lock = threading.Lock()
_last = 0


def uuid7() -> uuid.UUID:
    """A UUIDv7 that sorts after every one made before it in this process."""
    global _last
    with _lock:
        # 48 bits of milliseconds and 12 of counter: the next free value if the clock stands still.
        stamp = max((time.time_ns() // 1_000_000) << 12, _last + 1)
        _last = stamp
    high = (stamp >> 12) << 16 | 0x7000 | (stamp & 0xFFF)
    low = 0x8000_0000_0000_0000 | int.from_bytes(os.urandom(8), "big") >> 2
    return uuid.UUID(int=high << 64 | low)


def new_run_id() -> str:
    return str(uuid7())


def new_worker_id() -> str:
    number = (time.time_ns() // 1_000_000) << 32 | int.from_bytes(os.urandom(4), "big")
    return "w" + "".join(_ALPHABET[number >> shift & 31] for shift in range(75, -1, -5))


def is_worker_id(text: str) -> bool:
    """Whether an actor on the record is a process, and not somebody who gave a name."""
    return len(text) == 17 and text[0] == "w" and set(text[1:]) <= set(_ALPHABET)


def nonce() -> bytes:
    """16 random bytes that hide a body behind its digest."""
    return os.urandom(16)


def nonces(count: int) -> list[bytes]:
    """So many of them."""
    drawn = os.urandom(16 * count)
    return [drawn[at : at + 16] for at in range(0, len(drawn), 16)]
