"""Serving over HTTP: one endpoint for both wires, who may reach it, and its end.

Clients of older protocols get no sessions, unless their events are kept: a session would live in
one process, and be lost with it. So any replica answers any request, before and after a restart.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.edges.mcp.shutdown import ANSWER_SECONDS, Shutdown
from holdfast.errors import HoldfastError, MisuseError

PATH: Final = "/mcp"
HEALTH: Final = "/healthz"
LOOPBACK: Final = "127.0.0.1"
_RETRY_MILLISECONDS: Final = 500
_HEALTH_SECONDS: Final = 5.0
_NEAR: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Door:
    """Who may reach a server: without a `verifier` of tokens, only this machine.

    `allowed_hosts` are names under which a browser may reach it. `auth` announces an
    authorization server to clients. With `events`, clients of older protocols get sessions, and can
    resume a stream that broke off.
    """

    host: str = LOOPBACK
    verifier: TokenVerifier | None = None
    auth: AuthSettings | None = None
    allowed_hosts: Sequence[str] = ()
    events: EventStore | None = None

    def __post_init__(self) -> None:
        if self.verifier is None and not is_loopback(self.host):
            raise MisuseError(
                f"without tokens everybody who reaches {self.host} could use this server; serve on "
                f"{LOOPBACK}, or check tokens: --tokens FILE, or verifier= in Python"
            )
        if self.auth is not None and self.verifier is None:
            raise MisuseError("auth= tells where tokens come from; give a verifier= of them too")

    @property
    def security(self) -> TransportSecuritySettings:
        """Which Host and Origin headers are accepted.

        A page in a browser can be made to reach this machine under its own name; that name
        identifies it. With tokens it is harmless, since the page has none.
        """
        near = [*_NEAR, _in_url(self.host)] if is_loopback(self.host) else []
        hosts = [*near, *self.allowed_hosts]
        return TransportSecuritySettings(
            enable_dns_rebinding_protection=bool(hosts),
            allowed_hosts=[name for host in hosts for name in (host, f"{host}:*")],
            allowed_origins=[
                f"{scheme}://{name}"
                for host in hosts
                for scheme in ("http", "https")
                for name in (host, f"{host}:*")
            ],
        )


def app_of(server: Server[Any], hf: Holdfast, door: Door) -> Starlette:
    """The server as an ASGI application, with /mcp and /healthz."""
    has_sessions = door.events is not None
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=not has_sessions,
        event_store=door.events,
        retry_interval=_RETRY_MILLISECONDS if has_sessions else None,
        transport_security=door.security,
        host=door.host,
        auth=_auth_of(door),
        token_verifier=door.verifier,
        custom_starlette_routes=[Route(HEALTH, _Health(hf).tell, methods=["GET"])],
    )
    if not has_sessions:
        app.add_middleware(_NoStandingStream)
    return app


async def serve(
    app: Starlette, door: Door, port: int, stopping: Shutdown, report: Callable[[str], None]
) -> None:
    """Serve until `stopping`: answer the requests under way, accept no new ones."""
    with _bound(door.host, port) as bound:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=round(ANSWER_SECONDS),
        )
        serving = _Serving(config)
        stopping.when_wanted.append(serving.stop)
        stopping.when_at_once.append(serving.stop_at_once)
        if stopping.is_wanted:
            return
        report(f"http://{_in_url(door.host)}:{bound.getsockname()[1]}{PATH}")
        await serving.serve(sockets=[bound])


class _Serving(uvicorn.Server):
    """Uvicorn without signals: they stop the worker too, so they are taken elsewhere."""

    @contextlib.contextmanager
    def capture_signals(self) -> "Generator[None]":
        yield

    def stop(self) -> None:
        self.should_exit = True

    def stop_at_once(self) -> None:
        self.should_exit = self.force_exit = True


class _NoStandingStream:
    """Refuses a stream for unsolicited server messages: the server sends none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == PATH:
            refusal = JSONResponse(
                {"error": "there is no stream to GET here; POST requests"},
                status_code=405,
                headers={"Allow": "POST"},
            )
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Health:
    """Report whether the store can be reached, and nothing else: everybody may ask."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    async def tell(self, request: Request) -> JSONResponse:
        try:
            await asyncio.wait_for(self._hf.runs.list(limit=1), _HEALTH_SECONDS)
        except (HoldfastError, OSError):
            return JSONResponse({"status": "unavailable"}, status_code=503)
        return JSONResponse({"status": "ok"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _auth_of(door: Door) -> AuthSettings | None:
    if door.verifier is None or door.auth is not None:
        return door.auth
    # The SDK wants an issuer; without the URL of a resource it is not published.
    return AuthSettings(
        issuer_url=AnyHttpUrl("http://localhost"),
        resource_server_url=None,
        validate_token_resource=False,
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except (OSError, OverflowError) as error:
        raise MisuseError(
            f"cannot listen on {host}, port {port}: {error}; choose another one, or 0 for any"
        ) from error


def _in_url(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host
