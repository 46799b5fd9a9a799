"""Workflows under attack: what is cut off, what quits, what changes in a pause, what has no end."""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.workflows.reaching import block, carry_out, flow, opened

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
async def test_doubt_about_a_command_that_was_cut_off_is_a_persons(tmp_path: Path) -> None:
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
