"""One POST: whom it reaches, what counts as received, and receivers that answer anything else."""

import asyncio
import importlib.util
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.subscribers.http_post import NotDelivered, post
from holdfast.testing.store_suite import async_test
from tests.certificates import self_signed

BODY = b'[{"id": "r/1"}]'


class Receiver:
    """Answers every connection with the same bytes, and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.heard = b""
        self.url = ""
        self._answer = answer

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heard += head + await reader.readexactly(len(BODY))
        writer.write(self._answer)
        if not self._answer:
            await reader.read()  # until the other side gives up
        writer.close()


@asynccontextmanager
async def receiving(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    receiver = Receiver(answer)
    async with await asyncio.start_server(receiver.talk, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{port}/hook?a=1"
        yield receiver


async def send(receiver: Receiver, seconds: float = 10.0) -> None:
    await post(receiver.url, {"webhook-id": "7"}, BODY, seconds=seconds)


@async_test
async def test_body_and_headers_arrive_and_2xx_counts() -> None:
    async with receiving(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n") as receiver:
        await send(receiver)
    head, _, body = receiver.heard.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?a=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nwebhook-id: 7" in head
    assert body == BODY


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\n\r\n", "the answer was 302"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "the answer was 401"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "the answer was 500"),
        (b"SSH-2.0-OpenSSH\r\n", "not reached: RemoteProtocolError"),
        (b"x: y\r\n" * 1000, "not reached: RemoteProtocolError"),
        (b"x" * 1_000_000, "not reached: RemoteProtocolError"),
        (b"HTTP/1.1 2000 Long\r\n", "not reached: RemoteProtocolError"),
    ],
)
@async_test
async def test_anything_else_is_not_delivered(answer: bytes, why: str) -> None:
    async with receiving(answer) as receiver:
        with pytest.raises(NotDelivered, match=why) as raised:
            await send(receiver)
    assert not raised.value.is_for_good


@async_test
async def test_receiver_that_is_gone_says_so_for_good() -> None:
    async with receiving(b"HTTP/1.1 410 Gone\r\n\r\n") as receiver:
        with pytest.raises(NotDelivered) as raised:
            await send(receiver)
    assert raised.value.is_for_good


@async_test
async def test_receiver_that_does_not_answer_is_left() -> None:
    async with receiving(b"") as receiver:
        with pytest.raises(NotDelivered, match=r"no answer within 0\.3 seconds"):
            await send(receiver, seconds=0.3)
        assert receiver.heard.endswith(BODY)


@async_test
async def test_worker_without_httpx_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    async with receiving(b"HTTP/1.1 204 No Content\r\n\r\n") as receiver:
        with pytest.raises(NotDelivered, match=r"pip install 'holdfast\[webhooks\]'"):
            await send(receiver)
        assert receiver.heard == b""


@async_test
async def test_only_a_receiver_with_a_trusted_certificate_is_told_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with receiving(b"HTTP/1.1 204 No Content\r\n\r\n", tls) as receiver:
        with pytest.raises(NotDelivered, match="certificate verify failed"):
            await send(receiver)
        assert receiver.heard == b""
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        await send(receiver)
        assert receiver.heard.endswith(BODY)
