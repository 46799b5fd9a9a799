"""`holdfast mcp` as clients start it: over stdio and HTTP, until a signal or the end of stdin."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from holdfast import sync
from holdfast.terminal.exits import Exit
from holdfast.testing.store_suite import async_test
from tests import forked, forked_cli
from tests.edges.mcp.driving import WIRES, told
from tests.edges.mcp.reaching import COMMAND, PROGRAM, Served, client_at, environment
from tests.forked import PIPE, Forked
from tests.processes import LIMIT_SECONDS

APP = ["--app", "program:hf"]
GREETING = """
name: greeting
inputs:
  who: {type: str}
blocks:
  - id: ask
    type: Prompt
    inputs: {prompt: "Greet {{ inputs.who }}?"}
outputs:
  said: "{{ blocks.ask.outputs.response }}"
"""


def words(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


HELLO = words(
    {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
) + words({"method": "notifications/initialized"})


def call(number: int, tool: str, **arguments: Any) -> bytes:
    params = {"name": tool, "arguments": arguments}
    return words({"id": number, "method": "tools/call", "params": params})


class Piped:
    """The command with pipes, driven by hand: what it writes is seen as it is."""

    def __init__(self, folder: Path, *options: str, is_forked: bool = True) -> None:
        (folder / "program.py").write_text(PROGRAM)
        start: Any = partial(Forked, kind="mcp") if is_forked else subprocess.Popen
        self.process = start(
            [*COMMAND, *options],
            cwd=folder,
            env=environment(folder),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        self.send(HELLO)
        assert self.receive()["id"] == 0

    def send(self, message: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def error_line(self) -> bytes:
        """The next line on stderr that the program itself did not print."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if b"SIG" in line)

    def ask(self, number: int, tool: str, **arguments: Any) -> dict[str, Any]:
        self.send(call(number, tool, **arguments))
        answer = self.receive()
        assert answer["id"] == number
        return answer["result"]["structuredContent"]

    def leave(self) -> tuple[int, bytes, bytes]:
        """Close stdin if it is open, and see how the process ends."""
        out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, out, err

    def __enter__(self) -> "Piped":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=LIMIT_SECONDS)


@asynccontextmanager
async def started(folder: Path, *options: str, mode: str) -> AsyncIterator[Client]:
    (folder / "program.py").write_text(PROGRAM)
    command, *rest = forked.command(*COMMAND[1:], *options, kind="mcp")
    parameters = StdioServerParameters(
        command=command, args=rest, cwd=str(folder), env=environment(folder)
    )
    async with Client(parameters, mode=mode) as client:
        yield client


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_a_client_starts_it_and_uses_agents_and_workflows(tmp_path: Path, wire: str) -> None:
    async with started(tmp_path, *APP, "--expose", "greet", mode=wire) as client:
        listed = {each.name for each in (await client.list_tools()).tools}
        assert {"greet", "execute_inline_workflow"} <= listed
        result = await client.call_tool("greet", {"name": "Ada"})
        assert result.structured_content == {"result": "Hello, Ada!"}
        paused = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
        assert paused["status"] == "waiting"


def test_only_the_protocol_is_on_stdout_and_the_end_of_stdin_ends_it(tmp_path: Path) -> None:
    with Piped(tmp_path, *APP, is_forked=False) as server:
        done = server.ask(1, "start_agent", agent="prints", wait_seconds=30)
        assert (done["status"], done["result"]) == ("completed", "done")
        code, out, err = server.leave()
    assert (code, out) == (Exit.OK, b"")
    assert b"printed while importing" in err
    assert b"printed while working" in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, Exit.OK), (signal.SIGINT, Exit.INTERRUPTED)]
)
def test_a_signal_ends_a_wait_with_what_there_is_and_the_run_stays(
    tmp_path: Path, number: signal.Signals, code: Exit
) -> None:
    with Piped(tmp_path, *APP) as server:
        begun = server.ask(1, "start_agent", agent="sleeps", wait_seconds=0)
        server.send(call(2, "get_run", run_id=begun["run_id"], wait_seconds=300))
        server.ask(3, "list_runs")
        server.process.send_signal(number)
        answer = server.receive()
        assert (answer["id"], answer["result"]["isError"]) == (2, False)
        assert server.process.wait(LIMIT_SECONDS) == code
        _, out, err = server.leave()
    assert out == b""
    assert f"{number.name}: taking no more".encode() in err
    with sync.open(str(tmp_path / "store.db")) as hf:
        assert hf.runs.get(begun["run_id"]).status in ("ready", "waiting")


def test_a_second_signal_does_not_wait_for_the_end_of_a_turn(tmp_path: Path) -> None:
    with Piped(tmp_path, *APP) as server:
        begun = server.ask(1, "start_agent", agent="hangs", wait_seconds=0)
        while not (tmp_path / "begun").exists():
            server.ask(2, "get_run", run_id=begun["run_id"], wait_seconds=0.1)
        server.process.send_signal(signal.SIGTERM)
        assert b"a second signal" in server.error_line()
        server.process.send_signal(signal.SIGTERM)
        code, out, _ = server.leave()
    assert (code, out) == (Exit.INTERRUPTED, b"")
    with sync.open(str(tmp_path / "store.db")) as hf:
        assert hf.runs.get(begun["run_id"]).status == "ready"


@async_test
async def test_sigterm_ends_a_wait_over_http_with_what_there_is(tmp_path: Path) -> None:
    with Served(tmp_path, *APP, "--http", "0") as server:
        async with client_at(server.url) as client:
            assert "execute_inline_workflow" not in {
                each.name for each in (await client.list_tools()).tools
            }
            begun = await told(client, "start_agent", agent="sleeps", wait_seconds=0)
            waiting = asyncio.create_task(
                told(client, "get_run", run_id=begun["run_id"], wait_seconds=300)
            )
            await told(client, "list_runs")
            server.process.send_signal(signal.SIGTERM)
            found = await waiting
        assert found["run_id"] == begun["run_id"]
        code, said = await asyncio.to_thread(server.wait)
    assert code == Exit.OK, said
    assert "Traceback" not in said


def test_a_folder_of_workflows_needs_no_program(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "greeting.yaml").write_text(GREETING)
    options = ["--store", "own.db", "--workflows", "flows", "--no-inline"]
    with Piped(tmp_path, *options) as server:
        paused = server.ask(1, "execute_workflow", name="greeting", inputs={"who": "Ada"})
        assert paused["waiting"][0]["prompt"] == "Greet Ada?"
        given = {"run_id": paused["run_id"], "answers": {"ask": "yes"}}
        ended = server.ask(2, "resume_workflow", **given)
        assert ended["result"] == {"said": "yes"}
        assert server.leave()[0] == Exit.OK
    assert (tmp_path / "state" / "holdfast" / "mcp.key").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--http", "0.0.0.0:0"], Exit.USAGE, "--tokens FILE"),
        (["--http", "far"], Exit.USAGE, "[HOST:]PORT"),
        (["--http", "0", "--tokens", "none"], Exit.NOT_FOUND, "holdfast mcp token"),
        (["--tokens", "none"], Exit.USAGE, "for --http"),
        (["--http", "0", "--key-file", "none"], Exit.NOT_FOUND, "no file none of keys"),
        (["--http", "0", "--expose", "nobody"], Exit.NOT_FOUND, "no agent 'nobody'"),
        (["--http", "0", "--workflows", "nowhere"], Exit.NOT_FOUND, "no folder nowhere"),
        (["--no-worker", "--store", "memory://"], Exit.USAGE, "name a file"),
        (["--app", "nothing:hf"], Exit.USAGE, "no module 'nothing'"),
    ],
)
def test_what_cannot_be_served_is_told(
    tmp_path: Path, options: list[str], code: Exit, said: str
) -> None:
    done = forked_cli.run("mcp", *options, env=environment(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_token_is_printed_once_and_its_digest_kept(tmp_path: Path) -> None:
    env = environment(tmp_path)
    more = ["--scope", "operator", "--expires", "30d", "-o", "json"]
    shown = forked_cli.run("mcp", "token", "ann", env=env, cwd=tmp_path)
    told = forked_cli.run("mcp", "token", "bob", *more, env=env, cwd=tmp_path)
    token, record = shown.stdout.strip(), json.loads(told.stdout)
    assert record["scopes"] == ["operator"]
    assert record["expires_at"]
    text = (tmp_path / "mcp.tokens").read_text()
    assert [line.split()[:2] for line in text.splitlines()] == [["ann", "-"], ["bob", "operator"]]
    assert token not in text
    assert record["token"] not in text
    refused = forked_cli.run("mcp", "token", "a b", env=env, cwd=tmp_path)
    assert refused.returncode == Exit.USAGE
