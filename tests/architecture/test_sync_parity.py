"""The blocking face has what the async face has: the same names, parameters and documentation."""

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import app, sync
from holdfast.agents.work.approvals import Approvals
from holdfast.agents.work.handles import Handle
from holdfast.agents.work.schedules import Schedules
from holdfast.agents.work.sessions import Session
from holdfast.agents.work.worker import Worker
from holdfast.compat.mesh import CheckpointService
from holdfast.engine.budgets.budgets import Budgets
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.effects import Effects
from holdfast.engine.handoffs import Handoffs
from holdfast.engine.leases.leases import Leases
from holdfast.engine.maintenance.recoveries import Recoveries
from holdfast.engine.messages.outbox_messages import Messages
from holdfast.engine.reading.journal import Journal
from holdfast.engine.runs import Runs
from holdfast.engine.signals import Signals
from holdfast.engine.waits import Waits, WaitSpec
from holdfast.errors import RunNotFound, StoreClosed
from holdfast.records import CheckpointService as RecordService
from holdfast.subscribers.webhooks import Webhooks
from holdfast.sync.records import CheckpointService as BlockingRecordService
from holdfast.sync.workflows import Workflows as BlockingWorkflows
from holdfast.workflows import Workflows

PAIRS: list[tuple[type, type]] = [
    (app.Holdfast, sync.Holdfast),
    (holdfast.LeasedRun, sync.LeasedRun),
    (Runs, sync.Runs),
    (Journal, sync.Journal),
    (Checkpoints, sync.Checkpoints),
    (Effects, sync.Effects),
    (Waits, sync.Waits),
    (Messages, sync.Messages),
    (Signals, sync.Signals),
    (Approvals, sync.Approvals),
    (Budgets, sync.Budgets),
    (Handoffs, sync.Handoffs),
    (Recoveries, sync.Recoveries),
    (Leases, sync.Leases),
    (Handle, sync.Handle),
    (Session, sync.Session),
    (Worker, sync.Worker),
    (Schedules, sync.Schedules),
    (Webhooks, sync.Webhooks),
    (CheckpointService, sync.CheckpointService),
    (RecordService, BlockingRecordService),
    (Workflows, BlockingWorkflows),
]
FORK = """
import os, sys
from holdfast import errors, sync

with sync.open(sys.argv[1]) as hf:
    hf.runs.create("r")
    if os.fork() == 0:
        try:
            hf.runs.get("r")
        except errors.WrongProcess:
            sys.exit(7)
        sys.exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]), hf.runs.get("r").run_id)
"""
MEMBERS = [
    pytest.param(ours, theirs, name, id=f"{ours.__name__}.{name}")
    for ours, theirs in PAIRS
    for name in sorted(vars(ours))
    if not name.startswith("_")
]


def public_names(face: type) -> set[str]:
    return {name for name in vars(face) if not name.startswith("_")}


def callable_of(member: Any) -> Callable[..., Any]:
    if isinstance(member, classmethod):
        return member.__func__
    if isinstance(member, functools.cached_property):
        return member.func
    return member.fget if isinstance(member, property) else member


def parameters(member: Any) -> list[tuple[str, Any, Any, str]]:
    """Names, kinds, defaults and types, however the types are imported."""
    signature = inspect.signature(callable_of(member))
    return [
        (p.name, p.kind, p.default, inspect.formatannotation(p.annotation))
        for p in signature.parameters.values()
    ]


def answer(member: Any) -> str:
    """What is returned, with the words that differ between the faces taken out."""
    returned = inspect.signature(callable_of(member)).return_annotation
    text = returned if isinstance(returned, str) else inspect.formatannotation(returned)
    for word in (
        "collections.abc.",
        "holdfast.engine.held.leased_run.",
        "holdfast.sync.app.",
        "holdfast.sync.agents.",
        "holdfast.sync.engine.",
        "holdfast.sync.leases.",
        "holdfast.agents.work.handles.",
        "holdfast.agents.work.sessions.",
        "holdfast.agents.work.worker.",
        "holdfast.app.",
        "Async",
    ):
        text = text.replace(word, "")
    return text


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda face: face.__name__)
def test_both_faces_have_the_same_names(ours: type, theirs: type) -> None:
    assert public_names(theirs) == public_names(ours)


@pytest.mark.parametrize(("ours", "theirs", "name"), MEMBERS)
def test_member_is_the_same_on_both_faces(ours: type, theirs: type, name: str) -> None:
    member, blocking = vars(ours)[name], vars(theirs)[name]
    assert isinstance(blocking, property) == isinstance(member, property)
    assert parameters(blocking) == parameters(member)
    assert answer(blocking) == answer(member)
    assert getattr(theirs, name).__doc__ == getattr(ours, name).__doc__
    assert not inspect.iscoroutinefunction(callable_of(blocking))


def test_open_and_the_services_are_the_same() -> None:
    assert parameters(sync.open) == parameters(holdfast.open)
    assert parameters(sync.Holdfast.__init__) == parameters(app.Holdfast.__init__)
    here, there = app.Holdfast("memory://"), sync.Holdfast("memory://")
    services = {name for name in vars(here) if not name.startswith("_")}
    assert {name for name in vars(there) if not name.startswith("_")} == services
    by_name = {ours.__name__: theirs for ours, theirs in PAIRS}
    for name in services:
        assert type(getattr(there, name)) is by_name[type(getattr(here, name)).__name__]


def test_run_goes_from_creation_to_its_result() -> None:
    with sync.open("memory://") as hf:
        run = hf.runs.open("r", agent="a", input=1)
        run.append("log", run.record("step", "recorded"))
        assert run.checkpoint(label="x").version == run.version == 1
        group = run.open_waits([WaitSpec(wait_id="w")], suspend=True)
        assert hf.waits.resolve("w", 5).accepted
        again = hf.leases.next()
        assert again is not None
        assert [result.value for result in again.results(group)] == [5]
        again.complete("done")
        assert hf.runs.result("r") == "done"
        assert hf.checkpoints.load("r")["log"] == ["recorded"]
        assert hf.journal.verify("r") == []


def test_iterators_can_be_left_early_or_used_up() -> None:
    with sync.open("memory://") as hf:
        hf.runs.create("r")
        for entry in hf.journal.tail("r"):
            assert entry.seq == 1
            break
        assert next(hf.runs.watch("r")).run_id == "r"
        hf.runs.cancel("r")
        assert [entry.seq for entry in hf.journal.tail("r")] == [1, 2]
        assert list(hf.journal.run_ids()) == ["r"]
        with pytest.raises(RunNotFound):
            next(hf.journal.tail("nobody"))


def test_store_that_is_not_open_says_so() -> None:
    hf = sync.open("memory://")
    with pytest.raises(StoreClosed, match="with"):
        hf.info()
    with hf:
        hf.runs.create("r")
        left_open = hf.journal.tail("r")
        next(left_open)
    with pytest.raises(StoreClosed):
        hf.info()
    with pytest.raises(StoreClosed):
        next(left_open)


def test_threads_share_one_store() -> None:
    with sync.open("memory://") as hf, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: hf.runs.create(f"r{n}").run_id, range(32)))
        twin = hf.another_worker()
        assert twin.worker != hf.worker
        assert sorted(made) == list(twin.journal.run_ids())


def test_fork_refuses_the_store_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "7 r\n", done.stderr
