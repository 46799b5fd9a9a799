"""The command line: `holdfast NOUN VERB`, one module per noun, imported when it is named.

Data goes to stdout, everything else to stderr; `exits` has the exit codes.
"""

import importlib
import io
import sys
from typing import Final, cast

import click

from holdfast.terminal import exits
from holdfast.terminal.exits import Exit

COMMANDS: Final = {
    "runs": "Start, list, watch, hand over, recover, cancel and rewind runs.",
    "checkpoints": "Look at what runs have saved, and at what changed.",
    "journal": "Read the record of a run, or follow it.",
    "events": "Follow what happens in all runs, as CloudEvents.",
    "webhooks": "Let events be delivered to others, signed, each at least once.",
    "workflows": "Write, run, answer and watch workflows.",
    "effects": "See calls whose outcome is open, and say what became of them.",
    "approvals": "Answer what runs ask people, and approve their calls.",
    "messages": "See what is under way between runs and their peers.",
    "schedules": "See what is started again and again, and when it is due.",
    "worker": "Work on runs until stopped.",
    "workers": "See who works on runs.",
    "mcp": "Serve workflows and agents to MCP clients, over stdio or HTTP.",
    "audit": "Check that what is stored is what was written.",
    "store": "Look after the store itself.",
    "spool": "See what this machine keeps for a store that is away.",
    "config": "Check a configuration, and see what counts and why.",
    "import": "Bring in what other savers have stored.",
    "demo": "See a run survive kill -9.",
}
_MODULES: Final = {"import": "imports"}  # a Python keyword cannot name a module


class _LazyGroup(click.Group):
    """Knows its commands by name; a command's module is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"holdfast.cli.{_MODULES.get(cmd_name, cmd_name)}"
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise click.ClickException(str(error)) from error
        return cast(click.Command, module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from holdfast.config.documents import nearest  # only a mistake needs it

            ctx.fail(f"there is no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def _root() -> None:
    """Durable state for AI agents.

    The store is the one named with --store, else HOLDFAST_STORE, else holdfast.db in this folder.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    try:
        code = _root.main(prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if exits.wants_json(sys.argv[1:]):
            exits.tell_json(type(error).__name__, error.format_message())
        else:
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except OSError as error:
        return exits.tell(error)
    return int(code or Exit.OK)
