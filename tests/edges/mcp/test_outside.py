"""Tools of other MCP servers: real servers, on pipes and over HTTP."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import holdfast
from holdfast import ToolCall, ToolResult
from holdfast.compat.loops import Checkpointer, ToolRegistry
from holdfast.edges.mcp import McpTools, mcp_tools
from holdfast.edges.mcp.client.connection import Lost
from holdfast.errors import McpUnavailable, MisuseError, RunBlocked, RunFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds
from tests.edges.mcp import servers
from tests.edges.mcp.servers import lines
from tests.workflows.flows import call, flow, opened

HERE = "memory://"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server over HTTP that all tests of this module may use, and its file."""
    file = tmp_path_factory.mktemp("served") / "ledger"
    with servers.serving(file, servers.free_port()) as url:
        yield url, file


async def on_pipes(tmp_path: Path, **options: Any) -> McpTools:
    file = tmp_path / "ledger"
    return await mcp_tools(servers.command(file), env=servers.environment(), **options)


def caller(tools: McpTools) -> holdfast.Agent[[list[ToolCall]], list[tuple[str, bool]]]:
    """An agent that makes the calls it is told."""

    @holdfast.agent(tools=[*tools], name="caller")
    async def make(run: holdfast.Run, calls: list[ToolCall]) -> list[tuple[str, bool]]:
        found = [message.results[0] for message in await run.tools(calls)]
        return [(result.content, result.is_error) for result in found]

    return make


async def kinds_of(hf: holdfast.Holdfast, run_id: str) -> list[str]:
    return [kind for kind in await kinds(hf, run_id) if kind.startswith("EFFECT_")]


@async_test
async def test_annotations_say_what_repeating_a_tool_would_do(served: tuple[str, Path]) -> None:
    tools = await mcp_tools(served[0])
    classes = {tool.name: tool.policy.effect for tool in tools}
    assert classes.pop("look") == "read"
    assert classes.pop("note") == "idempotent"
    assert set(classes.values()) == {"mutate"}
    assert tools["pay"].description == "Pay a number."
    doubted = await mcp_tools(
        served[0],
        names=["look", "pay"],
        prefix="bank_",
        trust_annotations=False,
        effects={"pay": "idempotent"},
    )
    found = [(tool.name, tool.policy.effect) for tool in doubted]
    assert found == [("bank_look", "mutate"), ("bank_pay", "idempotent")]


@pytest.mark.parametrize("options", [{"names": ["steal"]}, {"effects": {"steal": "read"}}])
@async_test
async def test_tool_that_is_not_there_is_a_mistake(
    served: tuple[str, Path], options: dict[str, Any]
) -> None:
    with pytest.raises(MisuseError, match="no tool 'steal'; its tools are: draw, fail"):
        await mcp_tools(served[0], **options)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@async_test
async def test_calls_are_journaled_and_their_keys_go_along_on_both_wires(
    served: tuple[str, Path], mode: str
) -> None:
    tools = await mcp_tools(served[0], mode=mode)
    agent = caller(tools)
    calls = [
        ToolCall("c1", "pay", {"number": 5}),
        ToolCall("c2", "pay", {"number": "five"}),
        ToolCall("c3", "look", {"number": 5}),
        ToolCall("c4", "pay", {"number": 5}),
        ToolCall("c5", "fail", {"number": 6}),
    ]
    async with holdfast.Holdfast(HERE, agents=[agent]) as hf:
        paid, refused, _, again, failed = await hf.run(agent, calls, run_id=f"run-{mode}")
        journal = await kinds_of(hf, f"run-{mode}")
    await tools.close()
    assert paid == ('{"result":"paid 5"}', False)
    assert refused[1]
    assert '"five" is not a whole number' in refused[0]
    assert again == ('[idempotent replay of c1]: {"result":"paid 5"}', False)
    assert failed == ("the server answered with an error: Error executing tool fail", True)
    # What only reads, and what was refused, is not on record; the error is, as a result.
    assert sorted(journal) == ["EFFECT_COMPLETED"] * 2 + ["EFFECT_ISSUED"] * 2
    mine = [line for line in lines(served[1]) if line.run == f"run-{mode}"]
    by_what = {line.what: (line.call, len(line.key)) for line in mine}
    assert by_what == {"fail": ("c5", 64), "look": ("c3", 1), "pay": ("c1", 64)}
    assert len({line.key for line in mine}) == len(mine) == 3


@pytest.mark.parametrize(
    ("tool", "number", "errors", "known"),
    [
        ("fail", 1, "answer", "EFFECT_COMPLETED"),
        ("fail", 1, "not_done", "EFFECT_NOT_DONE"),
        ("fail", 1, "unknown", "EFFECT_UNKNOWN"),
        ("refuse", -32602, "answer", "EFFECT_UNKNOWN"),
        ("refuse", -32601, "answer", "EFFECT_NOT_DONE"),
    ],
)
@async_test
async def test_what_is_known_after_a_server_answered_with_an_error(
    served: tuple[str, Path], tool: str, number: int, errors: Any, known: str
) -> None:
    tools = await mcp_tools(served[0], errors=errors)

    @holdfast.agent(name="code")
    async def code(run: holdfast.Run) -> str:
        return await run.call(tools[tool], number=number)

    async with holdfast.Holdfast(HERE, agents=[code]) as hf:
        with pytest.raises(RunBlocked if known == "EFFECT_UNKNOWN" else RunFailed):
            await hf.run(code, run_id="r")
        assert await kinds_of(hf, "r") == ["EFFECT_ISSUED", known]
    await tools.close()


@async_test
async def test_calls_at_once_share_a_connection_and_the_command_ends_with_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ledger"
    tools = await on_pipes(tmp_path)
    both = asyncio.gather(*(tools["pay_slowly"](number=n) for n in (1, 2)))
    while len(lines(file)) < 2:
        await asyncio.sleep(0.01)
    (tmp_path / "go").touch()
    assert await both == ["paid 1", "paid 2"]
    (pid,) = {line.pid for line in lines(file)}
    assert servers.is_alive(pid)
    await tools.close()
    assert not servers.is_alive(pid)
    assert await tools["pay_slowly"](number=3) == "paid 3"
    await tools.close()


@async_test
async def test_connection_that_nobody_uses_is_left_and_the_command_ends(tmp_path: Path) -> None:
    tools = await on_pipes(tmp_path, names=["pay"], idle_seconds=0.1)
    await tools["pay"](number=1)
    (line,) = lines(tmp_path / "ledger")
    await asyncio.to_thread(servers.wait_for, lambda: not servers.is_alive(line.pid))
    await tools["pay"](number=2)
    assert lines(tmp_path / "ledger")[1].pid != line.pid
    # Nobody closes the last one: it ends with the event loop.


@async_test
async def test_call_that_takes_too_long_may_have_happened(served: tuple[str, Path]) -> None:
    tools = await mcp_tools(served[0], options={"pay_slowly": {"limit_seconds": 0.5}})
    await tools["look"](number=0)
    agent = caller(tools)
    calls = [
        ToolCall("c1", "pay_slowly", {"number": 81}),
        ToolCall("c2", "pay", {"number": 82}),
    ]
    async with holdfast.Holdfast(HERE, agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match="pay_slowly happened"):
            await hf.run(agent, calls, run_id="r")
        found = {effect.tool: effect.status for effect in await hf.effects.of_run("r")}
    await tools.close()
    assert found == {"pay_slowly": "unknown", "pay": "completed"}


@async_test
async def test_server_killed_in_a_call_blocks_the_run_until_somebody_knows(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    tools = await on_pipes(tmp_path, names=["pay_slowly"])
    agent = caller(tools)
    calls = [ToolCall("c1", "pay_slowly", {"number": 1})]
    async with holdfast.Holdfast(HERE, agents=[agent]) as hf:
        running = asyncio.ensure_future(hf.run(agent, calls, run_id="r"))
        while not lines(file):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(servers.kill, lines(file)[0].pid)
        with pytest.raises(RunBlocked):
            await running
        assert (await hf.runs.get("r")).blocked_reason == "unknown_effect"
        (effect,) = await hf.effects.unsettled()
        await hf.effects.settle(effect.effect_id, "not_done", retry=True, by="ann")
        (tmp_path / "go").touch()
        assert await hf.run(agent, calls, run_id="r") == [("paid 1", False)]
    await tools.close()
    first, second = lines(file)
    assert first.key == second.key
    assert first.pid != second.pid


@async_test
async def test_server_that_is_away_was_asked_nothing_and_is_asked_when_it_is_back(
    tmp_path: Path,
) -> None:
    file, port = tmp_path / "ledger", servers.free_port()
    with servers.serving(file, port) as url:
        tools = await mcp_tools(url, retries=0)
        assert await tools["pay"](number=1) == {"result": "paid 1"}
    agent = caller(tools)
    pay = [ToolCall("c1", "pay", {"number": 2})]
    async with holdfast.Holdfast(HERE, agents=[agent]) as hf:
        ((said, is_error),) = await hf.run(agent, pay, run_id="r")
        assert is_error
        assert "NotDone: nothing was sent to" in said or "cannot be reached" in said
        assert await kinds_of(hf, "r") == ["EFFECT_ISSUED", "EFFECT_NOT_DONE"]
        with servers.serving(file, port):
            assert await hf.run(agent, pay, run_id="s") == [('{"result":"paid 2"}', False)]
            await tools.close()
    with pytest.raises(McpUnavailable):
        await tools["look"](number=1)
    assert [line.number for line in lines(file)] == [1, 2]


@async_test
async def test_server_that_was_started_anew_meanwhile_is_asked_by_a_new_connection(
    tmp_path: Path,
) -> None:
    file, port = tmp_path / "ledger", servers.free_port()
    with servers.serving(file, port) as url:
        tools = await mcp_tools(url, mode="legacy")
        await tools["pay"](number=1)
    with servers.serving(file, port):
        await tools["pay"](number=2)
        await tools.close()
    commands = await on_pipes(tmp_path)
    await commands["pay"](number=3)
    await asyncio.to_thread(servers.kill, lines(file)[-1].pid)
    with suppress(Lost):  # it may not have been noticed yet
        await commands["look"](number=0)
    await commands["pay"](number=4)
    await commands.close()
    paid = [line for line in lines(file) if line.what == "pay"]
    assert [line.number for line in paid] == [1, 2, 3, 4]
    assert len({line.pid for line in paid}) == 4


@async_test
async def test_large_data_is_told_of_and_small_is_given(served: tuple[str, Path]) -> None:
    tools = await mcp_tools(served[0], names=["draw"])
    text, small = await tools["draw"](size=8)
    _, large = await tools["draw"](size=100_000)
    await tools.close()
    assert text == {"type": "text", "text": "seen"}
    assert small == {"type": "image", "mimeType": "image/png", "data": "AAAAAAAA"}
    assert large["bytes"] == 75_000
    assert "left out" in large["data"]


@async_test
async def test_registry_and_workflow_use_them_too(served: tuple[str, Path], tmp_path: Path) -> None:
    tools = await mcp_tools(served[0])
    pays, fails = call("pays", "pay", args={"number": 73}), call("f", "fail", args={"number": 74})
    async with opened(HERE, tools=[*tools]) as hf:
        done = await hf.workflows.run(flow(pays, fails), run_id="w", timeout=30)
    assert done.blocks["pays"].outputs == {"result": {"result": "paid 73"}}
    assert done.blocks["f"].status == "failed"
    async with Checkpointer(str(tmp_path / "store.db")) as checkpointer:
        registry = ToolRegistry([*tools], checkpointer, "session")
        answers: list[ToolResult] = [
            await registry.adispatch("pay", {"number": 71}, "c1"),
            await registry.adispatch("pay", {"number": 71}, "c2"),
            await registry.adispatch("fail", {"number": 72}, "c3"),
            await registry.adispatch("fail", {"number": 72}, "c4"),
        ]
    assert [answer.is_error for answer in answers] == [False, False, True, True]
    assert [line.number for line in lines(served[1]) if line.number in (71, 72)] == [71, 72]
    await tools.close()


class BreaksOff(BaseHTTPRequestHandler):
    """Pays, breaks off its answer, and does not know the stream when it is asked for the rest."""

    paid: list[Any]
    status: int

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = asked["method"]
        if method == "tools/call":
            self.paid.append(asked)
            self._answer("text/event-stream", b"retry: 1\nid: 1\ndata: \n\n", {})
        elif method == "initialize":
            about = {"name": "bank", "version": "1"}
            told = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": about}
            self._result(asked, told, {"mcp-session-id": "s"})
        else:
            self._result(asked, {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}, {})

    def _result(self, asked: dict[str, Any], result: Any, headers: dict[str, str]) -> None:
        told = {"jsonrpc": "2.0", "id": asked.get("id"), "result": result}
        self._answer("application/json", json.dumps(told).encode(), headers)

    def _answer(self, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        about = {"content-type": kind, "content-length": str(len(body)), **headers}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("status", [404, 405])
@async_test
async def test_answer_that_broke_off_and_is_not_there_any_more_may_have_happened(
    status: int,
) -> None:
    paid: list[Any] = []
    kind = type("Handler", (BreaksOff,), {"status": status, "paid": paid})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        tools = await mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp", mode="legacy")
        agent = caller(tools)
        async with holdfast.Holdfast(HERE, agents=[agent]) as hf:
            with pytest.raises(RunBlocked):
                await hf.run(agent, [ToolCall("c1", "pay", {})], run_id="r")
            assert await kinds_of(hf, "r") == ["EFFECT_ISSUED", "EFFECT_UNKNOWN"]
        await tools.close()
        server.shutdown()
    assert len(paid) == 1


class CutsShort(BreaksOff):
    """Cuts its answer to one call short, and answers the other one when it may."""

    may: Event

    def do_POST(self) -> None:
        self.close_connection = True
        super().do_POST()

    def _answer(self, kind: str, body: bytes, headers: dict[str, str]) -> None:
        if kind == "application/json":
            super()._answer(kind, body, headers)
        elif self.paid[-1]["params"]["arguments"]:
            super()._answer("application/json", b'{"jsonrpc": "2', {"content-length": "99"})
        else:
            asked = self.paid[-1]
            self.may.wait(60)
            self._result(asked, {"content": [{"type": "text", "text": "paid"}]}, {})


@async_test
async def test_answer_that_is_cut_short_takes_no_other_call_along() -> None:
    paid: list[Any] = []
    may = Event()
    kind = type("Handler", (CutsShort,), {"status": 405, "paid": paid, "may": may})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        tools = await mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp", mode="legacy")
        other = asyncio.create_task(tools["pay"]())
        while not paid:
            await asyncio.sleep(0.01)
        with pytest.raises(Lost):
            await tools["pay"](cut=True)
        may.set()
        assert await other == "paid"
        await tools.close()
        server.shutdown()


class Unwilling(BaseHTTPRequestHandler):
    """Answers with a status and a page, whatever it is asked."""

    status = 401

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"<p/>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "said"), [(401, "answered 401.*Authorization"), (200, "not answer as an MCP server")]
)
@async_test
async def test_address_that_does_not_answer_as_an_mcp_server_is_told(
    status: int, said: str
) -> None:
    kind = type("Handler", (Unwilling,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(McpUnavailable, match=said):
            await mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp")
        server.shutdown()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no-such-command-here --now", "cannot be started.*Is it installed"),
        (["sh", "-c", "echo out of order >&2; exit 3"], "it printed:\nout of order"),
        ("http://127.0.0.1:1/mcp", "cannot be reached: ConnectError"),
    ],
)
@async_test
async def test_server_that_does_not_start_is_told_with_what_it_said(target: Any, said: str) -> None:
    with pytest.raises(McpUnavailable, match=said):
        await mcp_tools(target)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("", {}),
        ("server", {"headers": {"a": "b"}}),
        ("http://127.0.0.1:1", {"env": {"a": "b"}}),
        ("server", {"errors": "ignore"}),
        ("server", {"timeout": 0}),
    ],
)
@async_test
async def test_mistakes_are_refused_before_anything_is_started(target: str, options: Any) -> None:
    with pytest.raises(MisuseError):
        await mcp_tools(target, **options)
