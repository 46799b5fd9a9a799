"""Forks programs: `python -m tests.zygote SOCKET MODULE…`, driven by `tests.forked`.

It imports the modules once. For each connection it forks a process which becomes the program that
is asked for, has the files that came along as its stdin, stdout and stderr, and ends as any
interpreter does. The connection is told its pid, and then how it ended. The end of stdin ends it.
"""

import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import socket
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any


def serve(place: str) -> Callable[[], None]:
    """Fork until stdin ends; returns in each forked process too, with what that one is to do."""
    with (
        selectors.DefaultSelector() as selector,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(place)
        listening.listen(64)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        print('"ready"', flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    orders, files = _received(connection)
                    pid = os.fork()
                    if pid == 0:
                        return functools.partial(_become, files, **orders)
                    for file in files:
                        os.close(file)
                    connection.sendall(b"%d\n" % pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
                elif key.data is None:
                    return lambda: None
                else:
                    _tell_end(selector, key)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as reading:
        return json.load(reading), files


def _tell_end(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, connection = key.data
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    selector.unregister(key.fileobj)
    os.close(key.fd)
    with connection, suppress(OSError):  # whoever asked may be gone
        connection.sendall(b"%d\n" % code)


def _become(files: list[int], words: list[str], folder: str, env: dict[str, str]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1024)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (it is open until the end)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    paths = [path for path in sys.path[1:] if path not in _paths(os.environ)]
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = ["", *_paths(env), *paths]
    if env.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)  # type: ignore[arg-type]
    if env.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    _take_name(words)
    _run(*words)


def _take_name(words: list[str]) -> None:
    """Show in lists of processes which program this is: its command is the zygote's."""
    name = words[1] if words[0] in ("-m", "-c") else words[0]
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name.rpartition("/")[2].removeprefix("tests.")[:15])


def _run(option: str, *rest: str) -> None:
    """What an interpreter does with `-m MODULE …`, `-c PROGRAM …` and `FILE …`."""
    if option == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(module))
    else:
        sys.argv = [option, *rest]
        sys.path[0] = os.path.dirname(option)
        runpy.run_path(option, run_name="__main__")


def _paths(env: Mapping[str, str]) -> list[str]:
    return [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in names:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    serve(place)()
