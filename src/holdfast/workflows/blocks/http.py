"""`HttpCall`: sends a request, as an effect. One that mutates carries its idempotency key."""

import asyncio
import contextlib
import functools
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from holdfast.agents.definitions.tools import Happened
from holdfast.errors import BlockFailed, NotDone
from holdfast.workflows.access.commands import Captured
from holdfast.workflows.blocks import outside
from holdfast.workflows.blocks.contract import BlockRun
from holdfast.workflows.blocks.outside import EffectClass

if TYPE_CHECKING:
    import httpx

KEY_HEADER: Final = "Idempotency-Key"
_FORM: Final[dict[str, Any]] = {"status": 200, "headers": {}, "body": ""}
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SUCCESS: Final = tuple(range(200, 300))
_MOST_JSON: Final = 16 * 1024 * 1024
_MOST_REDIRECTS: Final = 20
_BODY: Final = "the body"
"""Represents the body among the names of headers; no header has this name."""
_LOGGERS: Final = ("", ".connection", ".http11", ".http2", ".proxy", ".socks")
_is_quiet: Final = ContextVar("holdfast_http_is_quiet", default=False)


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that finds out what became of one that was interrupted, by its status.

    `happened` are those that say it happened: what is answered is then the answer. `not_done` say
    that it did not; any other that nobody can tell.
    """

    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    params: dict[str, Any] = {}
    happened: tuple[int, ...] = _SUCCESS
    not_done: tuple[int, ...] = (404,)


class BasicAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    username: str
    password: str


class HttpInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`json` is sent as JSON, `body` as it is. `expect` are the statuses that are a success."""

    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    params: dict[str, Any] = {}
    json: Any = msgspec.UNSET
    body: str | None = None
    auth: BasicAuth | None = None
    effect: EffectClass | None = None
    verify: VerifyRequest | None = None
    expect: tuple[int, ...] = _SUCCESS
    follow_redirects: bool = False

    @property
    def kind(self) -> EffectClass:
        """What repeating it does: `effect` if given, else derived from the method."""
        return self.effect or ("read" if self.method.upper() in _READING else "mutate")


class HttpCall:
    name: ClassVar[str] = "HttpCall"
    inputs: ClassVar[type[msgspec.Struct]] = HttpInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: HttpInputs) -> dict[str, Any]:
        if inputs.json is not msgspec.UNSET and inputs.body is not None:
            raise BlockFailed("an HttpCall block takes json or body, not both")
        if inputs.verify is not None and inputs.kind != "mutate":
            raise BlockFailed(f"verify is for calls that mutate; this one says {inputs.kind}")
        sending = _Sending(block, inputs.kind)
        found = await outside.call(
            block,
            sending.send,
            name=self.name,
            effect=inputs.kind,
            verify=sending.verify if inputs.verify is not None else None,
            given={
                "request": _request_fields(inputs),
                "verify": msgspec.to_builtins(inputs.verify),
            },
        )
        return _judged(outside.in_form(found, _FORM, "body"), inputs.expect)


def _request_fields(inputs: HttpInputs) -> dict[str, Any]:
    """Return the request in the form to store: with references in place of secrets."""
    fields = msgspec.to_builtins(inputs)
    return {name: fields[name] for name in _SENT if fields.get(name) is not None} | (
        {} if inputs.json is msgspec.UNSET else {"json": inputs.json}
    )


_SENT: Final = ("url", "method", "headers", "params", "body", "auth", "follow_redirects")


class _Sending:
    """Sends the requests of one block."""

    def __init__(self, block: BlockRun, effect: EffectClass) -> None:
        self._secrets = block.secrets
        self._networks = block.networks
        self._seconds = block.seconds
        self._key = block.key
        self._effect = effect

    async def send(self, request: dict[str, Any], verify: dict[str, Any] | None = None) -> Any:
        """Send the request. Raises NotDone if nothing was sent.

        All attempts of a block carry the same key: an answer such as 504 does not mean that
        nothing was done.
        """
        with outside.telling_no(self._secrets):
            sent = self._revealed(request)
            sent["private"] = self._private(request)
            if self._effect != "read":
                sent["headers"] = {**_key_header(sent["headers"], self._key), **sent["headers"]}
            answer = await self._answer(sent)
            if verify is not None and answer["status"] >= 500:
                raise _Doubtful(f"the answer was {answer['status']}, of which nothing follows")
            return answer

    async def verify(self, verify: dict[str, Any]) -> Happened[dict[str, Any]] | NotDone:
        """Send the request that verifies, and return its verdict."""
        asked = msgspec.convert(verify, VerifyRequest)
        request = {"url": asked.url, "method": asked.method, "params": asked.params}
        headers = {**_key_header(asked.headers, self._key), **asked.headers}
        with outside.telling_no(self._secrets):
            answer = await self._answer(self._revealed({**request, "headers": headers}))
            if answer["status"] in asked.happened:
                return Happened(answer)
            if answer["status"] in asked.not_done:
                return NotDone(f"the request that verifies was answered {answer['status']}")
            raise BlockFailed(f"the request that verifies was answered {answer['status']}")

    def _revealed(self, request: dict[str, Any]) -> dict[str, Any]:
        _is_quiet.set(bool(self._secrets.names_in(request)))
        return self._secrets.reveal(request)

    def _private(self, request: dict[str, Any]) -> list[str]:
        """Return the parts and headers of a request that must not go to another host."""
        headers = [
            name for name, value in request["headers"].items() if self._secrets.names_in(value)
        ]
        has_private_body = self._secrets.names_in([request.get("body"), request.get("json")])
        return [*headers, *([_BODY] if has_private_body else [])]

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: only processes that send requests need it.
        import httpx

        from holdfast.workflows.blocks.pinned_requests import transport_for

        _keep_quiet()
        answered: list[int] = []

        async def note(answer: httpx.Response) -> None:
            answered.append(answer.status_code)

        try:
            async with (
                asyncio.timeout(self._seconds),
                httpx.AsyncClient(
                    timeout=self._seconds,
                    event_hooks={"response": [note]},
                    transport=transport_for(self._networks),
                ) as client,
            ):
                return await self._read(await _send(client, request))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.LocalProtocolError) as error:
            if answered:
                raise ConnectionError(f"a redirect led nowhere: {_said(error)}") from None
            raise NotDone(f"nothing was sent: {_said(error)}") from None
        except httpx.TransportError as error:
            raise ConnectionError(f"the connection broke: {_said(error)}") from None
        except TimeoutError:
            raise TimeoutError(f"there was no answer in {self._seconds:g} s") from None

    async def _read(self, answer: "httpx.Response") -> dict[str, Any]:
        captured, whole, size = Captured(), bytearray(), 0
        async for chunk in answer.aiter_bytes():
            captured.add(chunk)
            size += len(chunk)
            if size <= _MOST_JSON:
                whole += chunk
        await answer.aclose()
        found: dict[str, Any] = {
            "status": answer.status_code,
            "headers": self._secrets.redact(dict(answer.headers)),
            "body": captured.text(self._secrets.redact, self._secrets.longest),
        }
        if "json" in answer.headers.get("content-type", "") and size <= _MOST_JSON:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                found["json"] = self._secrets.redact(msgspec.json.decode(whole))
        return found


@functools.cache
def _keep_quiet() -> None:
    """Keep httpx from logging requests with secrets: it would show addresses and headers."""
    for name in ("httpx", *(f"httpcore{each}" for each in _LOGGERS)):
        logging.getLogger(name).addFilter(lambda _: not _is_quiet.get())


async def _send(client: "httpx.AsyncClient", request: dict[str, Any]) -> "httpx.Response":
    import httpx

    fields = dict(request)
    auth, body = fields.pop("auth", None), fields.pop("body", None)
    follow, private = fields.pop("follow_redirects", False), fields.pop("private", [])
    try:
        made = client.build_request(content=body, **fields)
        if made.url.scheme not in ("http", "https") or not made.url.host:
            raise ValueError(f"{made.url} is no address of http:// or https://")
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise NotDone(f"this cannot be sent: {_said(error)}") from None
    given = httpx.BasicAuth(**auth) if auth else None
    answer = await client.send(made, auth=given, stream=True)
    for _ in range(_MOST_REDIRECTS if follow else 0):
        ahead = answer.next_request
        if ahead is None or not _may_follow(answer, ahead, private):
            break
        await answer.aclose()
        answer = await client.send(ahead, auth=None, stream=True)
    return answer


def _may_follow(answer: "httpx.Response", ahead: "httpx.Request", private: list[str]) -> bool:
    """Whether to follow a redirect; private headers are removed for another host."""
    if _origin(ahead.url) == _origin(answer.request.url):
        return True
    if _BODY in private and ahead.method == answer.request.method:
        return False
    for name in private:
        ahead.headers.pop(name, None)
    return True


def _origin(url: "httpx.URL") -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _Doubtful(Exception):
    """An answer that does not tell whether it happened."""


def _key_header(headers: dict[str, str], key: str) -> dict[str, str]:
    has_own = any(name.lower() == KEY_HEADER.lower() for name in headers)
    return {} if has_own else {KEY_HEADER: key}


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _judged(found: dict[str, Any], expect: tuple[int, ...]) -> dict[str, Any]:
    if found["status"] in expect:
        return found
    said = found["body"].strip()[:500]
    raise BlockFailed(
        f"the answer was {found['status']}{f': {said}' if said else ''}", outputs=found
    )
