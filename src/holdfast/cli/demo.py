"""`holdfast demo`: a worker is killed with SIGKILL in the middle of its work, another goes on.

Both are real processes, and what the first said it had saved is compared with what the second
finds: if a turn were lost, or the chain of the journal broken, the demo would fail.
"""

import contextlib
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import click

from holdfast import ids, settings
from holdfast.cli.demo_process import WorkerProcess
from holdfast.cli.options import Options, common
from holdfast.cli.output import write
from holdfast.cli.records import Record
from holdfast.errors import HoldfastError
from holdfast.settings import Settings
from holdfast.sync import Holdfast

KILL_AT_TURN: Final = 5
MORE_TURNS: Final = 5
_ENDLESS: Final = 100_000


@click.command()
@common
def command(options: Options) -> None:
    """See a run survive kill -9.

    A worker process saves the turns of a run and is killed in the middle of its work; a second one
    goes on from the last turn that was acknowledged. The store is a temporary one, unless --store
    names one: then the run stays there to be looked at.
    """
    shown = None if options.store is None else settings.shown_store(options.store)
    with _store(options.store) as url:
        demo = _Demo(url, options.tenant, is_told=options.output.is_for_people)
        record = demo.play() | {"store": shown}
    options.output.one(record, ids="run_id", draw=_conclude)
    if options.output.is_for_people and shown is not None:
        write(f"Look at it: holdfast journal show {record['run_id']} --store {shown}")


@contextlib.contextmanager
def _store(given: str | None) -> Generator[str]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            yield str(Path(folder) / "demo.db")
    elif settings.locate_store(given).location:
        yield given
    else:
        raise click.UsageError("a store in memory dies with its process; name a file")


class _Demo:
    """One showing, and what it has shown so far."""

    def __init__(self, url: str, tenant: str, *, is_told: bool) -> None:
        self._url = url
        self._tenant = tenant
        self._is_told = is_told
        self._run_id = f"demo-{ids.new_run_id()}"
        self._began = time.monotonic()
        self._record: Record = {"run_id": self._run_id}

    def play(self) -> Record:
        self._tell(f"run {self._run_id} in {settings.shown_store(self._url)}")
        with self._open():
            pass
        self._work_until_killed()
        self._go_on()
        self._audit()
        return self._record | {"seconds": round(time.monotonic() - self._began, 3)}

    def _work_until_killed(self) -> None:
        with self._worker(_ENDLESS) as worker:
            self._tell(f"worker {worker.pid} begins the run and saves it turn by turn")
            worker.expect("opened")
            for turn in range(1, KILL_AT_TURN + 1):
                worker.expect("saved")
                self._tell(f"worker {worker.pid}: turn {turn} is saved")
            code = worker.kill()
            _check(code == -signal.SIGKILL, f"the worker ended with {code} before it was killed")
            acknowledged = KILL_AT_TURN
            while (heard := worker.hear()) is not None:
                acknowledged = heard["saved"]
        self._tell(
            f"kill -9 {worker.pid}, in the middle of its work; turn {acknowledged} was the last "
            "it said was saved"
        )
        self._record |= {"killed_pid": worker.pid, "acknowledged": acknowledged}

    def _go_on(self) -> None:
        acknowledged = self._record["acknowledged"]
        with self._worker(MORE_TURNS) as worker:
            found = worker.expect("opened")
            resumed_at, turns = found["opened"], found["turns"]
            _check(
                resumed_at >= acknowledged,
                f"turn {acknowledged} was acknowledged, but only {resumed_at} turns were found",
            )
            _check(
                turns == list(range(1, resumed_at + 1)), f"the turns found are not whole: {turns}"
            )
            self._tell(f"worker {worker.pid} takes the run over and finds turns 1 to {resumed_at}")
            for _ in range(MORE_TURNS):
                worker.expect("saved")
            final = worker.expect("completed")["completed"]
            _check(final == resumed_at + MORE_TURNS, f"the run ended with {final} turns")
            self._tell(
                f"worker {worker.pid} saves turns {resumed_at + 1} to {final}, and completes"
            )
        self._record |= {
            "resumed_pid": worker.pid,
            "resumed_at": resumed_at,
            "final_version": final,
        }

    def _audit(self) -> None:
        with self._open() as hf:
            problems = hf.journal.verify(self._run_id)
            turns = [turn["turn"] for turn in hf.checkpoints.load(self._run_id)["transcript"]]
            entries = len(hf.journal.read(self._run_id))
        _check(not problems, f"the journal's chain is broken: {problems}")
        _check(
            turns == list(range(1, self._record["final_version"] + 1)),
            f"the turns saved are not whole: {turns}",
        )
        self._tell(f"audit verify: {entries} entries in the journal, and their chain is whole")
        self._record |= {"entries": entries, "chain_whole": True, "nothing_lost": True}

    def _worker(self, turns: int) -> WorkerProcess:
        return WorkerProcess(self._url, self._tenant, self._run_id, str(turns))

    def _open(self) -> Holdfast:
        return Holdfast(self._url, settings=Settings(tenant=self._tenant))

    def _tell(self, text: str) -> None:
        if self._is_told:
            write(f"{time.monotonic() - self._began:6.2f} s  {text}")


def _check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise HoldfastError(f"the demo failed: {otherwise}")


def _conclude(record: Record) -> None:
    write("")
    write(
        f"Shown: turn {record['acknowledged']} was the last one acknowledged before the kill; the "
        f"run went on from turn {record['resumed_at']}."
    )
    write("Nothing that was acknowledged was lost, and the journal proves it.")
