"""A process that receives webhooks on loopback, and notes the events of each that is signed.

It answers as its first argument says: `well`, or `badly`: now and then 500, no answer, or none
after having noted all. It checks signatures by itself: nothing of Holdfast is used here.
"""

import base64
import hashlib
import hmac
import json
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

_, mood, port, secret, ledger = sys.argv
random_ = random.Random(11)
lock = Lock()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        chance = random_.random() if mood == "badly" else 1.0
        if chance < 0.25:
            self.send_error(500)
        elif chance < 0.4:
            self.close_connection = True
        elif not self.is_signed(body):
            self.send_error(401)
        else:
            self.note(json.loads(body))
            if chance < 0.6:
                self.close_connection = True
            else:
                self.send_response(204)
                self.end_headers()

    def is_signed(self, body: bytes) -> bool:
        id_, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = f"{id_}.{at}.".encode() + body
        digest = hmac.digest(secret.encode(), signed, hashlib.sha256)
        is_new = abs(time.time() - int(at)) < 300
        return (
            is_new
            and self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        )

    def note(self, events: list[dict[str, Any]]) -> None:
        assert self.headers["content-type"].startswith("application/cloudevents-batch+json")
        lines = "".join(json.dumps(event) + "\n" for event in events)
        with lock, Path(ledger).open("a") as file:
            file.write(lines)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Receiver)
    print(json.dumps(server.server_port), flush=True)
    server.serve_forever()
