"""The processes of the demo as the demo sees them, and the one pipe on which they all speak.

One pipe: what they say arrives in the order in which it was said, from any of them.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.errors import HoldfastError

PATIENCE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05

Event = dict[str, Any]


class ChildPipe:
    """The pipe: children write lines, the demo reads events."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        self._rest = b""
        self._heard: list[Event] = []

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write_end)

    def next(self, *, timeout: float) -> Event | None:
        """Return the next event; None if none comes in time."""
        if not self._heard and select.select([self._read], [], [], timeout)[0]:
            *lines, self._rest = (self._rest + os.read(self._read, 65536)).split(b"\n")
            self._heard = [json.loads(line) for line in lines]
        return self._heard.pop(0) if self._heard else None

    def drain(self) -> list[Event]:
        """Return all events until now."""
        events: list[Event] = []
        while (event := self.next(timeout=0)) is not None:
            events.append(event)
        return events


class Child:
    """A process of the demo. Started when entered; when left, it is gone, whatever it was doing."""

    def __init__(
        self, command: Sequence[str], wire: ChildPipe, *, log: Path, orders: bytes = b""
    ) -> None:
        self._command = [sys.executable, *command]
        self._wire = wire
        self._log = log
        self._orders = orders

    def __enter__(self) -> Self:
        # A separate session: Ctrl-C is for the demo, which then ends its children. If the demo is
        # killed, they end by themselves when their stdin does.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=self._wire.write_end,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None, "piped above"
        with contextlib.suppress(BrokenPipeError):
            # Not as arguments: a URL may hold a password, and everybody sees arguments.
            self._process.stdin.write(self._orders)
            self._process.stdin.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None, "piped above"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, by a negative number if by a signal; None while it lives."""
        return self._process.poll()

    def kill(self) -> int:
        """Send SIGKILL, and wait until the process is gone; return how it ended."""
        self._process.kill()
        return self._process.wait(PATIENCE_SECONDS)

    def wait(self) -> int:
        """Wait until the process has ended by itself; return how."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise HoldfastError(f"process {self.pid} of the demo does not end") from None

    def hear(self) -> Event | None:
        """Return the next event of any process; None if this one has ended and all are read."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            has_ended = self.exit_code is not None
            event = self._wire.next(timeout=0 if has_ended else _LOOK_SECONDS)
            if event is not None or has_ended:
                return event
        raise HoldfastError(
            f"process {self.pid} of the demo said nothing for {PATIENCE_SECONDS:.0f} seconds"
        )
