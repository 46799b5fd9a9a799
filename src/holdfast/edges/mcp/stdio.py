"""The stdin and stdout of this process as a wire for the protocol alone.

What agents and tools print goes to stderr, and what reads stdin finds its end. A thread that reads
a pipe cannot be stopped, so it forwards what it reads to an end that can be closed.
"""

import os
import socket
import sys
import threading
from io import TextIOWrapper
from typing import Final, Self

import anyio

_CHUNK: Final = 65536


class StdioWire:
    """Both ends of the wire; made with `take`."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._near, self._far = socket.socketpair()

    @classmethod
    def take(cls) -> Self:
        """Take stdin and stdout from everybody else in this process, for as long as it lives."""
        sys.stdout.flush()
        wire = cls(os.dup(0), os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return wire

    def open(self) -> tuple["anyio.AsyncFile[str]", "anyio.AsyncFile[str]"]:
        """What to read lines from, and what to write them to."""
        threading.Thread(target=self._pass_on, daemon=True, name="holdfast-mcp-stdin").start()
        reading = self._near.makefile("r", encoding="utf-8", errors="replace", newline="\n")
        writing = TextIOWrapper(os.fdopen(self._outgoing, "wb", closefd=False), encoding="utf-8")
        return anyio.wrap_file(reading), anyio.wrap_file(writing)

    def end(self) -> None:
        """Let the reader find the end, as if the client had closed the wire."""
        self._far.shutdown(socket.SHUT_WR)

    def _pass_on(self) -> None:
        try:
            while chunk := os.read(self._incoming, _CHUNK):
                self._far.sendall(chunk)
            self.end()
        except OSError:
            return  # it was ended from here, or the other end is gone
