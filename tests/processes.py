"""Real processes for tests: children that take commands on stdin and answer in JSON on stdout."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tests.forked import LIMIT_SECONDS, PIPE, ROOT, Forked

__all__ = ["LIMIT_SECONDS", "ROOT", "Child"]


class Child:
    """A process that runs `python -m MODULE ARGS`; its commands and answers are lines of JSON.

    It is forked from one that has imported what its kind needs; of kind "" it is really started.
    """

    def __init__(
        self,
        module: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        kind: str = "holdfast",
    ) -> None:
        words = ["-m", module, *args]
        given = os.environ | (env or {})
        self.process: Any
        if kind:
            self.process = Forked(words, env=given, stdin=PIPE, stdout=PIPE, kind=kind)
        else:
            command = [sys.executable, *map(str, words)]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=given, stdin=PIPE, stdout=PIPE, bufsize=0
            )
        self._rest = b""

    def tell(self, command: Any) -> None:
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    def answer(self) -> Any:
        """The next line the child prints, decoded; fails if it ends or takes too long."""
        deadline = time.monotonic() + LIMIT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError("the child did not answer in time")
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    raise EOFError(f"the child ended with {self.process.wait()}")
                self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def ask(self, command: Any) -> Any:
        self.tell(command)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        """End the child, whatever it is doing."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(LIMIT_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
