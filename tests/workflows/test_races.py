"""Processes that answer, cancel, work and die at the same moment: what counts is decided once.

The ledger that counts shares no code with Holdfast.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Child
from tests.workflows.killing import KILLED, Scene

REPEATS = 2
CHAOS_REPEATS = 40


@pytest.fixture
def repeats(is_chaos: bool) -> range:
    return range(CHAOS_REPEATS if is_chaos else REPEATS)


def paused(
    children: list[Child], folder: Path, store: str, number: int, shape: str = "asking"
) -> Scene:
    """A workflow of its own that asks."""
    scene = Scene(children, folder / str(number), store, run_id=f"r{number}", shape=shape)
    answer = scene.run("start")
    assert (answer["status"], answer["asks"]) == ("waiting", ["ask"]), answer
    return scene


def at_once(scene: Scene, *orders: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Two processes that have the store open do something at the same moment."""
    for child, (do, changes) in enumerate(orders):
        scene.tell(do, child=child, gate="gate", **changes)
    scene.open_gate("gate", many=len(orders))
    return [scene.answer(child) for child in range(len(orders))]


def test_two_processes_that_give_the_same_answer_both_see_one_payment(
    children: list[Child], store: str, tmp_path: Path, repeats: range
) -> None:
    for number in repeats:
        scene = paused(children, tmp_path, store, number)
        both = at_once(scene, *[("answer", {"answers": {"ask": "yes"}})] * 2)
        assert [answer.get("outputs") for answer in both] == [{"said": "yes"}] * 2, both
        assert scene.count("pay") == Counter(["yes"])


def test_of_two_different_answers_one_counts_and_the_other_is_a_conflict(
    children: list[Child], store: str, tmp_path: Path, repeats: range
) -> None:
    for number in repeats:
        scene = paused(children, tmp_path, store, number)
        both = at_once(
            scene, ("answer", {"answers": {"ask": "yes"}}), ("answer", {"answers": {"ask": "no"}})
        )
        lost = [answer.get("error") for answer in both].index("AlreadyAnswered")
        (said,) = both[1 - lost]["outputs"].values()
        assert said == ("no" if lost == 0 else "yes")
        assert scene.count("pay") == Counter([said])


def test_a_cancel_and_an_answer_at_once_leave_one_end(
    children: list[Child], store: str, tmp_path: Path, repeats: range
) -> None:
    """Whichever is first: no payment is made after the workflow was seen to be cancelled."""
    for number in repeats:
        scene = paused(children, tmp_path, store, number)
        answered, cancelled = at_once(
            scene, ("answer", {"answers": {"ask": "yes"}}), ("cancel", {})
        )
        end = scene.run("look")
        assert end.get("status") in ("completed", "cancelled"), (answered, cancelled, end)
        assert cancelled["status"] == end["status"]
        if end["status"] == "completed":
            assert answered["outputs"] == {"said": "yes"}
            assert scene.count("pay") == Counter(["yes"])
        else:
            assert scene.count("pay")["yes"] <= 1
            assert answered.get("status") == "cancelled" or answered["error"] == "AlreadyAnswered"


def test_an_answer_at_the_deadline_counts_or_comes_too_late(
    children: list[Child], store: str, tmp_path: Path, repeats: range
) -> None:
    for number in repeats:
        scene = paused(children, tmp_path, store, number, shape="hurried")
        both = at_once(scene, ("answer", {"answers": {"ask": "yes"}}), ("answer", {"answers": {}}))
        end = scene.run("answer", answers={})
        assert end["status"] == "completed", (both, end)
        said = end["outputs"]["said"]
        assert said in ("yes", "silence")
        assert scene.count("pay") == Counter([said])
        if said == "silence":
            assert both[0]["error"] == "AlreadyAnswered", both


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S1-007", "S1-030")
def test_of_two_workers_one_is_killed_and_the_other_does_the_rest(
    children: list[Child], store: str, tmp_path: Path, repeats: range
) -> None:
    for number in repeats:
        scene = Scene(children, tmp_path / str(number), store, run_id=f"r{number}")
        scene.tell("serve", child=0, die="batch.after_commit", skip=20 + 10 * number)
        answer = scene.run("work", child=1)
        while answer.get("status") != "completed":  # it blocked on what the other one was doing
            scene.see_commands_end()
            answer = scene.run("work", child=1)
        assert scene.faults(answer) == []
        assert scene.answer(0) == KILLED
