"""The pretend bank of `holdfast demo`: a separate process, started as a file, not as a module.

It imports nothing of Holdfast. It records every charge it is asked for, also one with a key that it
knows: its ledger is an honest count of what the agent did outside. A charge is on disk before it
is answered. The bank says what it does on stdout, and ends when its stdin does.

    POST /charges            {"key": …, "customer": …, "cents": …}  the charge as it was recorded
    GET  /charges?key=KEY    the charges with that key
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Charge = dict[str, Any]


class ChargeLedger:
    """The charges, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._charges: list[Charge] = []
        path.touch()

    def add(self, key: str, customer: str, cents: int) -> Charge:
        with self._lock:
            charge = {
                "id": f"ch-{len(self._charges) + 1}",
                "key": key,
                "customer": customer,
                "cents": cents,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(charge) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._charges.append(charge)
        return charge

    def find(self, key: str) -> list[Charge]:
        with self._lock:
            return [charge for charge in self._charges if charge["key"] == key]


class Bank(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, ledger: ChargeLedger) -> None:
        super().__init__(("127.0.0.1", 0), Counter)
        self.ledger = ledger


class Counter(BaseHTTPRequestHandler):
    """Serves one customer of the bank."""

    @property
    def _ledger(self) -> ChargeLedger:
        assert isinstance(self.server, Bank), "opened by no other server"
        return self.server.ledger

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        charge = self._ledger.add(asked["key"], asked["customer"], asked["cents"])
        say("charged", f"charge {charge['id']} of {charge['cents'] / 100:.2f} is in the ledger")
        self._answer(charge)

    def do_GET(self) -> None:
        (key,) = parse_qs(urlsplit(self.path).query)["key"]
        self._answer(self._ledger.find(key))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: what matters is written to stdout."""

    def _answer(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def say(event: str, what: str, **more: object) -> None:
    # One write: others write to the same pipe, and lines must not mix.
    line = json.dumps({"who": "bank", "event": event, "what": what} | more)
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    with Bank(ChargeLedger(Path(sys.argv[1]))) as bank:
        port = bank.server_address[1]
        say("open", f"opens with an empty ledger on 127.0.0.1:{port}", port=port)
        bank.serve_forever()


if __name__ == "__main__":
    main()
