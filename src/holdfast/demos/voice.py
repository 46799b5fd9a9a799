"""How a process of a demo speaks, and when it ends: with the demo that started it."""

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


def say(who: str, event: str, what: str) -> None:
    """Report on stdout what is done here."""
    line = msgspec.json.encode({"who": who, "event": event, "what": what[:300]})
    # One write: others write to the same pipe, and lines must not mix.
    os.write(sys.stdout.fileno(), line + b"\n")


def obey(kind: type[T], who: str, do: Callable[[T], None]) -> int:
    """Do what the first line of stdin orders; return the exit code. Ends when its stdin does."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        do(orders)
    except Exception as error:
        # Any error: the demo ends with it, and reports it.
        say(who, "failed", f"{type(error).__name__}: {error}")
        return 1
    return 0


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
