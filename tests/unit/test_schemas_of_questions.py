"""The JSON Schema of a question is data: checking an answer reaches nothing outside."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from holdfast.agents.definitions import questions
from holdfast.errors import AnswerRefused, MisuseError


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and what it is asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/schema", paths
        finally:
            server.shutdown()
            thread.join()


def test_a_schema_that_names_another_by_its_address_fetches_nothing(
    asked: tuple[str, list[str]],
) -> None:
    address, paths = asked
    with pytest.raises(AnswerRefused, match="cannot be used"):
        questions.check_answer("x", schema={"$ref": address}, choices=None)
    with pytest.raises(MisuseError, match="cannot be used"):
        questions.schema_of({"$ref": address})
    assert paths == []
