"""Keys that seal what clients bring back: where they come from, and that none is ever shown."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import settings
from holdfast.edges.mcp.access import keys
from holdfast.errors import HoldfastError, InvalidSetting, MisuseError, NotFoundError
from tests.edges.mcp.reaching import environment

ONE, TWO = "1" * 32, "zwei" * 8


def test_the_environment_has_several_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MCP_KEYS", f"{ONE}, {TWO},")
    assert keys.find() == [ONE, TWO]
    assert "HOLDFAST_MCP_KEYS" not in settings.command_environment()


def test_a_file_counts_more_and_must_be_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MCP_KEYS", ONE)
    file = tmp_path / "keys"
    with pytest.raises(NotFoundError, match="no file"):
        keys.find(file)
    file.write_text(f"\n{TWO}\n")
    file.chmod(0o640)
    with pytest.raises(MisuseError, match="chmod go="):
        keys.find(file)
    file.chmod(0o600)
    assert keys.find(file) == [TWO]
    file.write_text("\n")
    with pytest.raises(InvalidSetting, match="no key"):
        keys.find(file)


@pytest.mark.parametrize(
    ("given", "said"), [(f"{ONE},secretive", "key 2 .* 9 bytes"), (f"{ONE},{ONE}", "twice")]
)
def test_a_key_that_is_weak_is_refused_and_not_shown(
    given: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MCP_KEYS", given)
    with pytest.raises(InvalidSetting, match=said) as refused:
        keys.find()
    assert "secretive" not in str(refused.value)
    assert ONE not in str(refused.value)


FORKED = """
import os
from holdfast.edges.mcp.access import keys
gate, opening = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(opening)
        os.read(gate, 1)
        os.write(1, (keys.find()[0] + "\\n").encode())
        os._exit(0)
os.close(opening)
while True:
    try: os.wait()
    except ChildProcessError: break
"""


def test_processes_that_start_together_agree_on_a_key_of_the_user(tmp_path: Path) -> None:
    env = environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=env, capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert len(said) == 8
    (key,) = set(said)
    folder = tmp_path / "state" / "holdfast"
    assert [each.name for each in folder.iterdir()] == ["mcp.key"]
    assert (folder / "mcp.key").read_text() == f"{key}\n"
    assert (folder / "mcp.key").stat().st_mode & 0o777 == 0o600
    assert len(key) == 64


def test_a_key_of_the_user_that_others_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_MCP_KEYS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert keys.find() == keys.find()
    (tmp_path / "holdfast" / "mcp.key").chmod(0o644)
    with pytest.raises(MisuseError, match="chmod go="):
        keys.find()


def test_without_a_home_there_is_a_key_for_this_process_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOLDFAST_MCP_KEYS", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        one, two = keys.find(), keys.find()
    assert one != two
    assert "must be answered with the tools" in caplog.text
    assert one[0] not in caplog.text


def test_a_server_refuses_a_weak_key(tmp_path: Path) -> None:
    from holdfast.edges.mcp import McpServer
    from tests.edges.mcp.app import make

    with pytest.raises(HoldfastError, match="needs 32"):
        McpServer(make(str(tmp_path / "store.db"), tmp_path / "ledger"), keys=["short"])
