"""The command line in forked processes: `run` is `holdfast …` from its start to its end."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests import forked

MAIN = "import sys; from holdfast.cli import main; sys.argv[0] = 'holdfast'; main()"
_KINDS = {"mcp": "mcp", "import": "langgraph"}


def run(
    *arguments: str | bytes, env: Mapping[str, str], cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with nothing on its stdin."""
    words = [os.fsdecode(argument) for argument in arguments]
    kind = _KINDS.get(words[0], "holdfast") if words else "holdfast"
    given = {**env, "PYTHONWARNINGS": "error"}
    return forked.run(["-c", MAIN, *words], env=given, cwd=cwd or Path.cwd(), kind=kind)
