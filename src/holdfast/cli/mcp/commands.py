"""`holdfast mcp`: workflows and agents for MCP clients, and the tokens of those clients."""

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from holdfast import clock, settings
from holdfast.app import Holdfast
from holdfast.cli.mcp.options import Address, Lifetime, serving
from holdfast.cli.workflows.use import Use, using
from holdfast.edges.mcp import McpServer, TokenFile
from holdfast.edges.mcp.access import keys, tokens
from holdfast.edges.mcp.access.principals import OPERATOR
from holdfast.edges.mcp.stdio import StdioWire
from holdfast.errors import MisuseError
from holdfast.terminal import exits
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common, printing
from holdfast.terminal.output import TerminalOutput, say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import moment

_AT_ONCE_SECONDS: Final = 5.0
_DAY_SECONDS: Final = 86_400


class How(msgspec.Struct, frozen=True, kw_only=True):
    """The options of serving."""

    workflows: str | None
    expose: tuple[str, ...]
    http: Address | None
    tokens: str | None
    allowed_hosts: tuple[str, ...]
    key_file: str | None
    state_days: float
    is_inline: bool | None
    no_worker: bool
    concurrency: int

    def server(self, hf: Holdfast) -> McpServer:
        """The server over a program, not begun yet."""
        return McpServer(
            hf,
            workflows=self.workflows,
            expose=[hf.agent(name) for name in self.expose],
            inline=self.http is None if self.is_inline is None else self.is_inline,
            keys=keys.find(self.key_file),
            state_seconds=self.state_days * _DAY_SECONDS,
            works=not self.no_worker,
            concurrency=self.concurrency,
        )

    def check(self, url: str) -> None:
        """Refuse what contradicts itself, before anything is opened."""
        if self.http is None and (self.tokens or self.allowed_hosts):
            raise click.UsageError("--tokens and --allowed-host are for --http")
        if self.no_worker and settings.locate_store(url) == ("sqlite", ""):
            raise MisuseError("a store in memory has no workers of other processes; name a file")


@click.group(invoke_without_command=True)
@using
@serving
@common
def command(
    options: Options,
    *,
    use: Use,
    **how: Any,
) -> Exit | None:
    """Serve workflows and agents to MCP clients.

    Over stdin and stdout, for a client that starts this command itself: let it run `holdfast mcp
    --app MODULE:NAME`, or `holdfast mcp --workflows DIR`. With --http it serves on a port of this
    machine; others reach it only if --tokens has a file of their tokens.

    A worker of this process works on the runs. If the client or this process ends, the runs stay;
    whoever serves the same store goes on with them. SIGTERM, and the end of stdin, hand the runs
    back after their turns (exit code 0); a second signal does so at once.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    chosen = How(**how)
    chosen.check(options.url)
    if chosen.http is None and os.isatty(0):
        say(
            "this speaks MCP on stdin and stdout: a client should start it, as docs/how-to/"
            "mcp-server.md shows; Ctrl-C ends it (--http PORT serves on a port)"
        )
    # Before the program is imported: what it prints must not be taken for the protocol.
    wire = StdioWire.take() if chosen.http is None else None
    hf = use.program(options)
    return asyncio.run(_serve(hf, chosen, wire))


async def _serve(hf: Holdfast, how: How, wire: StdioWire | None) -> Exit:
    async with hf, how.server(hf) as server:
        stopping = server.stopping
        stopping.when_wanted.append(lambda: _tell_stopping(stopping.signals))
        stopping.when_at_once.append(lambda: exits.end_after(_AT_ONCE_SECONDS))
        if how.http is None:
            await server.serve_stdio(wire)
        else:
            await server.serve_http(
                how.http.host,
                how.http.port,
                verifier=None if how.tokens is None else TokenFile(how.tokens),
                allowed_hosts=how.allowed_hosts,
                on_serving=lambda url: say(f"serving MCP on {url}"),
            )
    return Exit.INTERRUPTED if stopping.is_interrupted else Exit.OK


def _tell_stopping(signals: "list[signal.Signals]") -> None:
    if signals:
        say(
            f"{signals[0].name}: taking no more requests and runs; those under way are handed back "
            "when their turns have ended (a second signal stops them at once)"
        )


@command.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([OPERATOR]),
    multiple=True,
    help="operator: sees the runs of all, and answers what they ask.",
)
@click.option("--expires", type=Lifetime(), help="For how long, as 12h or 30d [default: for ever].")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("mcp.tokens"),
    show_default=True,
    help="Where its digest is kept: what `--tokens` is given.",
)
@printing
def token(
    out: TerminalOutput,
    *,
    name: str,
    scopes: tuple[str, ...],
    expires: timedelta | None,
    file: Path,
) -> None:
    """Make a token for NAME, who may then use the server over HTTP.

    It is shown this once: the file has its digest only. Servers see the new line by themselves.
    To take a token back, delete its line.
    """
    made, line = tokens.add(file, name, scopes=list(dict.fromkeys(scopes)), lifetime=expires)
    until = None if line.expires_at is None else moment(line.expires_at * clock.MICROSECONDS)
    record: Record = {
        "name": line.name,
        "token": made,
        "scopes": list(line.scopes),
        "expires_at": until,
        "file": str(file),
    }
    out.one(record, ids="token", draw=_draw_token)


def _draw_token(record: Record) -> None:
    write(record["token"])
    until = record["expires_at"] or "it is taken back"
    say(f"a token for {record['name']} until {until}; its digest is in {record['file']}")
