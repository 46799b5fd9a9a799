"""A process that forks while a store is open and saving: the child is refused what it inherits."""

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable

import holdfast
import holdfast.sync
from holdfast.errors import HoldfastError
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.processes import LIMIT_SECONDS

Verb = Callable[[], Awaitable[object]]


def outcomes_in_a_fork(uses: dict[str, Verb]) -> dict[str, str]:
    """Fork, let the child try each use in an event loop of its own; what came of it there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(LIMIT_SECONDS) // 2)  # a child that hangs says nothing about the rest
        try:
            for name, use in uses.items():
                os.write(writing, (json.dumps([name, _outcome(use)]) + "\n").encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        told = dict(json.loads(line) for line in said)
    os.waitpid(pid, 0)
    return told


def _outcome(use: Verb) -> str:
    async def tried() -> None:
        await use()

    try:
        asyncio.run(tried())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@async_test
async def test_child_of_a_fork_is_told_and_its_parent_goes_on(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        uses: dict[str, Verb] = {
            "create": lambda: hf.runs.create("child"),
            "read": lambda: hf.runs.get("a"),
            "save": run.checkpoint,
            "lease": lambda: hf.leases.next(timeout_seconds=0),
            "info": hf.info,
        }
        leave: dict[str, Verb] = {"close": lambda: hf.__aexit__(None, None, None)}
        for number in range(5):
            run.append("log", number)
            saving = asyncio.create_task(run.checkpoint())
            await asyncio.sleep(0)  # the commit is on its way when the process forks
            told = outcomes_in_a_fork(uses | leave)
            await saving
            assert told.pop("close") == "done"
            assert set(told) == set(uses)
            for name, outcome in told.items():
                assert outcome.startswith("WrongProcess: the store was opened before fork()"), name
        assert (await hf.checkpoints.load("a"))["log"] == [0, 1, 2, 3, 4]
        assert [found.run_id for found in await hf.runs.list()] == ["a"]
        assert await hf.journal.verify("a") == []


@async_test
async def test_fork_may_open_a_store_only_if_its_locks_are_its_own(
    backend: Backend,
) -> None:
    """On SQLite a commit of the child would be lost when its parent closes the file."""

    async def use_another() -> None:
        async with holdfast.open(backend.url) as own:
            await own.runs.create("child")

    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a")
        said = outcomes_in_a_fork({"open": use_another})["open"]
        if backend.name == "postgres":
            assert said == "done"
        else:
            assert said.startswith(f"WrongProcess: {backend.url} was open before fork()")
    before = "done" if backend.name == "sqlite" else "RunExists"
    assert outcomes_in_a_fork({"open": use_another})["open"].startswith(before)
    async with holdfast.open(backend.url) as hf:
        assert {found.run_id for found in await hf.runs.list()} == {"a", "child"}


def _save_in_a_child(hf: holdfast.sync.Holdfast, said: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        with hf.runs.open("b"):
            said.put("used")
    except HoldfastError as error:
        said.put(f"{type(error).__name__}: {error}")


def test_blocking_face_in_a_child_of_multiprocessing_is_refused(store: str) -> None:
    forks = multiprocessing.get_context("fork")
    said: multiprocessing.SimpleQueue[str] = forks.SimpleQueue()
    with holdfast.sync.open(store) as hf:
        run = hf.runs.open("a")
        child = forks.Process(target=_save_in_a_child, args=(hf, said))
        child.start()
        child.join(LIMIT_SECONDS)
        assert child.exitcode == 0
        assert said.get().startswith("WrongProcess: the store was opened before fork()")
        run.append("log", 1)
        run.checkpoint()
        assert hf.journal.verify("a") == []
