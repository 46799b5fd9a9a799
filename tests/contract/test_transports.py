"""The transport suite on every transport: a URL, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.peers import Transport, open_transport
from holdfast.testing import transport_suite


class UrlCarrier:
    """A transport that is named by a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def transport(self) -> Transport:
        return open_transport(self.url)


CARRIERS = ("sqlite", "postgres")


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UrlCarrier]:
    match request.param:
        case "sqlite":
            yield UrlCarrier(str(tmp_path / "store.db"))
        case _:
            yield UrlCarrier(request.getfixturevalue("postgres_url"))


class TestPublishing(transport_suite.PublishingSuite):
    pass


class TestDelivering(transport_suite.DeliveringSuite):
    pass


class TestSurviving(transport_suite.SurvivingSuite):
    pass
