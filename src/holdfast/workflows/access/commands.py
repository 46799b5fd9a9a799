"""Commands as processes that do not outlive their caller.

A command and all that it starts are one process group, led by a small watcher, the *leash*. It ends
the group when this process releases it or dies, and after the timeout even if this process hangs:
so a command whose end nobody saw is not running any more. What leaves the group on purpose
(`setsid`, a daemon, a container) is out of reach and may live on.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from holdfast.errors import NotDone

MOST_BYTES: Final = 128 * 1024
"""How much of the beginning, and how much of the end, of an output is kept."""

GRACE_SECONDS: Final = 2.0
LEASH_SECONDS: Final = 5.0
_SHELL: Final = "/bin/sh"
_WATCH: Final = """trap '' TERM HUP INT
(sleep "$1"; kill -KILL 0) &
read -r _
kill -TERM 0
sleep 1
kill -KILL 0"""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: a text for the shell, or a list of words without a shell."""

    command: str | list[str]
    cwd: Path
    env: Mapping[str, str]
    stdin: str = ""
    seconds: float

    @property
    def words(self) -> Sequence[str]:
        if isinstance(self.command, str):
            return [_SHELL, "-c", self.command]
        return self.command


class Captured(msgspec.Struct):
    """The beginning and the end of an output."""

    head: bytes = b""
    tail: bytes = b""
    left_out: int = 0

    def add(self, chunk: bytes) -> None:
        room = MOST_BYTES - len(self.head)
        self.head += chunk[:room]
        tail = self.tail + chunk[room:] if room < len(chunk) else self.tail
        self.left_out += max(0, len(tail) - MOST_BYTES)
        self.tail = tail[-MOST_BYTES:]

    def text(self, redact: Callable[[str], str], longest: int) -> str:
        """Return it as a text; where something is left out, no piece of a secret remains."""
        if not self.left_out:
            return redact((self.head + self.tail).decode("utf-8", "replace"))
        head = redact(self.head.decode("utf-8", "replace"))
        tail = redact(self.tail.decode("utf-8", "replace"))
        cut = f"\n… ({self.left_out:,} bytes are left out here) …\n"
        return f"{head[: max(0, len(head) - longest)]}{cut}{tail[longest:]}"


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended; it has no exit code if it was ended by its timeout."""

    exit_code: int | None
    stdout: Captured
    stderr: Captured


class _Leash:
    """The group of a command. Leaving it ends every process in it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        with _errors_as_not_done():
            reader, self._writer = os.pipe()
            try:
                self._process = subprocess.Popen(
                    [_SHELL, "-c", _WATCH, "leash", f"{self._seconds:.3f}"],
                    stdin=reader,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
            except BaseException:
                os.close(self._writer)
                raise
            finally:
                os.close(reader)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.send(signal.SIGKILL)
        os.close(self._writer)
        self._process.wait()

    @property
    def group(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)


class _Process(asyncio.SubprocessProtocol):
    """A running command; it may have ended while others still hold its outputs open."""

    def __init__(self) -> None:
        self.stdout = Captured()
        self.stderr = Captured()
        self.has_ended = asyncio.Event()
        self.is_closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        (self.stdout if fd == 1 else self.stderr).add(data)

    def process_exited(self) -> None:
        self.has_ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set()


async def run(command: Command) -> CommandResult:
    """Run a command to its end; raises NotDone if it cannot be started.

    After the timeout, or when this is cancelled, the command gets SIGTERM, then SIGKILL.
    """
    if not hasattr(os, "killpg"):
        raise NotDone(
            f"commands cannot be run on {sys.platform}, which has no process groups to end them "
            "by: run workflows with commands on Linux or macOS"
        )
    with _Leash(command.seconds + LEASH_SECONDS) as leash:
        transport, process = await _start(command, leash)
        is_over = False
        try:
            async with asyncio.timeout(command.seconds):
                await process.has_ended.wait()
        except TimeoutError:
            is_over = True
            await _end(process, leash)
        except asyncio.CancelledError:
            await _end(process, leash)
            raise
        finally:
            leash.send(signal.SIGKILL)  # what it left behind holds its outputs open
            await _within_grace(process.is_closed)
            transport.close()
    code = None if is_over else transport.get_returncode()
    return CommandResult(code, process.stdout, process.stderr)


@contextlib.contextmanager
def _errors_as_not_done() -> Generator[None]:
    """Raise NotDone for an error that shows that a command was not started."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise NotDone(f"the command cannot be started: {error}") from None


async def _start(command: Command, leash: _Leash) -> tuple[asyncio.SubprocessTransport, _Process]:
    with _errors_as_not_done():
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            _Process,
            *command.words,
            cwd=command.cwd,
            env=command.env,
            process_group=leash.group,
        )
    stdin: Any = transport.get_pipe_transport(0)
    stdin.write(command.stdin.encode())
    stdin.close()  # when all is written; a command need not read it
    return transport, process


async def _end(process: _Process, leash: _Leash) -> None:
    leash.send(signal.SIGTERM)
    try:
        await _within_grace(process.has_ended)
    finally:
        leash.send(signal.SIGKILL)
    await process.has_ended.wait()


async def _within_grace(event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_SECONDS):
            await event.wait()
