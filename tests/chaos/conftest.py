"""How much chaos: a little in `make test`, much with `--chaos`; and the seed it is made from."""

import logging
import random

import pytest


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What all choices are made from. Timing is the machine's, so a repeat is alike, not equal."""
    given = request.config.getoption("--chaos-seed")
    chosen = random.randrange(2**32) if given is None else given
    print(f"--chaos-seed {chosen}")  # pytest shows it when the test fails, however it does
    return chosen


@pytest.fixture(autouse=True)
def quiet_driver(caplog: pytest.LogCaptureFixture) -> None:
    """pytest keeps all that is logged; the driver logs each connection that is lost, with it."""
    caplog.set_level(logging.ERROR, logger="psycopg")
