"""One showing of peers: instances are killed at random while tasks wait for their peers.

What the instances say is for the timeline, and for choosing whom to kill. What is counted in the
end is read from the journals and the rows of the stores, by `peers_count`.
"""

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from holdfast import ids
from holdfast.demos import peers_count
from holdfast.demos.peers_instance import CALLER, PEER, PeersOrders, make_agents
from holdfast.demos.process import PATIENCE_SECONDS, Child, ChildPipe, Event
from holdfast.demos.stage import Timeline
from holdfast.errors import HoldfastError
from holdfast.kernel import runs
from holdfast.settings import Settings
from holdfast.sync import Holdfast
from holdfast.terminal.records import Record
from holdfast.terminal.text import count

INSTANCES: Final = 3
_ELSEWHERE: Final = 2
_LOOK_SECONDS: Final = 0.2
_SHOWN_EVENTS: Final = frozenset({"ready", "asked", "ended"})


@dataclass(frozen=True, kw_only=True)
class PeersDemoPlan:
    """What is to be shown. With a transport, the peers have their own store."""

    store: str
    tenant: str
    transport: str
    tasks: int
    peers: int
    kills: int
    seed: int
    folder: Path

    @property
    def peers_store(self) -> str:
        return str(self.folder / "peers.db") if self.transport else self.store

    def sides(self) -> list[tuple[PeersOrders, int]]:
        """Return the orders of the instances, and how many of each."""
        if not self.transport:
            return [(self._orders(self.store, [CALLER, PEER]), INSTANCES)]
        return [
            (self._orders(self.store, [CALLER]), INSTANCES),
            (self._orders(self.peers_store, [PEER]), _ELSEWHERE),
        ]

    def _orders(self, store: str, agents: list[str]) -> PeersOrders:
        return PeersOrders(store=store, tenant=self.tenant, agents=agents, transport=self.transport)


class Instance(Child):
    """A process that works, and how much work it says it has."""

    def __init__(self, orders: PeersOrders, wire: ChildPipe, *, log: Path) -> None:
        # -P: a folder named holdfast where the demo is started must not be imported instead.
        command = ["-P", "-m", "holdfast.demos.peers_instance"]
        super().__init__(command, wire, log=log, orders=msgspec.json.encode(orders) + b"\n")
        self.serves = orders
        self.is_ready = False
        self.in_hand = 0

    @property
    def who(self) -> str:
        return f"instance {self.pid}"


class PeersDemo:
    """One showing, and its results."""

    def __init__(
        self, plan: PeersDemoPlan, timeline: Timeline, advance: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._timeline = timeline
        self._advance = advance
        self._wire = ChildPipe()
        self._random = random.Random(plan.seed)
        self._living: dict[str, Instance] = {}
        self._killed: list[int] = []
        self._begun = 0
        self._last_error = ""
        name = ids.new_run_id()
        self.run_ids = {f"demo-{name}-{task}": task for task in range(1, plan.tasks + 1)}
        planned = range(plan.kills)
        most = max(1, plan.tasks * plan.peers * 4 // 5)
        self._kills_at = sorted(self._random.randint(1, most) for _ in planned)

    def play(self) -> Record:
        """Show it; return what was shown."""
        plan = self._plan
        with contextlib.ExitStack() as stack:
            stack.callback(self._wire.close)
            hf = stack.enter_context(_open(plan.store, plan.tenant))
            with contextlib.ExitStack() as processes:
                for orders, number in plan.sides():
                    for _ in range(number):
                        self._start(orders, processes)
                self._begin_tasks(hf)
                self._watch(hf, processes)
            theirs = stack.enter_context(_open(plan.peers_store, plan.tenant))
            sent = peers_count.deliver_again(hf, self.run_ids)
            self._timeline.tell("demo", f"{count(sent, 'answer')} delivered a second time")
            counted = peers_count.count(hf, theirs, self.run_ids, peers=plan.peers)
        killed = {"instances_killed": len(self._killed), "killed_pids": self._killed}
        line = self._timeline
        return counted | killed | {"seconds": line.seconds, "timeline": line.lines}

    def _begin_tasks(self, hf: Holdfast) -> None:
        caller = make_agents(lambda event, what: None)[CALLER]
        for run_id, task in self.run_ids.items():
            hf.start(caller, task, self._plan.peers, run_id=run_id)
        self._timeline.tell("client", f"asks for {count(len(self.run_ids), 'task')}, and waits")

    def _start(self, orders: PeersOrders, processes: contextlib.ExitStack) -> None:
        log = self._plan.folder / "stderr.txt"
        instance = processes.enter_context(Instance(orders, self._wire, log=log))
        self._living[instance.who] = instance

    def _watch(self, hf: Holdfast, processes: contextlib.ExitStack) -> None:
        """Kill as planned, and wait until every task has ended."""
        open_tasks = list(self.run_ids)
        moved_at = looked_at = time.monotonic()
        while open_tasks:
            event = self._wire.next(timeout=_LOOK_SECONDS)
            if event is not None:
                moved_at = time.monotonic()
                self._take(event)
                self._kill_if_due(processes)
            if time.monotonic() - looked_at >= _LOOK_SECONDS:
                ended = [run_id for run_id in open_tasks if _has_ended(hf, run_id)]
                for run_id in ended:
                    open_tasks.remove(run_id)
                    self._advance()
                looked_at = time.monotonic()
                self._check_processes()
            if time.monotonic() - moved_at > PATIENCE_SECONDS:
                raise self._failed(f"nothing happens, and {count(len(open_tasks), 'task')} wait")

    def _take(self, event: Event) -> None:
        instance = self._living.get(event["who"])
        match event["event"]:
            case "ready" if instance is not None:
                instance.is_ready = True
            case "began":
                self._begun += 1
                if instance is not None:
                    instance.in_hand += 1
            case "answered" if instance is not None:
                instance.in_hand -= 1
            case "failed":
                self._last_error = event["what"]
            case _:
                pass
        if event["event"] in _SHOWN_EVENTS:
            self._timeline.tell(event["who"], event["what"])

    def _kill_if_due(self, processes: contextlib.ExitStack) -> None:
        while self._kills_at and self._begun >= self._kills_at[0]:
            ready = [each for each in self._living.values() if each.is_ready]
            if not ready:
                return
            self._kills_at.pop(0)
            busy = [each for each in ready if each.in_hand]
            self._kill(self._random.choice(busy or ready), processes)

    def _kill(self, victim: Instance, processes: contextlib.ExitStack) -> None:
        code = victim.kill()
        del self._living[victim.who]
        self._killed.append(victim.pid)
        in_hand = count(victim.in_hand, "peer")
        self._timeline.tell("demo", f"{victim.who} is gone, by signal {-code}, with {in_hand}")
        self._start(victim.serves, processes)

    def _check_processes(self) -> None:
        for instance in self._living.values():
            if instance.exit_code is not None:
                raise self._failed(f"{instance.who} ended with code {instance.exit_code}")

    def _failed(self, what: str) -> HoldfastError:
        log = self._plan.folder / "stderr.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        because = self._last_error or (lines[-1] if lines else "")
        return HoldfastError(f"the demo failed: {what}" + (f" ({because})" if because else ""))


def _open(store: str, tenant: str) -> Holdfast:
    return Holdfast(store, settings=Settings(tenant=tenant))


def _has_ended(hf: Holdfast, run_id: str) -> bool:
    run = hf.runs.get(run_id)
    if run.status is runs.RunStatus.BLOCKED:
        raise HoldfastError(f"the demo failed: run {run_id} is blocked ({run.blocked_reason})")
    return run.status in runs.ENDED
