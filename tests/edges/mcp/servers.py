"""Servers for tests, as processes of their own; and what they wrote."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests import forked
from tests.forked import DEVNULL, ROOT, Forked

LIMIT_SECONDS = 240.0


class Line(NamedTuple):
    what: str
    number: int
    key: str
    run: str
    call: str
    pid: int


def command(file: Path) -> list[str]:
    return forked.command("-m", "tests.edges.mcp.ledger_server", file, kind="mcp")


def environment() -> dict[str, str]:
    """For a server that is started with little: where its module is."""
    return {"PYTHONPATH": str(ROOT)}


def lines(file: Path) -> list[Line]:
    if not file.exists():
        return []
    split = (line.split() for line in file.read_text().splitlines())
    return [Line(what, int(number), *told, int(pid)) for what, number, *told, pid in split]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(file: Path, port: int) -> Iterator[str]:
    """A server at a port, until this is left; its URL."""
    words = ["-m", "tests.edges.mcp.ledger_server", file, port]
    process = Forked(words, stderr=DEVNULL, kind="mcp")
    try:
        wait_for(lambda: is_listening(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(LIMIT_SECONDS)


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], *, limit: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def kill(pid: int) -> None:
    os.kill(pid, 9)
    wait_for(lambda: not is_alive(pid))
