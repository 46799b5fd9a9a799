"""`holdfast demo handoff`: an agent fills its context, hands over twice, is killed once, finishes.

The workers are real processes, the kill is a real SIGKILL, and the chain is the journal's.
"""

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from holdfast import ids, settings
from holdfast.agents.turn.context_usage import CONTEXT
from holdfast.demos import stage
from holdfast.demos.handoff_instance import AGENT, ITEMS, WINDOW, HandoffOrders, make_agent
from holdfast.demos.process import PATIENCE_SECONDS, Child, ChildPipe
from holdfast.demos.stage import Timeline
from holdfast.errors import HoldfastError
from holdfast.kernel import runs
from holdfast.kernel.journal import Kind
from holdfast.settings import Settings
from holdfast.sync import Holdfast
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable

_KILLED_AT: Final = 5
_LOOK_SECONDS: Final = 0.1


@click.command()
@common
def handoff(options: Options) -> Exit:
    """Let an agent hand its work to fresh contexts, and kill one of them.

    A scripted agent builds nine items. Its context fills; before it uses 70 % of the window, a
    fresh one resumes, and knows the work from its record. One worker is killed with SIGKILL;
    another one recovers the run from its last checkpoint. No key, no account, no Docker. The store
    is a temporary one, unless --store names one.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        store = stage.store_for(options.store, Path(folder))
        timeline = stage.timeline_for(options.output)
        record = _Showing(store, options.tenant, Path(folder), timeline).play()
    shown = None if options.store is None else settings.shown_store(options.store)
    record |= {"store": shown}
    options.output.one(record, ids="run_id", draw=_conclude)
    if record["problems"]:
        say(f"the demo failed: {count(len(record['problems']), 'promise')} did not hold")
    return Exit.FAILED if record["problems"] else Exit.OK


class _Showing:
    """One showing: two workers one after the other, and what the journal says in the end."""

    def __init__(self, store: str, tenant: str, folder: Path, timeline: Timeline) -> None:
        self._store = store
        self._tenant = tenant
        self._folder = folder
        self._timeline = timeline
        self._wire = ChildPipe()
        self._run_id = f"demo-{ids.new_run_id()}"
        self._kills = 0

    def play(self) -> Record:
        with contextlib.ExitStack() as stack:
            stack.callback(self._wire.close)
            hf = stack.enter_context(Holdfast(self._store, settings=Settings(tenant=self._tenant)))
            builder = make_agent(lambda event, what: None)
            hf.start(builder, f"build {ITEMS} items", run_id=self._run_id)
            self._timeline.tell("client", f"asks for {ITEMS} items, and waits")
            with self._worker(stand_still_at=_KILLED_AT) as first:
                self._watch(hf, first, until="still")
                code = first.kill()
                self._kills += 1
                self._timeline.tell("demo", f"worker {first.pid} is gone, by signal {-code}")
            with self._worker() as second:
                self._watch(hf, second, until="")
            return self._count(hf)

    def _worker(self, *, stand_still_at: int = 0) -> Child:
        orders = HandoffOrders(
            store=self._store, tenant=self._tenant, stand_still_at=stand_still_at
        )
        command = ["-P", "-m", "holdfast.demos.handoff_instance"]
        return Child(
            command,
            self._wire,
            log=self._folder / "stderr.txt",
            orders=msgspec.json.encode(orders) + b"\n",
        )

    def _watch(self, hf: Holdfast, worker: Child, *, until: str) -> None:
        """Show the events until the event `until`; without it, until the run has ended."""
        moved_at = time.monotonic()
        while time.monotonic() - moved_at < PATIENCE_SECONDS:
            event = self._wire.next(timeout=_LOOK_SECONDS)
            if event is not None:
                moved_at = time.monotonic()
                self._timeline.tell(event["who"], event["what"])
                if event["event"] == "failed":
                    raise HoldfastError(f"the demo failed: {event['what']}")
                if until and event["event"] == until:
                    return
            elif not until and hf.runs.get(self._run_id).status in runs.ENDED:
                return
            if worker.exit_code is not None:
                raise HoldfastError(f"the demo failed: worker ended with {worker.exit_code}")
        raise HoldfastError("the demo failed: nothing happens")

    def _count(self, hf: Holdfast) -> Record:
        """Return what the journal says, and what in it is wrong."""
        run = hf.runs.get(self._run_id)
        given = hf.handoffs.of_run(self._run_id)
        kinds = [entry.kind for entry in hf.journal.read(self._run_id, limit=10_000)]
        used = [
            hf.checkpoints.load(self._run_id, version=each.version)[CONTEXT]["max_utilization"]
            for each in given
        ]
        chain = [
            {
                "context": at,
                "agent": each.giver,
                "checkpoint_id": str(each.checkpoint_id),
                "version": each.version,
                "trigger": each.trigger,
                "handoff": each.status,
                "utilization": round(share, 3),
            }
            for at, (each, share) in enumerate(zip(given, used, strict=True), 1)
        ]
        acknowledged = sum(each.status == "acknowledged" for each in given)
        line = self._timeline
        result = hf.runs.result(self._run_id) if run.status in runs.ENDED else None
        record = {
            "run_id": self._run_id,
            "handoffs": acknowledged,
            "kills": self._kills,
            "recoveries": kinds.count(Kind.RECOVERY_COMPLETED),
            "run_status": run.status.value,
            "result": result,
            "chain": chain,
            "max_context_utilization": round(max(used, default=0.0), 3),
            "entries": len(kinds),
            "is_chain_whole": not hf.journal.verify(self._run_id),
            "seconds": line.seconds,
            "timeline": line.lines,
        }
        return record | {"problems": _problems(record)}


def _problems(record: Record) -> list[str]:
    checks = {
        "the run has not completed": record["run_status"] == "completed",
        "not every item was built": record["result"] == f"all {ITEMS} items are built",
        "it was not handed over twice": record["handoffs"] >= 2,
        "the killed worker's run was not recovered": record["recoveries"] >= 1,
        "a context used more than 70 % of the window": record["max_context_utilization"] < 0.7,
        "the chain of the journal is broken": record["is_chain_whole"],
    }
    return [problem for problem, holds in checks.items() if not holds]


def _conclude(record: Record) -> None:
    write("")
    for link in record["chain"]:
        write(
            f"context {link['context']}  {link['agent']}  checkpoint {link['checkpoint_id']} "
            f"(version {link['version']}, {link['utilization']:.0%} of {WINDOW:,} tokens)"
        )
        write(f"           ↓ handed over ({link['trigger']}), {link['handoff']}")
    write(f"context {len(record['chain']) + 1}  {AGENT}  run {record['run_status']}")
    write("")
    for problem in record["problems"]:
        write(printable(problem))
    if record["problems"]:
        return
    done = f"{count(record['handoffs'], 'handoff')}, {count(record['kills'], 'kill')}"
    write(f"Shown: {done}, and every item was built once: {printable(str(record['result']))}.")
    most = f"{record['max_context_utilization']:.0%}"
    write(f"No context used more than {most} of its window. Each knew the work from a record")
    entries = f"Its {record['entries']} entries are verified"
    write(f"that is data, not instructions. {entries}, the chain is whole.")
    write("")
    kept, run_id = record["store"], record["run_id"]
    look = f"holdfast runs handoffs {run_id} --store {printable(kept or '')}"
    write(f"Look at the chain: {look if kept else _KEEP}")


_KEEP: Final = "holdfast demo handoff --store demo.db keeps it, and says how"
