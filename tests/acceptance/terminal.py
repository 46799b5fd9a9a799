"""A terminal for tests: a process with a pseudo-terminal, and the screen that it has drawn."""

import codecs
import fcntl
import os
import pty
import re
import selectors
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

LIMIT_SECONDS = 300.0
_PIECES = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|\x1b")


class Screen:
    """What a terminal shows: knows the moves that our displays make."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for number, letter, control, plain in _PIECES.findall(text):
            if plain:
                self._write(plain)
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif letter == "A":
                self._row -= int(number or 1)
            elif letter == "K":
                self.lines[self._row] = ""

    def _write(self, text: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        end = self._column + len(text)
        self.lines[self._row] = line[: self._column] + text + line[end:]
        self._column = end

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal."""

    def __init__(self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**env, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.raw = ""
        self.screen = Screen()

    def read_until(self, pattern: str) -> None:
        """Read until what was drawn, at any time, has a pattern in it; fails if it ends before."""
        while not re.search(pattern, self.raw):
            assert self._read(), f"it ended without {pattern!r}: {self.raw}"

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read to its end; the exit code."""
        while self._read():
            pass
        return self.process.wait(LIMIT_SECONDS)

    def _read(self) -> bool:
        deadline = time.monotonic() + LIMIT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._master, selectors.EVENT_READ)
            found = selector.select(deadline - time.monotonic())
        assert found, f"nothing came in time: {self.raw}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux tells that nobody has the other end any more
            data = b""
        text = self._decoder.decode(data)
        self.raw += text
        self.screen.feed(text)
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        os.close(self._master)
