"""A worker of the demo as the demo sees it: a process that says what it does, line by line."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self

from holdfast.errors import HoldfastError

PATIENCE_SECONDS: Final = 30.0


class WorkerProcess:
    """Started when entered; when left, it is gone, whatever it was doing."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._url = url
        self._arguments = arguments
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # -P: a folder named holdfast where the demo is started must not be imported instead.
        # A session of its own: Ctrl-C is for the demo, which then ends its workers.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli.demo_worker", *self._arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None, "piped above"
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            # Not as an argument: a URL may hold a password, and everybody sees arguments.
            stdin.write(self._url)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> dict[str, Any] | None:
        """What the worker says next; None when it has ended."""
        try:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise HoldfastError(
                f"the demo's worker {self.pid} said nothing for {PATIENCE_SECONDS:.0f} seconds"
            ) from None
        return json.loads(line) if line else None

    def expect(self, event: str) -> dict[str, Any]:
        """What the worker says next, which must be this."""
        heard = self.hear()
        if heard is None or event not in heard:
            raise HoldfastError(
                f"the demo's worker {self.pid} should have {event} now; it said {heard}"
            )
        return heard

    def kill(self) -> int:
        """Send SIGKILL, and wait until the process is gone; how it ended."""
        self._process.kill()
        code = self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None, "piped above"
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")
