"""Who may be concerned by a write, and is woken: else a run waits until somebody looks again."""

import pytest

from holdfast.errors import ConflictError
from holdfast.kernel.journal import ORIGIN
from holdfast.kernel.messages import MessageStatus, Move, QueuedMessage
from holdfast.kernel.runs import RunRow
from holdfast.stores.combiner import topics_of
from holdfast.stores.contract import (
    BegunRun,
    Commit,
    Conflict,
    Late,
    LateDecision,
    MoveMessage,
    Publish,
)

RUN = RunRow(tenant="default", run_id="r")


def message(ordering: str = "") -> QueuedMessage:
    return QueuedMessage(
        tenant="default", queue="q", message_id="m", ordering=ordering, created_at=1, due_at=1
    )


@pytest.mark.parametrize(
    ("commit", "is_ready"),
    [
        (Commit("default", "r", ORIGIN, (), None, ()), False),
        (Commit("default", "r", ORIGIN, (), RUN, ()), True),
        (Commit("default", "r", ORIGIN, (), None, (), (BegunRun(RUN, ()),)), True),
    ],
)
def test_workers_hear_of_a_commit_that_changes_or_begins_a_run(
    commit: Commit, is_ready: bool
) -> None:
    assert ("ready" in topics_of(commit, None)) is is_ready
    assert {"run:r", "journal"} <= {*topics_of(commit, None)}
    assert topics_of(commit, Conflict()) == ()


def test_decision_about_a_wait_is_announced_to_those_who_wait_for_its_run() -> None:
    late = Late("default", "", "w", lambda _: LateDecision(None), wait_ids=("w",), topics=("t",))
    assert topics_of(late, late.answered("r", True)) == ("run:r", "ready", "journal", "t")
    assert topics_of(late, late.answered("r", ConflictError())) == ()


@pytest.mark.parametrize(
    ("move", "ordering", "is_told"),
    [
        (Move(status=MessageStatus.READY), "", True),
        (Move(status=MessageStatus.READY, worker="w"), "", False),
        (Move(status=MessageStatus.DONE), "", False),
        (Move(status=MessageStatus.DONE), "in a row", True),
    ],
)
def test_queue_hears_of_a_move_that_makes_a_message_due(
    move: Move, ordering: str, is_told: bool
) -> None:
    write = MoveMessage(message(ordering), move)
    assert topics_of(write, True) == (("queue:q",) if is_told else ())
    assert topics_of(write, False) == ()


def test_queue_hears_of_a_new_message_once() -> None:
    assert topics_of(Publish(message()), True) == ("queue:q",)
    assert topics_of(Publish(message()), False) == ()
