"""One POST through httpx, of which only the status is of interest: no redirects, no cookies."""

import asyncio
import importlib
import importlib.util
import ssl
from collections.abc import Mapping
from types import ModuleType
from urllib.parse import urlsplit

from holdfast.errors import MisuseError


class NotDelivered(Exception):
    """Nobody has confirmed the delivery. The text says why, without anything secret."""

    def __init__(self, why: str, *, is_for_good: bool = False) -> None:
        super().__init__(why)
        self.is_for_good = is_for_good


def check_url(url: str) -> str:
    """Return a URL that can be posted to; raises MisuseError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise MisuseError(f"{url!r} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise MisuseError(
            f"{url!r} is not a URL of http or https, such as https://example.org/hook"
        )
    if parts.username is not None or parts.password is not None:
        raise MisuseError("a URL with a password would be stored: sign with a secret instead")
    if not url.isprintable() or " " in url or len(url) > 2000:
        raise MisuseError("the URL has characters that a URL cannot have, or over 2,000 of them")
    return url


async def post(url: str, headers: Mapping[str, str], body: bytes, *, seconds: float) -> None:
    """Send a body; raises NotDelivered unless the answer is 2xx, within so many seconds."""
    httpx = _httpx()
    # A client loads certificates when it is made, also for addresses that need none.
    verify = ssl.create_default_context() if url.startswith("https:") else False
    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=verify, timeout=None, trust_env=False) as client,
            client.stream(
                "POST", url, headers={"user-agent": "holdfast", **headers}, content=body
            ) as answer,
        ):
            status: int = answer.status_code
    except TimeoutError:
        raise NotDelivered(f"no answer within {seconds:g} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise NotDelivered(f"not reached: {type(error).__name__}: {error}") from error
    if not 200 <= status < 300:
        raise NotDelivered(f"the answer was {status}", is_for_good=status == 410)


def _httpx() -> ModuleType:
    """Return httpx. Only workers that post need it, not those that deliver into queues."""
    if importlib.util.find_spec("httpx") is None:
        raise NotDelivered("this worker lacks httpx to post with: pip install 'holdfast[webhooks]'")
    return importlib.import_module("httpx")
