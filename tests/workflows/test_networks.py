"""Which addresses HttpCall blocks reach: public ones, and those of networks that the kit names."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import MisuseError
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Kit
from holdfast.workflows.access.networks import AddressNotAllowed, Networks
from tests.certificates import self_signed
from tests.workflows.reaching import block, result
from tests.workflows.web import Web, serving

HERE = "memory://"
PUBLIC = "93.184.216.34"


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as served:
        yield served


class NameServer:
    """Answers in place of the resolver: each time with the next of its lists of addresses."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # where clouds keep the credentials of machines
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
@async_test
async def test_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(AddressNotAllowed, match="not a public address"):
        await Networks().addresses_of(address, 80)


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946"])
@async_test
async def test_public_address_is_reached(address: str) -> None:
    assert await Networks().addresses_of(address, 80) == [address]


@async_test
async def test_only_the_named_network_is_allowed_beside() -> None:
    networks = Networks(["10.0.0.0/8", "::1/128"])
    assert await networks.addresses_of("10.9.9.9", 80) == ["10.9.9.9"]
    assert await networks.addresses_of("::1", 80) == ["::1"]
    with pytest.raises(AddressNotAllowed):
        await networks.addresses_of("127.0.0.1", 80)


@async_test
async def test_private_addresses_of_a_public_name_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameServer(["10.0.0.1", PUBLIC])
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names.getaddrinfo)
    assert await Networks().addresses_of("example.org", 443) == [PUBLIC]


@pytest.mark.parametrize("given", ["localhost", ["10.0.0.0/8", "any"], ["10.0.0.0/99"]])
def test_what_is_no_network_is_refused(given: Any) -> None:
    with pytest.raises(MisuseError, match="is not a network"):
        Kit(networks=given)


@async_test
async def test_block_reaches_no_loopback_address_by_default(tmp_path: Path, web: Web) -> None:
    asked = block("HttpCall", url=f"{web.url}/pay", method="POST")
    found = await result(HERE, tmp_path, asked, networks=())
    assert "127.0.0.1, which is not a public address" in found.error
    assert "--network" in found.error
    assert web.seen == []


@async_test
async def test_any_network_may_be_allowed(tmp_path: Path, web: Web) -> None:
    asked = block("HttpCall", url=f"{web.url}/echo")
    assert (await result(HERE, tmp_path, asked, networks="any")).outputs["status"] == 200


@async_test
async def test_redirect_to_a_private_address_is_not_followed(tmp_path: Path, web: Web) -> None:
    with serving() as inner:
        web.away = inner.url.replace("127.0.0.1", "127.0.0.2") + "/echo"
        asked = block("HttpCall", url=f"{web.url}/away", follow_redirects=True)
        found = await result(HERE, tmp_path, asked, networks=["127.0.0.1/32"])
        assert "not a public address" in found.error
        assert inner.seen == []


@async_test
async def test_request_goes_to_the_address_that_was_checked(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has another address when it is asked again; nobody asks again."""
    names = NameServer(["127.0.0.1"], ["169.254.169.254"])
    monkeypatch.setattr(
        asyncio.BaseEventLoop, "getaddrinfo", lambda _, *a, **k: names.getaddrinfo(*a, **k)
    )
    port = web.url.rpartition(":")[2]
    asked = block("HttpCall", url=f"http://service.example:{port}/echo")
    found = await result(HERE, tmp_path, asked)
    assert found.outputs["status"] == 200
    assert names.asked == ["service.example"]
    assert web.seen[0]["headers"]["host"] == f"service.example:{port}"


@async_test
async def test_certificate_is_checked_for_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    seen: list[str | None] = []
    tls.sni_callback = lambda _, name, __: seen.append(name)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        asked = block("HttpCall", url=f"https://localhost:{port}/")
        found = await result(HERE, tmp_path, asked)
    assert "certificate verify failed" in found.error
    assert seen
    assert set(seen) == {"localhost"}
