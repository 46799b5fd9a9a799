"""Workers that are killed before, during and after a command or a request: once, or asked about."""

import contextlib
import os
import queue
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Outcome
from tests.agents.ledger import Ledger
from tests.processes import Child
from tests.workflows.reaching import block, flow, opened
from tests.workflows.web import Web, serving

POINTS = {"before": "tool.before_call", "during": "", "after": "tool.after_call"}
SOON = {"timeout": 5.0}  # a machine that is busy must make a request within it


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as served:
        yield served


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


async def killed_and_resumed(
    store: str,
    ledger: Ledger,
    made: Block,
    when: str,
    begun: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """A worker is killed over a run, which is gone on with here."""
    async with opened(store, ledger.path.parent) as hf:
        await hf.workflows.start(flow(made), run_id="r")
        victims = Child("tests.agents.victims", store, ledger.path, "tests.workflows.reacher:make")
        with victims:
            begun(victims.ask([POINTS[when], 0]))
            assert victims.ask("wait") == -signal.SIGKILL
        return await hf.workflows.run(flow(made), run_id="r", timeout=60)


def command(ledger: Ledger, when: str) -> str:
    """Writes into the ledger; kills the worker that has started it if it is to."""
    dies = "kill -9 $PPID; sleep 3; echo late r 0 - >> ledger" if when == "during" else "echo paid"
    return f'echo "pay r 0 $HOLDFAST_EFFECT_KEY" >> {ledger.path.name}; {dies}'


VERIFY = 'grep -q " $HOLDFAST_EFFECT_KEY" ledger && echo verified'


@pytest.mark.chaos(backend=["postgres"], when=["before", "after"])
@pytest.mark.parametrize("when", POINTS)
@async_test
async def test_a_command_that_can_be_verified_is_run_once(
    store: str, ledger: Ledger, when: str
) -> None:
    made = block(
        "Shell", command=command(ledger, when), verify=f"touch ledger; {VERIFY}", options=SOON
    )
    if when == "before":
        made = block(
            "Shell", command=command(ledger, ""), verify=made.inputs["verify"], options=SOON
        )
    outcome = await killed_and_resumed(store, ledger, made, when)
    assert (outcome.status, outcome.error) == ("completed", "")
    assert [line.what for line in ledger.lines()] == ["pay"]
    said = outcome.blocks["it"].outputs["stdout"]
    assert said == ("paid\n" if when == "before" else "verified\n")


@pytest.mark.parametrize("when", ["during", "after"])
@async_test
async def test_a_command_that_nobody_can_tell_of_is_asked_about(
    tmp_path: Path, ledger: Ledger, when: str
) -> None:
    """And it has ended with its worker: what it would have done later was not done."""
    made = block("Shell", command=command(ledger, when), options=SOON)
    outcome = await killed_and_resumed(str(tmp_path / "s.db"), ledger, made, when)
    assert outcome.status == "blocked"
    assert "nobody knows whether Shell happened" in outcome.error
    assert [line.what for line in ledger.lines()] == ["pay"]


@async_test
async def test_a_command_that_reads_is_run_again(tmp_path: Path, ledger: Ledger) -> None:
    die = "test -e died || { touch died; kill -9 $PPID; sleep 3; }; echo seen"
    made = block("Shell", command=die, effect="read", options=SOON)
    outcome = await killed_and_resumed(str(tmp_path / "s.db"), ledger, made, "during")
    assert (outcome.status, outcome.blocks["it"].outputs["stdout"]) == ("completed", "seen\n")


@pytest.mark.chaos(backend=["postgres"], when=["before", "after"])
@pytest.mark.parametrize("when", POINTS)
@async_test
async def test_a_request_that_can_be_verified_is_made_once(
    store: str, ledger: Ledger, web: Web, when: str
) -> None:
    outcome = await killed_and_resumed(
        store, ledger, pay(web, verify={"url": f"{web.url}/paid"}), when, killing(web, when)
    )
    assert (outcome.status, outcome.error) == ("completed", "")
    assert len(web.done) == 1
    assert outcome.blocks["it"].outputs["body"] == f"paid {web.done[0]}"


@async_test
async def test_a_request_that_nobody_can_tell_of_is_asked_about(
    tmp_path: Path, ledger: Ledger, web: Web
) -> None:
    store = str(tmp_path / "s.db")
    outcome = await killed_and_resumed(store, ledger, pay(web), "during", killing(web, "during"))
    assert outcome.status == "blocked"
    assert "nobody knows whether HttpCall happened" in outcome.error
    assert len(web.done) == 1


def pay(web: Web, **inputs: Any) -> Block:
    return block("HttpCall", url=f"{web.url}/pay", method="POST", options=SOON, **inputs)


def killing(web: Web, when: str) -> Callable[[int], None]:
    """The server kills the worker while it waits for the answer, if it is to."""
    known = queue.SimpleQueue[int]()
    if when == "during":
        web.during = lambda: kill_once(known)
    return known.put


def kill_once(known: "queue.SimpleQueue[int]") -> None:
    with contextlib.suppress(queue.Empty):
        os.kill(known.get(timeout=60), signal.SIGKILL)
