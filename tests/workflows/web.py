"""A server on the loopback that knows nothing of Holdfast: it counts what it is asked to do."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Web:
    """`seen` are all requests; `done` the keys of those that had consequences."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.done: list[str] = []
        self.url = ""
        self.away = ""
        self.release = threading.Event()
        self.during: Callable[[], None] = lambda: None


class Handler(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        parts = urlsplit(self.path)
        request = {
            "method": self.command,
            "path": parts.path,
            "query": parse_qs(parts.query),
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(size).decode(),
        }
        self.web.seen.append(request)
        answer = getattr(self, f"do_{parts.path.strip('/').partition('/')[0]}")
        answer(request)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    def reply(self, status: int, body: str = "", kind: str = "text/plain", **more: str) -> None:
        raw = body.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_echo(self, request: Any) -> None:
        sent = json.dumps(request)
        self.reply(200, sent, "application/json", Echo=request["headers"].get("token", "-"))

    def do_status(self, request: Any) -> None:
        self.reply(int(request["path"].rpartition("/")[2]), request["body"] or "as asked")

    def do_moved(self, request: Any) -> None:
        self.reply(302, Location="/echo")

    def do_away(self, request: Any) -> None:
        self.reply(307, Location=self.web.away)

    def do_large(self, request: Any) -> None:
        self.reply(200, "first" + "x" * 1_000_000 + "last")

    def do_huge(self, request: Any) -> None:
        self.reply(200, f'"{"x" * 16 * 1024 * 1024}"', "application/json")

    def do_broken(self, request: Any) -> None:
        self.reply(200, "{no json", "application/json")

    def do_slow(self, request: Any) -> None:
        self.web.release.wait(60)
        self.close_connection = True

    def do_pay(self, request: Any) -> None:
        """Do something, and answer; /pay/lost loses the answer, /pay/never does nothing."""
        key = request["headers"]["idempotency-key"]
        if not request["path"].endswith("never"):
            self.web.done.append(key)
            self.web.during()
        if request["path"].endswith(("lost", "never")):
            self.close_connection = True
            return
        self.reply(503 if request["path"].endswith("503") else 201, f"paid {key}")

    def do_paid(self, request: Any) -> None:
        key = request["headers"]["idempotency-key"]
        self.reply(200 if key in self.web.done else 404, f"paid {key}")


@contextmanager
def serving() -> Generator[Web]:
    web = Web()
    own = type("Own", (Handler,), {"web": web})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield web
    finally:
        web.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
