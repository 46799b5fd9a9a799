"""Workflows under attack: what is cut off, what quits, what changes in a pause, what has no end."""

import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from holdfast import tool
from holdfast.errors import BlockFailed, WorkflowInvalid
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Input, Workflow
from holdfast.workflows.blocks import outside
from holdfast.workflows.blocks.contract import BlockRun
from holdfast.workflows.checks.library import collect
from holdfast.workflows.execution.output_pruner import OutputUses
from tests.workflows.reaching import block, carry_out, flow, opened
from tests.workflows.test_shell import is_alive

HERE = "memory://"
CHARGE = "echo charged >> ledger; "
VERIFY = "test -e ledger"


@pytest.mark.parametrize("cut", ["sleep 30", "kill -9 $$"])
@pytest.mark.parametrize("verify", [VERIFY, None])
@async_test
async def test_a_command_that_was_cut_off_is_not_blindly_run_again(
    tmp_path: Path, cut: str, verify: str | None
) -> None:
    options = {"retries": 1, "timeout": 0.5}
    made = block("Shell", options=options, command=CHARGE + cut, verify=verify)
    found = (await carry_out(HERE, tmp_path, made)).blocks["it"]
    assert (tmp_path / "ledger").read_text() == "charged\n"
    assert found.status == ("failed" if verify is None else "completed")
    assert found.attempts == 1


@async_test
async def test_a_command_that_was_cut_off_in_vain_is_run_again(tmp_path: Path) -> None:
    command = f"echo x >> tries; test $(wc -l < tries) -eq 2 || kill -9 $$; {CHARGE}"
    made = block("Shell", options={"retries": 1}, command=command, verify=VERIFY)
    found = (await carry_out(HERE, tmp_path, made)).blocks["it"]
    assert (found.status, found.attempts) == ("completed", 2)
    assert (tmp_path / "ledger").read_text() == "charged\n"


@async_test
async def test_a_command_that_exits_with_an_error_is_not_verified(tmp_path: Path) -> None:
    """It ended by itself, so it has failed: `verify` is for one that was cut off."""
    made = block("Shell", command="echo partly; exit 3", verify="echo asked > asked")
    found = (await carry_out(HERE, tmp_path, made)).blocks["it"]
    assert (found.status, found.error) == ("failed", "the command exited with 3")
    assert found.outputs == {"stdout": "partly\n", "stderr": "", "exit_code": 3}
    assert not (tmp_path / "asked").exists()


@async_test
async def test_doubt_about_a_command_that_was_cut_off_is_a_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "VERIFY_SECONDS", 0.5)
    made = block("Shell", options={"retries": 1}, command=f"{CHARGE}kill -9 $$", verify="exit 7")
    outcome = await carry_out(HERE, tmp_path, made)
    assert outcome.status == "blocked"
    assert "was ended by signal 9" in outcome.error
    assert (tmp_path / "ledger").read_text() == "charged\n"


@async_test
async def test_a_folder_that_goes_in_a_pause_changes_nothing(store: str, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    made = flow(
        block("Shell", command="echo x >> ../ledger; echo hi", cwd="build"),
        block("Prompt", "ask", prompt="ok?"),
    )
    async with opened(store, tmp_path) as hf:
        assert (await hf.workflows.run(made, run_id="r", timeout=30)).status == "waiting"
        (tmp_path / "build").rmdir()
        outcome = await hf.workflows.resume("r", {"ask": "yes"}, timeout=30)
    assert outcome.status == "completed"
    assert outcome.blocks["it"].outputs["stdout"] == "hi\n"
    assert (tmp_path / "ledger").read_text() == "x\n"


@async_test
async def test_a_folder_that_comes_in_a_pause_comes_too_late(store: str, tmp_path: Path) -> None:
    made = flow(
        block("Shell", options={"continue_on_error": True}, command="echo x > y", cwd="build"),
        block("Prompt", "ask", prompt="ok?"),
    )
    async with opened(store, tmp_path) as hf:
        assert (await hf.workflows.run(made, run_id="r", timeout=30)).status == "waiting"
        (tmp_path / "build").mkdir()
        outcome = await hf.workflows.resume("r", {"ask": "yes"}, timeout=30)
    assert outcome.blocks["it"].status == "failed"
    assert "no folder 'build'" in outcome.blocks["it"].error
    assert not (tmp_path / "build" / "y").exists()


class NoInputs(msgspec.Struct):
    """A block that takes nothing."""


class Quits:
    name: ClassVar[str] = "Quits"
    inputs: ClassVar[type[msgspec.Struct]] = NoInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = False

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def execute(self, block: BlockRun, inputs: NoInputs) -> None:
        raise self._error


QUITTING = [SystemExit(3), GeneratorExit(), BaseExceptionGroup("all", [SystemExit(3)])]


@pytest.mark.parametrize("error", QUITTING, ids=lambda error: type(error).__name__)
@async_test
async def test_a_block_that_would_end_the_worker_only_fails(
    tmp_path: Path, error: BaseException
) -> None:
    blocks = block("Quits"), block("Shell", "beside", command="echo hi")
    outcome = await carry_out(HERE, tmp_path, *blocks, types=[Quits(error)])
    assert outcome.status == "failed"
    assert type(error).__name__ in outcome.blocks["it"].error
    assert outcome.blocks["beside"].status == "completed"


@pytest.mark.parametrize("effect", ["read", "idempotent", "mutate"])
@pytest.mark.parametrize("is_async", [True, False])
@async_test
async def test_a_tool_that_would_end_the_worker_fails_or_is_in_doubt(
    tmp_path: Path, effect: Any, is_async: bool
) -> None:
    async def quits_async() -> None:
        sys.exit(3)

    def quits() -> None:
        sys.exit(3)

    made = tool(effect=effect, name="quits")(quits_async if is_async else quits)
    outcome = await carry_out(HERE, tmp_path, block("Tool", tool="quits"), tools=[made])
    assert outcome.status == ("blocked" if effect == "mutate" else "failed")
    assert "SystemExit: 3" in outcome.error


@async_test
async def test_an_edit_that_failed_stays_failed_when_its_file_comes(
    store: str, tmp_path: Path
) -> None:
    edits = [{"old": "a", "new": "b"}]
    made = flow(
        block("EditFile", options={"continue_on_error": True}, path="f", edits=edits),
        block("Prompt", "ask", prompt="ok?"),
    )
    async with opened(store, tmp_path) as hf:
        assert (await hf.workflows.run(made, run_id="r", timeout=30)).status == "waiting"
        (tmp_path / "f").write_text("a")
        outcome = await hf.workflows.resume("r", {"ask": "yes"}, timeout=30)
    assert (outcome.blocks["it"].status, outcome.blocks["it"].error) == (
        "failed",
        "there is no file f",
    )
    assert (tmp_path / "f").read_text() == "a"


class Wavers:
    """Fails the first time, and records nothing."""

    name: ClassVar[str] = "Wavers"
    inputs: ClassVar[type[msgspec.Struct]] = NoInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = False
    passes = 0

    async def execute(self, block: BlockRun, inputs: NoInputs) -> dict[str, int]:
        self.passes += 1
        if self.passes == 1:
            raise BlockFailed("not yet")
        return {"passes": self.passes}


@async_test
async def test_a_failure_that_was_told_is_final(store: str, tmp_path: Path) -> None:
    made = flow(
        block("Wavers", options={"continue_on_error": True}), block("Prompt", "ask", prompt="ok?")
    )
    async with opened(store, tmp_path, types=[Wavers()]) as hf:
        told = await hf.workflows.run(made, run_id="r", timeout=30)
        assert (told.status, told.blocks["it"].status) == ("waiting", "failed")
        outcome = await hf.workflows.resume("r", {"ask": "yes"}, timeout=30)
    assert (outcome.blocks["it"].status, outcome.blocks["it"].error) == ("failed", "not yet")


@pytest.mark.parametrize(
    "asked",
    [
        "{{ blocks.get('a').outputs.stdout }}",
        "{% for name, each in blocks.items() %}{{ each.outputs.stdout }}{% endfor %}",
        "{% set all = blocks %}{{ all.a.outputs.stdout }}",
        "{{ blocks['a'].outputs.stdout }}",
    ],
)
@async_test
async def test_pruning_changes_no_result(tmp_path: Path, asked: str) -> None:
    made = flow(
        block("Shell", "a", command="echo A"),
        block("Shell", "b", options={"depends_on": ["a"]}, command="true"),
        block("Shell", "c", options={"depends_on": ["b"]}, command="true"),
        block("Shell", "d", options={"depends_on": ["a", "c"]}, command=["echo", asked]),
        outputs={"said": "{{ blocks.d.outputs.stdout }}"},
    )
    async with opened(HERE, tmp_path, prunes=True) as hf:
        outcome = await hf.workflows.run(made, run_id="r", timeout=240)
    assert (outcome.status, outcome.error) == ("completed", "")
    assert outcome.outputs is not None
    assert "A" in outcome.outputs["said"]
    assert outcome.blocks["a"].is_pruned


def test_uses_are_read_once_and_end_with_the_last() -> None:
    blocks = [
        block("Shell", "a", command="echo"),
        block("Shell", "b", command="{{ blocks.a.outputs.stdout }}"),
        block("Shell", "c", command="{{ blocks.a.outputs.stdout }}{{ blocks.b.status }}"),
        block("Shell", "d", command="{{ blocks.c.status }}"),
    ]
    uses = OutputUses(flow(*blocks, outputs={"b": "{{ blocks.b.status }}"}))
    assert [uses.end([name]) for name in "abcd"] == [[], [], ["a"], ["d", "c"]]
    whole = OutputUses(flow(*blocks, block("Shell", "e", command="{{ blocks.items() }}")))
    assert [whole.end([name]) for name in "abcd"] == [[], [], [], []]
    assert sorted(whole.end(["e"])) == ["a", "b", "c", "d", "e"]


def test_workflows_that_always_begin_themselves_are_refused() -> None:
    one = Workflow(name="one", blocks=[block("Workflow", "to", workflow="two")])
    two = Workflow(name="two", blocks=[block("Workflow", "back", workflow="one")])
    with pytest.raises(WorkflowInvalid, match=r"without end.*one -> two -> one") as raised:
        collect(one, {"two": two})
    assert "blocks[0].inputs.workflow" in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"condition": "inputs.left > 0"},
        {"for_each": "{{ range(inputs.left) | list }}"},
        {"depends_on": ["decides"]},
    ],
)
def test_workflows_that_may_end_are_not(options: dict[str, Any]) -> None:
    decides = block("Shell", "decides", options={"condition": "inputs.left > 0"}, command="true")
    made = Workflow(
        name="one",
        inputs={"left": Input(type="int")},
        blocks=[decides, block("Workflow", "again", options=options, workflow="one")],
    )
    assert collect(made, {}) == {"one": made}


@async_test
async def test_workflows_nested_too_deep_have_failed(tmp_path: Path) -> None:
    made = flow(block("Workflow", options={"condition": "1 == 1"}, workflow="reach"))
    async with opened(HERE, tmp_path) as hf:
        outcome = await hf.workflows.run(made, run_id="r", timeout=240)
        runs = await hf.runs.list(limit=100)
    assert outcome.status == "failed"
    assert "nested deeper than 20" in outcome.error
    assert len(runs) == 22


@async_test
async def test_the_group_of_a_command_ends_whole_and_only_what_left_it_lives_on(
    tmp_path: Path,
) -> None:
    command = (
        "sleep 60 & echo $! > stays; "
        "setsid sh -c 'echo $$ > left.new; mv left.new left; exec sleep 60' & "
        "while [ ! -e left ]; do sleep 0.01; done"
    )
    outcome = await carry_out(HERE, tmp_path, block("Shell", command=command))
    left = int((tmp_path / "left").read_text())
    try:
        assert outcome.status == "completed"
        assert os.getsid(left) == left
        assert not is_alive(int((tmp_path / "stays").read_text()))
    finally:
        os.kill(left, signal.SIGKILL)
