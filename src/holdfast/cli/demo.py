"""`holdfast demo`: an agent is killed while it charges a bank, and charges it once all the same.

The agent, the bank and whoever goes on are real processes, and the kill is a real SIGKILL.
"""

import contextlib
import os
import select
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from holdfast import settings
from holdfast.demos import handoff as demo_handoff
from holdfast.demos import peers as demo_peers
from holdfast.demos import stage as demo_stage
from holdfast.demos.agent import LIMIT_SECONDS
from holdfast.demos.show import CrashDemo, CrashDemoPlan, WorkerProcess
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable

MOMENTS: Final = ("before", "during", "after")


class _Demos(click.Group):
    """The demos; `crash` unless another is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and not args[0].startswith("-")
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named or asks_for_help else ["crash", *args])


@click.group(cls=_Demos)
def command() -> None:
    """See an agent survive kill -9; `holdfast demo` alone is `holdfast demo crash`."""


command.add_command(demo_peers.peers)
command.add_command(demo_handoff.handoff)


@command.command()
@click.option(
    "--at",
    type=click.Choice(MOMENTS),
    default="during",
    show_default=True,
    help="Kill it before the bank is called, when the bank has charged and the result is not "
    "recorded, or after it is recorded.",
)
@click.option("--without", is_flag=True, help="Show the same agent without Holdfast.")
@click.option("--manual", is_flag=True, help="Kill the worker yourself, whenever you like.")
@common
def crash(options: Options, *, at: str, without: bool, manual: bool) -> None:
    """Kill an agent while it charges a bank.

    A support agent charges a pretend bank, a process with a ledger of its own, and is killed with
    SIGKILL. Another process goes on with its run. Then the charges in the ledger are counted. No
    key, no account, no Docker: the model is scripted. The store is a temporary one, unless --store
    names one: then the run stays there to be looked at.
    """
    if without and (options.store is not None or options.output.format == "ids"):
        raise click.UsageError("without Holdfast there is no store, and no run that has an id")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        plan = CrashDemoPlan(
            store=None if without else demo_stage.store_for(options.store, Path(folder)),
            tenant=options.tenant,
            at=at,
            by_hand=_Keyboard() if manual else None,
            folder=Path(folder),
        )
        timeline = demo_stage.timeline_for(options.output)
        record = CrashDemo(plan, timeline).play()
    shown = None if options.store is None else settings.shown_store(options.store)
    record |= {"without": without, "manual": manual, "store": shown}
    options.output.one(record, ids="run_id", draw=_conclude)


class _Keyboard:
    """The user's hand: shown once what to do, and asked whether Enter was pressed."""

    def __init__(self) -> None:
        self._prompted_pid = 0
        self._input: int | None = None
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._input = sys.stdin.fileno()

    def __call__(self, worker: WorkerProcess) -> bool:
        if self._prompted_pid != worker.pid:
            self._prompted_pid = worker.pid
            say(f"Kill {worker.who} at any moment, from another terminal:  kill -9 {worker.pid}")
            say("It will stand still where --at says, and wait for that. Enter kills it for you;")
            say("Ctrl-C ends the demo.")
        return self._is_enter_pressed()

    def _is_enter_pressed(self) -> bool:
        if self._input is None or not select.select([self._input], [], [], 0)[0]:
            return False
        typed = os.read(self._input, 1024)
        if not typed:
            self._input = None
        return b"\n" in typed


def _conclude(record: Record) -> None:
    write("")
    write(f"bank ledger: {count(record['charges'], 'charge')}")
    write("")
    if record["without"]:
        write(_WITHOUT[record["charges"] > 1])
        write("With Holdfast:      holdfast demo crash")
        return
    write(_SHOWN[record["at"]])
    write(f"The model answered {record['model_calls']} times{_AS_OFTEN[record['model_calls'] > 4]}")
    write("")
    kept, run_id = record["store"], record["run_id"]
    look = f"holdfast journal show {run_id} --store {printable(kept)}" if kept else _KEEP
    write(f"Look at the record: {look}")
    write("Without Holdfast:   holdfast demo crash --without")
    write("At another moment:  --at before, --at during, --at after, or --manual for your own")


_KEEP: Final = "holdfast demo crash --store demo.db keeps it, and says how"

_AS_OFTEN: Final = {
    False: ", as often as without a crash.",
    True: ": a reply that was not recorded yet when the worker was killed had to be given again.",
}

_WITHOUT: Final = {
    True: """The agent's memory died with it: the second process began from the first message, and
charged again.""",
    False: """The agent died before it had charged, so it is one charge. What it did had been
forgotten all the same: --at during shows what that costs.""",
}

_SHOWN: Final = {
    None: """Shown: nothing of the charge was on record when the worker was killed; the other one
went on from the last checkpoint, and charged once.""",
    "before": f"""Shown: the intent to charge was on record, the bank had not been called. The other
worker asked the bank, and there was no charge; it called only when the first call's limit of
{LIMIT_SECONDS:.0f} s was over, because until then that one might still have been on its way.""",
    "during": """Shown: the bank had charged, and its answer died with the worker. The other worker
found the intent on record, asked the bank for a charge with its key, and took that one over.""",
    "after": """Shown: the bank's answer was on record. The other worker went on behind it, and did
not ask the bank at all.""",
}
