"""Python programs in processes of their own, forked from one that has imported everything.

A process that starts as `python …` spends half a second or more on imports, and the tests start a
thousand. `Forked` is such a process, used like `subprocess.Popen`, and it is killed, stopped and
waited for like any other. How the real programs start and import is tested with the programs.
"""

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from threading import Thread
from typing import IO, Any

from tests.suite.guardian import keep_alone

ROOT = Path(__file__).parent.parent
LIMIT_SECONDS = 300.0
# What programs find imported: those of any other kind also what those of the first do.
KINDS: dict[str, list[str]] = {
    "holdfast": [
        *(
            f"holdfast.cli.{name}"
            for name in [
                "approvals",
                "audit",
                "checkpoints",
                "config",
                "demo",
                "effects",
                "imports",
                "journal",
                "messages",
                "runs",
                "schedules",
                "store",
                "worker",
                "workers",
                "workflows",
            ]
        ),
        "holdfast.sync",
        "holdfast.testing",
        "holdfast.stores.sqlite.store",
        "holdfast.stores.postgres.store",
        "holdfast.wakeups.sqlite",
        "holdfast.wakeups.postgres",
    ],
    "mcp": ["holdfast.edges.mcp", "holdfast.cli.mcp.commands", "mcp.server.mcpserver", "uvicorn"],
    "langgraph": [
        "holdfast.integrations.langgraph",
        "holdfast.integrations.langgraph.imports",
        "langchain.agents",
        "langgraph.checkpoint.sqlite",
        "langgraph.prebuilt",
    ],
}

RELAY = """
import json, os, socket, sys
told = socket.socket(socket.AF_UNIX)
told.connect(sys.argv[1])
socket.send_fds(told, [b"."], [0, 1, 2])
asked = {"words": sys.argv[2:], "folder": os.getcwd(), "env": dict(os.environ)}
told.sendall(json.dumps(asked).encode())
told.shutdown(socket.SHUT_WR)
code = int(told.makefile().read().split()[1])
os._exit(code if code >= 0 else 1)
"""


class Forked:
    """`python WORDS…`; the words may have the interpreter itself as the first."""

    stdin: Any = None
    stdout: Any = None
    stderr: Any = None

    def __init__(
        self,
        words: Sequence[object],
        *,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] = 0,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
        text: bool = False,
        kind: str = "holdfast",
    ) -> None:
        self.args = [str(word) for word in words if word != sys.executable]
        self._text = text
        self.returncode: int | None = None
        given = os.environ if env is None else env
        assert "LD_PRELOAD" not in given, "it has no effect on what is not really started"
        asked = {"words": self.args, "folder": str(cwd), "env": dict(given)}
        with ExitStack() as ends:
            files = [self._file(ends, *each) for each in enumerate((stdin, stdout, stderr))]
            files = [files[1] if file == STDOUT else file for file in files]
            self._told = socket.socket(socket.AF_UNIX)
            self._told.connect(str(_zygote(kind)))
            socket.send_fds(self._told, [b"."], files)
            self._told.sendall(json.dumps(asked).encode())
            self._told.shutdown(socket.SHUT_WR)
            self._rest = b""
            self.pid = self._number()

    def _file(self, ends: ExitStack, number: int, asked: int | IO[Any]) -> int:
        """The file that the process has for one of its three; of a pipe we keep the other end."""
        if asked == DEVNULL:
            asked = os.open(os.devnull, os.O_RDWR)
            ends.callback(os.close, asked)
        if asked != PIPE:
            return asked if isinstance(asked, int) else asked.fileno()
        reading, writing = os.pipe()
        ours, theirs = (writing, reading) if number == 0 else (reading, writing)
        ends.callback(os.close, theirs)
        mode = ("w" if number == 0 else "r") + ("" if self._text else "b")
        buffering = 0 if mode == "wb" else -1
        pipe = os.fdopen(ours, mode, buffering, encoding="utf-8" if self._text else None)
        setattr(self, ("stdin", "stdout", "stderr")[number], pipe)
        return theirs

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = LIMIT_SECONDS) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from error
            self._told.close()
        return self.returncode

    def _number(self) -> int:
        """The next that the zygote tells: the pid, and then how it ended."""
        while b"\n" not in self._rest:
            chunk = self._told.recv(64)
            assert chunk, "the zygote is gone"
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return int(line)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: Any = None, timeout: float = LIMIT_SECONDS) -> tuple[Any, Any]:
        """Write to its stdin and close it; returns the rest of what it writes until it ends."""
        reading = [_Reading(pipe) for pipe in (self.stdout, self.stderr)]
        if given:
            self.stdin.write(given)
        if self.stdin is not None:
            self.stdin.close()
        self.wait(timeout)
        out, err = (each.said() for each in reading)
        self.close()
        return out, err

    def close(self) -> None:
        """Close our ends of its pipes."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.wait()


class _Reading(Thread):
    """Reads a pipe to its end, if it is one and open."""

    def __init__(self, pipe: Any) -> None:
        super().__init__(daemon=True)
        self._pipe, self._found = pipe, None
        self.start()

    def run(self) -> None:
        if self._pipe is not None and not self._pipe.closed:
            self._found = self._pipe.read()

    def said(self) -> Any:
        self.join(LIMIT_SECONDS)
        return self._found


def run(
    words: Sequence[object],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    typed: str = "",
    kind: str = "holdfast",
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, with what is typed on its stdin."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        given, out, err = files
        given.write(typed.encode())
        given.seek(0)
        program = Forked(words, cwd=cwd, env=env, stdin=given, stdout=out, stderr=err, kind=kind)
        try:
            code = program.wait()
        finally:
            program.kill()
        return subprocess.CompletedProcess(program.args, code, _text(out), _text(err))


def command(*words: object, kind: str = "holdfast") -> list[str]:
    """A command that starts such a program, for whoever starts commands.

    It hands its files to the program and ends after it; a signal to it does not reach the program.
    """
    given = [str(word) for word in words]
    return [sys.executable, "-I", "-S", "-c", RELAY, str(_zygote(kind)), *given]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@functools.cache
def _zygote(kind: str) -> Path:
    """The socket of the process that forks programs of this kind; one is forked by another.

    Programs that are forked find it in their environment.
    """
    name = f"TESTS_ZYGOTE_{kind.upper()}"
    if found := os.environ.get(name):
        return Path(found)
    # No TemporaryDirectory: a child of multiprocessing forgets what is to be done at the exit, and
    # so frees it, which removes the folder.
    folder = tempfile.mkdtemp(prefix="holdfast-zygote-")
    place = Path(folder, "socket")
    words = ["-m", "tests.zygote", str(place), *KINDS[kind]]
    if kind == "holdfast":
        process: Any = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdin=PIPE, stdout=PIPE, bufsize=0
        )
    else:
        process = Forked(words, stdin=PIPE, stdout=PIPE)

    def end() -> None:
        process.stdin.close()
        process.stdout.close()
        process.wait(LIMIT_SECONDS)
        shutil.rmtree(folder)

    atexit.register(end)
    assert process.stdout.readline() == b'"ready"\n'
    os.environ[name] = str(place)
    keep_alone(process.pid)
    return place
