"""The options of `holdfast mcp`, and what people write for them."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

import click

from holdfast.edges.mcp.http import LOOPBACK

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIFETIME: Final = re.compile(r"([1-9]\d{0,5}) *([smhd])")


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class AddressType(click.ParamType[Address]):
    """A port, or a host and a port: 8000, 0.0.0.0:8000, [::1]:8000."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        host, _, port = str(value).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is no [HOST:]PORT, as 8000 or 127.0.0.1:8000 is", param, ctx)
        return Address(host.strip("[]") or LOOPBACK, int(port))


class Lifetime(click.ParamType[timedelta]):
    """A length of time: 90s, 15m, 12h, 30d."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        found = _LIFETIME.fullmatch(str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is no length of time, as 12h or 30d is", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


_OPTIONS = (
    click.option("--workflows", metavar="DIR", help="A folder of definitions of workflows."),
    click.option(
        "--expose",
        metavar="AGENT",
        multiple=True,
        help="Make a tool of this agent of --app; may be given again.",
    ),
    click.option(
        "--http",
        type=AddressType(),
        metavar="[HOST:]PORT",
        help=f"Serve over HTTP, on {LOOPBACK} unless a host is named; port 0 is any.",
    ),
    click.option(
        "--tokens",
        metavar="FILE",
        help="Who may use it over HTTP: see `holdfast mcp token`. Without it only this machine.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        metavar="NAME",
        multiple=True,
        help="A name under which requests over HTTP may reach it; may be given again.",
    ),
    click.option(
        "--key-file",
        metavar="FILE",
        help="Keys, one per line, that seal what clients bring back with an answer; replicas "
        "share them [default: HOLDFAST_MCP_KEYS, else one made for this user].",
    ),
    click.option(
        "--state-days",
        type=click.FloatRange(0, 3650, min_open=True),
        default=7.0,
        show_default=True,
        help="For how long a form can be answered; after that, with the tools.",
    ),
    click.option(
        "--inline/--no-inline",
        "is_inline",
        default=None,
        help="Whether clients may bring workflows of their own, whose blocks run any command here "
        "[default: over stdio yes, over HTTP no].",
    ),
    click.option("--no-worker", is_flag=True, help="Leave the work to workers elsewhere."),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 10_000),
        default=8,
        show_default=True,
        help="At most so many runs at a time.",
    ),
)


def serving(run: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of serving."""
    for option in reversed(_OPTIONS):
        run = option(run)
    return run
