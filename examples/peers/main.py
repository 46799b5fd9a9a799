"""Three instances plan a trip with their peers; one is killed while it works.

    python examples/peers/main.py           all on one SQLite file
    python examples/peers/main.py --nats    the peers have a store of their own, NATS between

See README.md.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import agents
import holdfast
from holdfast import Entry, RunStatus
from holdfast.testing.nats import nats_server

CITY = "Oslo"
INSTANCES = 3
LIMIT_SECONDS = 60
WORKER = [
    sys.executable,
    "-c",
    "from holdfast.cli import main; main()",
    "worker",
    "--concurrency",
    "1",
]


@dataclass(frozen=True)
class Instance:
    """A worker process, and its identity on the record."""

    name: str
    worker: str
    process: "subprocess.Popen[str]"


@dataclass(frozen=True)
class Scene:
    """Where the trip and its peers are stored, and who serves them."""

    store: str
    peers_store: str
    targets: tuple[str, ...]
    environment: dict[str, str]


@contextlib.contextmanager
def scene(folder: Path, *, with_nats: bool) -> Iterator[Scene]:
    store, theirs = str(folder / "trip.db"), str(folder / "peers.db")
    if not with_nats:
        yield Scene(store, store, ("agents:desk",), {"TRIP_STORE": store})
        return
    with nats_server(folder / "nats") as server:
        names = {"TRIP_STORE": store, "PEERS_STORE": theirs, "TRIP_NATS": server.url}
        targets = ("agents:desk_behind_nats", "agents:peers_behind_nats")
        yield Scene(store, theirs, targets, names)


@contextlib.contextmanager
def instances(of: Scene) -> Iterator[list[Instance]]:
    """Three instances of everything, which are gone when this is left."""
    with contextlib.ExitStack() as stack:
        processes = [
            (f"{target.partition(':')[2]} {number}", stack.enter_context(process(target, of)))
            for target in of.targets
            for number in range(1, INSTANCES + 1)
        ]
        yield [Instance(name, worker_of(each), each) for name, each in processes]


@contextlib.contextmanager
def process(target: str, of: Scene) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*WORKER, target],
        cwd=Path(__file__).parent,
        env=os.environ | of.environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which then ends the others
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def worker_of(child: "subprocess.Popen[str]") -> str:
    """The identity that a worker tells in its first line: `worker w06…: store …`."""
    assert child.stderr is not None
    said = child.stderr.readline()
    if not said.startswith("worker "):
        sys.exit(f"an instance did not start: {said}{child.stderr.read()}")
    return said.removeprefix("worker ").partition(":")[0]


async def play(of: Scene, working: list[Instance]) -> None:
    settings = holdfast.Settings(wakeup_poll_seconds=0.1)
    async with (
        asyncio.timeout(LIMIT_SECONDS),
        holdfast.Holdfast(of.store, settings=settings) as ours,
        holdfast.Holdfast(of.peers_store, settings=settings) as theirs,
    ):
        handle = await ours.start(agents.trip, CITY, run_id="trip")
        print(f"the client asks for a trip to {CITY}, and waits")
        victim = await somebody_at_work(theirs, working)
        victim.process.send_signal(signal.SIGKILL)
        print(f"kill -9 {victim.process.pid}: {victim.name} is gone")
        async for run in ours.runs.watch(handle.run_id):
            if run.status is RunStatus.COMPLETED:
                break
        answer = await ours.runs.result(handle.run_id)
        calls = {wait.wait_id: wait.name for wait in await ours.waits.of_run("trip")}
        entries = await ours.journal.read("trip")
        for run_id in calls:
            entries += await theirs.journal.read(run_id)
    tell(entries, calls, {each.worker: each.name for each in working})
    print(f"\nfinal answer: {answer}")


async def somebody_at_work(theirs: holdfast.Holdfast, working: list[Instance]) -> Instance:
    """Whoever works on a peer's run, as the store knows."""
    by_worker = {each.worker: each for each in working}
    while True:
        for run in await theirs.runs.list(status=RunStatus.RUNNING):
            if run.agent != "trip" and run.worker in by_worker:
                return by_worker[run.worker]
        await asyncio.sleep(0.02)


def tell(entries: list[Entry], calls: dict[str, str], names: dict[str, str]) -> None:
    """The timeline, from the journals of the trip and of its peers."""
    print("\nfrom the journals:")
    began = min(entry.at for entry in entries)
    holders: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.at, entry.run_id, entry.seq)):
        if entry.kind == "RUN_LEASED":
            holders[entry.run_id] = names.get(entry.actor, entry.actor)
        if what := told(entry, calls, holders.get(entry.run_id, "")):
            of = calls.get(entry.run_id, "trip")
            print(f"{(entry.at - began) / 1e6:6.2f} s  {of:<8} {what}")


def told(entry: Entry, calls: dict[str, str], holder: str) -> str:
    match entry.kind:
        case "RUN_LEASED":
            return f"{holder} works on it"
        case "LEASE_EXPIRED":
            return f"{holder} is lost"
        case "RUN_WAITING":
            return "is left to its peers: nobody holds it"
        case "WAIT_RESOLVED":
            return f"has the answer of {calls[entry.actor]}"
        case "RUN_COMPLETED":
            return "has ended"
        case _:
            return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nats", action="store_true", help="peers elsewhere, NATS between")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-peers-") as folder,
        scene(Path(folder), with_nats=asked.nats) as of,
        instances(of) as working,
    ):
        pids = ", ".join(str(each.process.pid) for each in working)
        print(f"{len(working)} instances are at work: {pids}")
        asyncio.run(play(of, working))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
