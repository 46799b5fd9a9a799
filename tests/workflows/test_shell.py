"""Shell blocks: what they run, how it ends, and that nothing of it is left behind."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import NotDone, WorkflowInvalid
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block
from holdfast.workflows.access import commands
from tests.workflows.reaching import block, carry_out, flow, opened, result

HERE = "memory://"


def shell(command: str | list[str], id: str = "it", **inputs: Any) -> Block:
    options = {key: inputs.pop(key) for key in ("timeout", "retries") if key in inputs}
    return block("Shell", id, options=options, command=command, **inputs)


@async_test
async def test_a_command_gives_its_outputs(store: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    made = shell(
        'pwd; echo "$GREETING $N"; cat; echo oops >&2',
        cwd="below",
        env={"GREETING": "hello", "N": 3},
        stdin="from stdin\n",
    )
    found = await result(store, tmp_path, made)
    assert (found.status, found.error) == ("completed", "")
    folder = (tmp_path / "below").resolve()
    assert found.outputs == {
        "stdout": f"{folder}\nhello 3\nfrom stdin\n",
        "stderr": "oops\n",
        "exit_code": 0,
    }


@async_test
async def test_a_list_of_words_meets_no_shell(tmp_path: Path) -> None:
    found = await result(HERE, tmp_path, shell(["printf", "%s|", "$HOME", "a b", ";ls"]))
    assert found.outputs["stdout"] == "$HOME|a b|;ls|"


@async_test
async def test_an_exit_code_is_a_failure_with_outputs_unless_it_is_told_to_be_none(
    store: str, tmp_path: Path
) -> None:
    command = "echo partly; echo no luck >&2; exit 3"
    outcome = await carry_out(
        store, tmp_path, shell(command, "bad"), shell(command, "good", exit_codes=[0, 3])
    )
    bad, good = outcome.blocks["bad"], outcome.blocks["good"]
    assert (bad.status, bad.error) == ("failed", "the command exited with 3: no luck")
    assert bad.outputs == {"stdout": "partly\n", "stderr": "no luck\n", "exit_code": 3}
    assert (good.status, good.outputs["exit_code"]) == ("completed", 3)


@async_test
async def test_a_signal_is_told(tmp_path: Path) -> None:
    found = await result(HERE, tmp_path, shell("kill -9 $$"))
    assert (found.status, found.error) == ("failed", "the command was ended by signal 9")


@async_test
async def test_what_cannot_be_started_has_not_happened(tmp_path: Path) -> None:
    async with opened(HERE, tmp_path) as hf:
        made = flow(shell(["no-such-program-anywhere"]))
        outcome = await hf.workflows.run(made, run_id="r")
        assert outcome.status == "failed"
        assert outcome.blocks["it"].error.startswith("the command cannot be started: ")
        (effect,) = await hf.effects.of_run("r")
        assert effect.status.value == "not_done"


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"command": ""}, "needs a command"),
        ({"command": []}, "needs a command"),
        ({"command": "true", "cwd": "{{ '..' }}"}, "outside the folder"),
        ({"command": "true", "cwd": "missing"}, "no folder"),
        ({"command": "true", "cwd": "{{ '/' }}"}, "outside the folder"),
        ({"command": "true", "effect": "read", "verify": "true"}, "verify is for"),
        ({"command": "a\0b"}, "cannot be started"),
    ],
)
@async_test
async def test_mistakes_are_told(tmp_path: Path, inputs: dict[str, Any], reason: str) -> None:
    found = await result(HERE, tmp_path, block("Shell", **inputs))
    assert found.status == "failed"
    assert reason in found.error


@async_test
async def test_an_effect_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(WorkflowInvalid, match="effect must be one of"):
        await result(HERE, tmp_path, shell("echo x > done", effect="maybe"))
    assert not (tmp_path / "done").exists()


@async_test
async def test_large_outputs_are_cut_in_the_middle_and_block_nobody(
    store: str, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "for out in (sys.stdout, sys.stderr):\n"
        "    out.write('first\\n' + 'x' * 5_000_000 + '\\nlast'); out.flush()\n"
    )
    (tmp_path / "loud.py").write_text(script)
    found = await result(store, tmp_path, shell("python3 loud.py", stdin="y" * 3_000_000))
    for name in ("stdout", "stderr"):
        text = found.outputs[name]
        assert text.startswith("first\nxxx")
        assert text.endswith("xxx\nlast")
        assert "bytes are left out here" in text
        assert len(text) < 300_000


@async_test
async def test_bytes_that_are_no_text_are_replaced(store: str, tmp_path: Path) -> None:
    found = await result(store, tmp_path, shell(r"printf 'a\377\000b'"))
    assert found.outputs["stdout"] == "a�\0b"


@async_test
async def test_a_timeout_ends_all_processes_and_is_a_known_failure(
    store: str, tmp_path: Path
) -> None:
    command = (
        "trap '' TERM; sleep 300 & echo $! >> pids; sh -c 'trap \"\" TERM; sleep 300' & "
        "echo $! >> pids; echo begun; wait; sleep 300"
    )
    async with opened(store, tmp_path) as hf:
        outcome = await hf.workflows.run(flow(shell(command, timeout=0.5)), run_id="r")
        assert outcome.status == "failed"
        found = outcome.blocks["it"]
        assert found.error == "the command took over 0.5 s and was ended"
        assert found.outputs["stdout"] == "begun\n"
        (effect,) = await hf.effects.of_run("r")
        assert effect.status.value == "completed"
    assert not [pid for pid in pids(tmp_path) if is_alive(pid)]


@async_test
async def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    found = await result(HERE, tmp_path, shell("sleep 300 & echo $! > pids; echo done"))
    assert found.outputs["stdout"] == "done\n"
    assert not [pid for pid in pids(tmp_path) if is_alive(pid)]


@async_test
async def test_a_command_ends_when_its_run_is_left(tmp_path: Path) -> None:
    async with opened(HERE, tmp_path, shutdown_seconds=0.5) as hf:
        made = flow(shell("sleep 300 & echo $! > pids.new; mv pids.new pids; wait"))
        task = asyncio.create_task(hf.workflows.run(made, run_id="r"))
        async with asyncio.timeout(60):
            while not (tmp_path / "pids").exists():
                await asyncio.sleep(0.01)
    await asyncio.wait([task], timeout=30)
    assert task.done()
    assert not [pid for pid in pids(tmp_path) if is_alive(pid)]


@async_test
async def test_a_machine_without_a_shell_is_told_and_no_pipe_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_SHELL", "/no/such/shell")
    command = commands.Command(command=["true"], cwd=tmp_path, env={}, seconds=5)
    before = sorted(os.listdir("/dev/fd"))
    with pytest.raises(NotDone, match="/no/such/shell"):
        await commands.run(command)
    assert sorted(os.listdir("/dev/fd")) == before


@async_test
async def test_a_failed_command_is_run_again_as_often_as_the_block_says(tmp_path: Path) -> None:
    command = "echo x >> tries; test $(wc -l < tries) -eq 2"
    found = await result(HERE, tmp_path, shell(command, retries=3))
    assert (found.status, found.attempts) == ("completed", 2)
    assert (tmp_path / "tries").read_text() == "x\nx\n"


@async_test
async def test_a_command_finds_its_key(tmp_path: Path) -> None:
    async with opened(HERE, tmp_path) as hf:
        made = flow(shell("echo $HOLDFAST_EFFECT_KEY"))
        outcome = await hf.workflows.run(made, run_id="r")
        (effect,) = await hf.effects.of_run("r")
        assert outcome.blocks["it"].outputs["stdout"] == f"{effect.key}\n"


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    if stat.rpartition(")")[2].split()[0] in "ZX":
        return False
    os.kill(pid, 0)
    return True
