"""One showing of the crash: a worker is killed, another resumes, and every claim is checked.

The charges are counted in the bank's own ledger, the worker's position is read from the journal,
and the journal is verified. A claim that does not hold ends the demo with an error.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.clock import SystemClock
from holdfast.demos import bank
from holdfast.demos.process import Child, ChildPipe, Event
from holdfast.demos.stage import Timeline
from holdfast.demos.worker import WorkerOrders
from holdfast.errors import HoldfastError
from holdfast.kernel import effects, indexes, runs
from holdfast.kernel.effects import EffectStatus
from holdfast.kernel.journal import Entry, Kind
from holdfast.settings import Settings
from holdfast.sync import Holdfast
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, moment

MANUAL_SECONDS: Final = 600.0
_MANUAL_THINKING_SECONDS: Final = 0.5

Trigger = Callable[["WorkerProcess"], bool]
"""Asked again and again in a showing by hand: whether the demo is to kill the worker itself."""


class WorkerProcess(Child):
    """A child that works on the run."""

    @property
    def who(self) -> str:
        return f"worker {self.pid}"


@dataclass(frozen=True, kw_only=True)
class CrashDemoPlan:
    """What is to be shown. Without a store, the agent works without Holdfast."""

    store: str | None
    tenant: str
    at: str
    by_hand: Trigger | None
    folder: Path


class CrashDemo:
    """One showing, and what it has shown so far."""

    def __init__(self, plan: CrashDemoPlan, timeline: Timeline) -> None:
        self._plan = plan
        self._timeline = timeline
        self._wire = ChildPipe()
        self._run_id = f"demo-{ids.new_run_id()}"
        self._replies = 0
        self._paused_at: str | None = None
        self._last_error = ""

    def play(self) -> Record:
        """Show it; return what was shown."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._wire.close)
            hf = stack.enter_context(self._open()) if self._plan.store is not None else None
            bank = stack.enter_context(self._start_bank())
            port = self._expect_open(bank)
            killed = self._work_until_killed(port)
            at = self._judge_moment(hf)
            held = len(self._ledger())
            self._tell_loss(hf, at, held)
            resumed = self._go_on(port, is_leased=hf is not None)
            charges = self._ledger()
            record = killed | {"at": at, "resumed_pid": resumed}
            record |= self._judge_plainly(held) if hf is None else self._judge(hf)
        counts = {"charges": len(charges), "model_calls": self._replies, "ledger": charges}
        return (
            record | counts | {"seconds": self._timeline.seconds, "timeline": self._timeline.lines}
        )

    def _open(self) -> Holdfast:
        return Holdfast(self._plan.store, settings=Settings(tenant=self._plan.tenant))

    # The processes.

    def _start_bank(self) -> Child:
        # As a file and isolated: it cannot import Holdfast, nor be asked by anything but HTTP.
        command = ["-I", bank.__file__, str(self._plan.folder / "ledger.jsonl")]
        return Child(command, self._wire, log=self._log)

    def _start_worker(self, port: int, *, pause_at: str | None = None) -> WorkerProcess:
        plan = self._plan
        orders = WorkerOrders(
            store=plan.store,
            tenant=plan.tenant,
            run_id=self._run_id,
            port=port,
            folder=str(plan.folder),
            pause_at=pause_at,
            thinking_seconds=_MANUAL_THINKING_SECONDS if pause_at and plan.by_hand else 0.0,
        )
        # -P: a folder named holdfast where the demo is started must not be imported instead.
        command = ["-P", "-m", "holdfast.demos.worker"]
        return WorkerProcess(
            command, self._wire, log=self._log, orders=msgspec.json.encode(orders) + b"\n"
        )

    @property
    def _log(self) -> Path:
        return self._plan.folder / "stderr.txt"

    # The story.

    def _expect_open(self, bank: Child) -> int:
        event = bank.hear()
        if event is None or event["event"] != "open":
            raise self._failed(f"the bank did not open; it said {event}")
        self._take(event)
        return event["port"]

    def _work_until_killed(self, port: int) -> Record:
        with self._start_worker(port, pause_at=self._plan.at) as worker:
            self._timeline.tell(worker.who, "starts")
            if self._plan.by_hand is None:
                self._work_until(worker, "paused")
                code = worker.kill()
            else:
                code = self._await_hand(worker, self._plan.by_hand)
            killed_at = SystemClock().now()
            for event in self._wire.drain():
                self._take(event)
            if code >= 0:
                raise self._failed(f"{worker.who} ended with code {code} before it was killed")
            by = "kill -9" if code == -signal.SIGKILL else signal.Signals(-code).name
            self._timeline.tell("demo", f"{worker.who} is gone, by {by}")
            return {"killed_at": moment(killed_at), "killed_pid": worker.pid}

    def _await_hand(self, worker: WorkerProcess, is_to_kill: Trigger) -> int:
        deadline = time.monotonic() + MANUAL_SECONDS
        while time.monotonic() < deadline:
            if worker.exit_code is not None:
                return worker.exit_code
            if is_to_kill(worker):
                return worker.kill()
            event = self._wire.next(timeout=0.05)
            if event is not None:
                self._take(event)
        raise HoldfastError(f"nobody killed {worker.who} within {MANUAL_SECONDS / 60:.0f} minutes")

    def _tell_loss(self, hf: Holdfast | None, at: str | None, held: int) -> None:
        self._timeline.tell("demo", f"bank ledger: {count(held, 'charge')}")
        if hf is not None:
            self._timeline.tell("demo", f"the run's journal: {_ON_RECORD[at]}")

    def _go_on(self, port: int, *, is_leased: bool) -> int:
        lease = ", and sees that the other one has ended"
        with self._start_worker(port) as worker:
            self._timeline.tell(worker.who, "starts" + (lease if is_leased else ""))
            self._work_until(worker, "ended")
            code = worker.wait()
            if code:
                raise self._failed(f"{worker.who} ended with code {code}")
            return worker.pid

    def _work_until(self, worker: WorkerProcess, wanted: str) -> None:
        while (event := worker.hear()) is not None:
            self._take(event)
            if event["event"] == wanted:
                return
        raise self._failed(f"{worker.who} ended before it {wanted}")

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "replied":
                self._replies += 1
            case "paused":
                self._paused_at = self._plan.at
            case "failed":
                self._last_error = event["what"]
            case _:
                pass
        self._timeline.tell(event["who"], event["what"])

    # The evidence.

    def _ledger(self) -> list[Record]:
        text = (self._plan.folder / "ledger.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def _judge_moment(self, hf: Holdfast | None) -> str | None:
        """Return where the worker was when it was killed, by the journal and the ledger."""
        if hf is None:
            return self._paused_at
        found = [e.status for e in hf.effects.of_run(self._run_id) if e.tool == "charge"]
        if not found:
            at = None
        elif EffectStatus.COMPLETED in found:
            at = "after"
        else:
            at = "during" if self._ledger() else "before"
        if self._plan.by_hand is None and at != self._plan.at:
            raise self._failed(f"the worker was to be killed {self._plan.at} the charge, not {at}")
        return at

    def _judge(self, hf: Holdfast) -> Record:
        """Check what Holdfast promises."""
        run = hf.runs.get(self._run_id)
        entries = hf.journal.read(self._run_id)
        problems = hf.journal.verify(self._run_id)
        leases = [entry for entry in entries if entry.kind == Kind.RUN_LEASED]
        charges = self._ledger()
        if len(charges) != 1:
            raise self._failed(f"the bank has {count(len(charges), 'charge')}, not one")
        if problems:
            raise self._failed(f"the journal's chain is broken: {problems}")
        answer: Any = (
            hf.runs.result(self._run_id) if run.status is runs.RunStatus.COMPLETED else None
        )
        if charges[0]["id"] not in str(answer):
            raise self._failed(f"the run is {run.status}, and its answer is {answer!r}")
        workers = [indexes.facts_of(lease).worker for lease in leases]
        if self._plan.by_hand is None and workers[0] == workers[-1]:
            raise self._failed(f"worker {workers[0]} began the run, and ended it")
        self._timeline.tell("demo", f"the run's journal: {', '.join(_story(entries))}")
        self._timeline.tell("demo", f"its {len(entries)} entries are verified, the chain is whole")
        return {
            "run_id": self._run_id,
            "run_status": run.status.value,
            "resumed_by": workers[-1],
            "answer": answer,
            "entries": len(entries),
        }

    def _judge_plainly(self, held: int) -> Record:
        """Check that the agent without Holdfast has begun from scratch."""
        charges = len(self._ledger())
        if self._plan.by_hand is None and charges != held + 1:
            raise self._failed(f"the bank has {count(charges, 'charge')}, not {held + 1}")
        return dict.fromkeys(("run_id", "run_status", "resumed_by", "answer", "entries"))

    def _failed(self, what: str) -> HoldfastError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        because = self._last_error or (lines[-1] if lines else "")
        return HoldfastError(f"the demo failed: {what}" + (f" ({because})" if because else ""))


_ON_RECORD: Final = {
    None: "nothing of a charge",
    "before": "EFFECT_ISSUED charge, no result",
    "during": "EFFECT_ISSUED charge, no result",
    "after": "EFFECT_ISSUED charge, EFFECT_COMPLETED",
}


def _story(entries: list[Entry]) -> list[str]:
    """Return what the journal says about the charge."""
    lines: list[str] = []
    charges: set[Any] = set()
    for entry in entries:
        match indexes.facts_of(entry):
            case effects.Issued(effect_id, _, "charge"):
                charges.add(effect_id)
                lines.append("EFFECT_ISSUED charge")
            case effects.EffectSettled(effect_id, note) if effect_id in charges:
                lines.append(f"{entry.kind} ({note})" if note else entry.kind)
            case _:
                pass
    return lines
