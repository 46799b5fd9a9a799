"""One POST over HTTP/1.1, of which only the status is of interest: no redirects, no cookies.

It runs on the event loop, so that a cancelled caller leaves nothing behind.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from holdfast.errors import MisuseError

_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r?\n)")
_MOST_LINES: Final = 200


class NotDelivered(Exception):
    """Nobody has said that they have it; why, in words without anything secret."""

    def __init__(self, why: str, *, is_for_good: bool = False) -> None:
        super().__init__(why)
        self.is_for_good = is_for_good


def check_url(url: str) -> str:
    """Return a URL that can be posted to; raises MisuseError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise MisuseError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise MisuseError(f"{url!r} is no URL of http or https: https://example.org/hook is")
    if parts.username is not None or parts.password is not None:
        raise MisuseError("a URL with a password would be stored: sign with a secret instead")
    if not url.isprintable() or " " in url or len(url) > 2000:
        raise MisuseError("the URL has characters that none can have, or too many")
    return url


async def post(url: str, headers: Mapping[str, str], body: bytes, *, seconds: float) -> None:
    """Send a body; raises NotDelivered unless the answer is 2xx, within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            status = await _post(urlsplit(url), headers, body)
    except TimeoutError:
        raise NotDelivered(f"no answer within {seconds:g} seconds") from None
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise NotDelivered(f"not reached: {type(error).__name__}: {error}") from error
    if not 200 <= status < 300:
        raise NotDelivered(f"the answer was {status}", is_for_good=status == 410)


async def _post(url: SplitResult, headers: Mapping[str, str], body: bytes) -> int:
    is_encrypted = url.scheme == "https"
    port = url.port or (443 if is_encrypted else 80)
    reader, writer = await asyncio.open_connection(
        url.hostname, port, ssl=ssl.create_default_context() if is_encrypted else None
    )
    try:
        writer.write(_head(url, headers, len(body)) + body)
        await writer.drain()
        return await _status(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(url: SplitResult, headers: Mapping[str, str], length: int) -> bytes:
    host = (
        url.netloc.rpartition("@")[2].encode("idna" if url.netloc.isascii() else "utf-8").decode()
    )
    target = quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        f"?{url.query}" if url.query else ""
    )
    lines = {
        "host": host,
        "connection": "close",
        "user-agent": "holdfast",
        "content-length": str(length),
        **headers,
    }
    headers_text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {target} HTTP/1.1\r\n{headers_text}\r\n".encode()


async def _status(reader: asyncio.StreamReader) -> int:
    """Read the status of the answer; skip interim answers (1xx)."""
    for _ in range(_MOST_LINES):
        line = await reader.readline()
        found = _STATUS.match(line)
        if found is not None and not found[1].startswith(b"1"):
            return int(found[1])
        if not line:
            raise NotDelivered("the connection was closed without an answer")
    raise NotDelivered("the answer is none of HTTP")
