"""The command line in processes that are forked: `run` is `holdfast …` from its start to its end.

As a module it imports everything once and forks a process for each command, so that a command does
not pay for the imports. The process has the arguments, folder, environment and files that it is
told, and its own exit code. How the real program starts and imports is tested with the program.
"""

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.processes import Child


def run(
    *arguments: str | bytes, env: Mapping[str, str], cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with nothing on its stdin."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        words = [os.fsdecode(argument) for argument in arguments]
        place = str(cwd or Path.cwd())
        code = _forking().ask([words, place, dict(env), str(out), str(err)])
        said = [file.read_text(encoding="utf-8") for file in (out, err)]
    return subprocess.CompletedProcess(words, code, *said)


@functools.cache
def _forking() -> Child:
    child = Child("tests.forked_cli", env={"PYTHONWARNINGS": "error"})
    atexit.register(child.close)
    return child


def _serve() -> None:
    from holdfast import cli

    for name in cli.COMMANDS:
        cli._root.get_command(None, name)  # type: ignore[arg-type]
    for store in ("sqlite", "postgres"):
        importlib.import_module(f"holdfast.stores.{store}.store")
        importlib.import_module(f"holdfast.wakeups.{store}")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(cli.main, *json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(
    main: Any, words: list[str], folder: str, env: dict[str, str], out: str, err: str
) -> None:
    code: Any = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:1] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv = ["holdfast", *words]
        for number, file, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, out, os.O_WRONLY | os.O_CREAT),
            (2, err, os.O_WRONLY | os.O_CREAT),
        ):
            os.dup2(os.open(file, flags), number)
        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
