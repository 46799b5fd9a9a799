"""Getting into NATS: TLS, files and passwords that are wrong, servers that are set up otherwise."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import InvalidSetting, StoreNotPermitted, TransportUnavailable
from holdfast.peers import open_transport
from holdfast.testing.nats import NatsServer, free_ports
from holdfast.testing.store_suite import async_test
from tests.certificates import self_signed

Started = Callable[..., NatsServer]
CONSUMING = """
import asyncio, sys
from holdfast.peers import open_transport

async def consume(transport):
    async for delivery in transport.consume("inbox", lease=30, prefetch=2):
        print(delivery.key, await delivery.ack(), flush=True)
        heard.set()

async def main():
    global heard
    heard = asyncio.Event()
    transport = open_transport(sys.argv[1])
    await transport.open()
    await transport.publish("inbox", b"hello", key="one")
    consuming = [asyncio.create_task(consume(transport)) for _ in range(3)]
    await heard.wait()
    await transport.close()
    await asyncio.gather(*consuming)

asyncio.run(main())
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    servers: list[NatsServer] = []

    def start(*lines: str, jetstream: bool = True) -> NatsServer:
        folder = tmp_path / f"n{len(servers)}"
        (port,) = free_ports(1)
        server = NatsServer(folder, port=port)
        wanted = ["host: 127.0.0.1", f"port: {port}", *lines]
        if jetstream:
            wanted.append(f'jetstream {{ store_dir: "{folder / "data"}" }}')
        (folder / "nats.conf").write_text("\n".join(wanted) + "\n", encoding="utf-8")
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


@async_test
async def test_tls_never_speaks_in_clear_text(
    started: Started, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    server = started("trace: true", "authorization { user: me, password: hunter2 }")
    host = f"me:hunter2@127.0.0.1:{server.port}"
    for url in (f"tls://{host}", f"nats://{host}?ca={certificate[0]}"):
        with pytest.raises(TransportUnavailable, match="the server does not speak TLS") as raised:
            await open_transport(url).open()
        assert "hunter2" not in str(raised.value)
    log = tmp_path / "n0" / "log"
    assert "CONNECT" not in log.read_text(encoding="utf-8")
    transport = open_transport(f"nats://{host}")
    await transport.open()
    await transport.close()
    assert "CONNECT" in log.read_text(encoding="utf-8")


@async_test
async def test_server_with_tls_lets_in_who_trusts_it(
    started: Started, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    server = started(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}')
    transport = open_transport(f"tls://127.0.0.1:{server.port}?ca={cert}")
    await transport.open()
    assert await transport.publish("inbox", b"hello", key="one")
    await transport.close()
    with pytest.raises(TransportUnavailable, match="certificate is not accepted"):
        await open_transport(f"tls://127.0.0.1:{server.port}").open()


@async_test
@pytest.mark.parametrize("option", ["creds", "ca"])
async def test_file_that_is_missing_is_named(option: str, tmp_path: Path) -> None:
    transport = open_transport(f"nats://127.0.0.1:4222?{option}={tmp_path}/nothing")
    with pytest.raises(InvalidSetting, match=rf"{option}={tmp_path}/nothing .* names no file"):
        await transport.open()


@async_test
async def test_ca_without_certificates_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("words", encoding="utf-8")
    with pytest.raises(InvalidSetting, match=r"ca=.*ca\.pem .* holds no certificates"):
        await open_transport(f"tls://127.0.0.1:4222?ca={tmp_path}/ca.pem").open()


@async_test
@pytest.mark.parametrize("login", ["", "me:hunter2@", "hunter2@"])
async def test_refused_credentials_are_told(started: Started, login: str) -> None:
    server = started("authorization { user: me, password: other }")
    transport = open_transport(f"nats://{login}127.0.0.1:{server.port}")
    with pytest.raises(StoreNotPermitted, match="the server refuses these credentials") as raised:
        await transport.open()
    assert "hunter2" not in str(raised.value)


@async_test
async def test_server_without_jetstream_is_told(started: Started) -> None:
    server = started(jetstream=False)
    with pytest.raises(TransportUnavailable, match="JetStream is off: start it with nats-server"):
        await open_transport(server.url).open()


@async_test
async def test_account_without_jetstream_is_told(started: Started) -> None:
    server = started(
        "accounts { A { jetstream: enabled, users: [{user: a, password: a}] }, "
        "B { users: [{user: b, password: b}] } }"
    )
    with pytest.raises(TransportUnavailable, match="JetStream is off"):
        await open_transport(f"nats://b:b@127.0.0.1:{server.port}").open()


def test_consumer_that_is_closed_leaves_no_traceback(started: Started) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONSUMING, started().url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one True\n", "")
