"""Workflows killed at every fault point they pass: all is paid once, and the outputs are right.

The ledger that counts shares no code with Holdfast. Another process goes on after each kill; what
became of a call that nobody saw the end of is told by what the ledger says, or by `verify`.
"""

from pathlib import Path

import pytest

from holdfast import faults
from tests.backends import Backend
from tests.processes import Child
from tests.workflows.killing import KILLED, Scene

COMMITS = [point for point in faults.POINTS if point.startswith(("batch.", "commit."))]
REPLIES = ["outbox.before_reply", "outbox.after_reply"]
CALLS = ["tool.before_call", "tool.after_call", "tool.before_verify", "model.after_call", *REPLIES]
MIGRATIONS = ["migration.before_commit", "migration.after_commit"]
ELSEWHERE = {
    "reindex.before_commit",
    "leases.after_look",
    "budget.after_reserve",
    "budget.before_settle",
    "outbox.before_take",
    "outbox.after_take",
    "outbox.after_delivery",
    "outbox.after_ack",
    "relay.before_publish",
    "relay.after_publish",
    "receiver.before_commit",
    "receiver.after_commit",
}
FAR = {"batch": 30, "commit": 15}
CHAOS_FAR = range(1, 60, 4)
CHAOS_STEPS = range(5, 600, 11)


class Sweep:
    """Workflows one after another, whose workers are killed until each has ended all the same."""

    def __init__(self, children: list[Child], backend: Backend, folder: Path) -> None:
        self._children = children
        self._backend = backend
        self._folder = folder
        self._number = 0
        self.found: list[str] = []
        self.kills: list[str] = []
        self.scene = self._next_scene()

    def _next_scene(self) -> Scene:
        self._number += 1
        folder = self._folder / str(self._number)
        is_file = self._backend.name == "sqlite"
        store = str(folder / "store.db") if is_file else self._backend.url
        return Scene(self._children, folder, store, run_id=f"r{self._number}")

    def strike(self, point: str, skip: int) -> None:
        """Kill a worker at a point; if the workflow ended before, kill one of the next workflow."""
        for _ in range(3):
            answer = self.scene.run(die=point, skip=skip, child=len(self.kills) % 2)
            if answer == KILLED:
                self.kills.append(point)
                return
            self._judge(answer)
            skip //= 2

    def finish(self) -> None:
        self._judge(self.scene.run())

    def _judge(self, answer: dict[str, object]) -> None:
        self.found += self.scene.faults(answer)
        self.scene = self._next_scene()


def test_the_workflow_passes_all_points_that_are_not_tried_elsewhere() -> None:
    of_others = ("handoff.", "spool.", "webhook.")
    points = {point for point in faults.POINTS if not point.startswith(of_others)}
    assert {*COMMITS, *CALLS, *MIGRATIONS} | ELSEWHERE == points


@pytest.mark.mission("S1-002", "S1-007", "S1-015", "S1-060", "X-004")
@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.parametrize("points", [COMMITS, CALLS], ids=["commits", "calls"])
def test_a_workflow_killed_at_every_fault_point_pays_once(
    children: list[Child], backend: Backend, tmp_path: Path, points: list[str], is_chaos: bool
) -> None:
    sweep = Sweep(children, backend, tmp_path)
    if backend.name == "postgres":  # there all entries of a batch are one statement
        points = [point for point in points if point != "commit.after_first_entry"]
    for point in points:
        if point == "tool.before_verify":
            sweep.strike("in pay_seen", 0)
        sweep.strike(point, 0)
    for far in CHAOS_FAR if is_chaos else (1,):
        for point in points:
            sweep.strike(point, far * FAR.get(point.partition(".")[0], 3))
    sweep.finish()
    assert sweep.found == []
    assert set(sweep.kills) >= set(points)
    print(f"{len(sweep.kills)} kills")


def test_a_workflow_killed_while_its_store_is_made_begins_all_the_same(
    children: list[Child], tmp_path: Path
) -> None:
    for number, point in enumerate(MIGRATIONS):
        folder = tmp_path / str(number)
        scene = Scene(children, folder, str(folder / "store.db"))
        assert scene.run(die=point) == KILLED
        assert scene.faults(scene.run()) == []


@pytest.mark.chaos
@pytest.mark.parametrize("step", CHAOS_STEPS)
def test_a_workflow_killed_every_so_many_points_pays_once(
    children: list[Child], backend: Backend, tmp_path: Path, step: int
) -> None:
    """Victim after victim gets a little further than the one before."""
    sweep = Sweep(children, backend, tmp_path)
    far = step
    while not sweep.found and far < 1000:
        sweep.strike("any", far)
        far += step if step > 60 else 60
    sweep.finish()
    assert sweep.found == []
    assert sweep.kills
