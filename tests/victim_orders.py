"""Victims that are there at once: a process imports everything, and forks for each order.

An order is a line of JSON on stdin; the answer is what came of it, or how the fork died.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def obey(kind: type[T], carry_out: Callable[[T], Any]) -> None:
    """Carry out each order in a fork of its own, one after another."""
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=kind)
        pid = os.fork()
        if pid == 0:
            _say(carry_out(order))
            os._exit(0)
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            _say({"died": code})


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what, default=str) + "\n")
    sys.stdout.flush()
