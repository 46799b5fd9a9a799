"""The transport suite on every transport: a URL, and nothing else."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from holdfast.peers import Transport, open_transport
from holdfast.testing import transport_suite
from holdfast.testing.nats import nats_server


class UrlCarrier:
    """A transport that is named by a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def transport(self) -> Transport:
        return open_transport(self.url)


NUMBERS = count(1)
CARRIERS = ("sqlite", "postgres", "jetstream")


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UrlCarrier]:
    match request.param:
        case "sqlite":
            yield UrlCarrier(str(tmp_path / "store.db"))
        case "jetstream":
            server = request.getfixturevalue("nats_url")
            yield UrlCarrier(f"{server}?stream=S{next(NUMBERS)}&prefix=p{next(NUMBERS)}")
        case _:
            yield UrlCarrier(request.getfixturevalue("postgres_url"))


class TestPublishing(transport_suite.PublishingSuite):
    pass


class TestDelivering(transport_suite.DeliveringSuite):
    pass


class TestSurviving(transport_suite.SurvivingSuite):
    pass
