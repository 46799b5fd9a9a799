"""What clients read of runs: timelines, transcripts, results, definitions; and news of them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

import holdfast
from holdfast.agents.definitions.messages import Message, ToolCall, ToolResult
from holdfast.edges.mcp import McpServer
from holdfast.edges.mcp.resources import addresses, resources, subscriptions, timelines, transcripts
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.edges.mcp.app import greet
from tests.edges.mcp.driving import WIRES, served, told

OLDER_WIRE = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
STRANGE = "a b/c?d=e#f 'g' \"h\" %2F ü 🦞"


@holdfast.agent
async def talks(run: holdfast.Run, long: int = 0) -> str:
    talk = run.log("conversation", Message)
    talk.append(Message.user("What does it cost?"))
    asked = ToolCall("c1", "price", {"of": "apples"})
    talk.append(Message.assistant("I look it up.", [asked]))
    talk.append(Message.tool(ToolResult("c1", "3 ```EUR```")))
    for number in range(long):
        talk.append(Message.assistant(f"word {number} " + "x" * 20_000))
    await run.checkpoint()
    return "3 EUR"


@asynccontextmanager
async def talking(url: str) -> AsyncIterator[tuple[holdfast.Holdfast, Any]]:
    async with (
        holdfast.Holdfast(url, agents=[talks, greet]) as hf,
        McpServer(hf, works=False) as server,
    ):
        yield hf, server.lowlevel


async def text_at(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    assert str(content.uri) == uri
    return content.text


def entries_in(timeline: str) -> list[str]:
    return [line for line in timeline.splitlines() if re.match(r"- \d+ · ", line)]


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_the_story_of_a_workflow_can_be_read(tmp_path: Path, wire: str) -> None:
    async with served(tmp_path) as (_, server), Client(server, mode=wire) as client:
        given = {"name": "release", "inputs": {"version": "1"}, "run_id": STRANGE}
        await told(client, "execute_workflow", **given)
        open_one = await text_at(client, addresses.transcript(STRANGE))
        assert "Release 1?\n\n*open*" in open_one
        await told(client, "resume_workflow", run_id=STRANGE, answers={"approve": "yes"})
        timeline = await text_at(client, addresses.timeline(STRANGE))
        lines = entries_in(timeline)
        assert lines[0].endswith("begun: workflow release")
        assert lines[1].endswith("took it")
        assert "waits for an answer: approve" in timeline
        assert "calls charge" in timeline
        assert "charge is done" in timeline
        assert "got an answer: approve" in timeline
        assert "block charge completed" in timeline
        assert lines[-1].endswith("completed")
        assert [int(line.split()[1]) for line in lines] == list(range(1, len(lines) + 1))
        transcript = await text_at(client, addresses.transcript(STRANGE))
        assert '"version": "1"' in transcript
        assert "Block charge · Tool · completed" in transcript
        assert "charged 1" in transcript
        order = ("Block approve", "Question approve\n\nRelease 1?", "Block charge", "## Result")
        places = [transcript.index(words) for words in order]
        assert places == sorted(places)
        assert json.loads(await text_at(client, addresses.result(STRANGE))) == {"said": "yes"}
        defined = json.loads(await text_at(client, addresses.workflow("release")))
        assert [each["id"] for each in defined["blocks"]] == ["approve", "charge"]


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_what_is_not_there_is_told_as_the_wire_wants(tmp_path: Path, wire: str) -> None:
    async with talking(str(tmp_path / "s.db")) as (hf, server), Client(server, mode=wire) as client:
        await hf.start(talks, run_id="r")
        for uri in (
            "test://nothing",
            "holdfast://runs/none/timeline",
            "holdfast://runs/%00/timeline",
            "holdfast://runs//timeline",
            "holdfast://runs/r/timeline?after=-1",
            "holdfast://runs/r/timeline?after=ten",
            "holdfast://runs/r/result",
            "holdfast://workflows/..%2F..%2Fetc%2Fpasswd",
        ):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert refused.value.error.code == (-32002 if wire == "legacy" else -32602), uri
            assert refused.value.error.data == {"uri": uri}


@async_test
async def test_runs_are_listed_in_pages_with_the_workflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PAGE", 2)
    (tmp_path / "flows").mkdir()
    source = "name: filed\nblocks:\n- {id: a, type: Shell, inputs: {command: 'true'}} # kept\n"
    (tmp_path / "flows" / "one.yaml").write_text(source)
    async with (
        holdfast.Holdfast(str(tmp_path / "s.db"), agents=[talks]) as hf,
        McpServer(hf, workflows=tmp_path / "flows", works=False) as server,
        Client(server.lowlevel) as client,
    ):
        for name in ("1", STRANGE, "3"):
            await hf.start(talks, run_id=name)
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        assert [each.name for each in first.resources] == ["filed", "3", STRANGE]
        assert [each.name for each in second.resources] == ["1"]
        assert second.next_cursor is None
        assert await text_at(client, str(first.resources[0].uri)) == source
        assert "begun: talks" in await text_at(client, str(first.resources[2].uri))
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor="nothing")
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == [
            "holdfast://runs/{run_id}/timeline{?after}",
            "holdfast://runs/{run_id}/transcript",
            "holdfast://runs/{run_id}/result",
            "holdfast://workflows/{name}",
        ]


@async_test
async def test_a_long_timeline_is_read_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "PAGE", 3)
    async with talking(str(tmp_path / "s.db")) as (hf, server), Client(server) as client:
        await hf.start(talks, run_id="r")
        for number in range(7):
            await hf.runs.block("r", "budget", note=f"no {number}")
            await hf.runs.unblock("r", by="ann")
        newest = await text_at(client, addresses.timeline("r"))
        assert [line.split()[1] for line in entries_in(newest)] == ["13", "14", "15"]
        (earlier,) = re.findall(r"Earlier entries: (\S+)", newest)
        assert earlier == "holdfast://runs/r/timeline?after=9"
        seen: list[str] = []
        uri: str | None = addresses.timeline("r", after=0)
        while uri is not None:
            page = await text_at(client, uri)
            seen += [line.split()[1] for line in entries_in(page)]
            uri = next(iter(re.findall(r"More: (\S+)", page)), None)
        assert seen == [str(number) for number in range(1, 16)]
        assert "There is no entry" in await text_at(client, addresses.timeline("r", after=99))
        assert "budget): no 6" in newest
        assert "by ann · may go on" in newest


@async_test
async def test_messages_are_told_with_calls_and_results(tmp_path: Path) -> None:
    async with talking(str(tmp_path / "s.db")) as (hf, server), Client(server) as client:
        await hf.run(talks, run_id="r")
        told = await text_at(client, addresses.transcript("r"))
        assert "## conversation: 3 messages" in told
        assert re.search(r"### 1 · user · \S+\n\nWhat does it cost\?", told)
        assert '**calls price** (c1)\n\n```json\n{\n "of": "apples"\n}\n```' in told
        assert "**gave** (c1)\n\n````\n3 ```EUR```\n````" in told
        assert "## Result\n\n```\n3 EUR\n```" in told
        await hf.run(talks, 40, run_id="long")
        told = await text_at(client, addresses.transcript("long"))
        assert "… (12008 characters more)" in told
        assert "earlier pieces are left out" in told
        assert "word 39 " in told
        assert "What does it cost" not in told
        assert len(told) < transcripts.MOST_CHARACTERS * 1.1


@async_test
async def test_damage_is_told_in_its_line_and_never_shown(backend: Backend) -> None:
    async with talking(backend.url) as (hf, server), Client(server) as client:
        await hf.run(talks, run_id="r")
        before = entries_in(await text_at(client, addresses.timeline("r")))
        with backend.raw() as raw:
            saved = next(row[0] for row in raw.entries() if row[1] == "CHECKPOINT_CREATED")
            raw.execute("UPDATE journal SET actor = 'mallory' WHERE seq = ?", saved)
        after = entries_in(await text_at(client, addresses.timeline("r")))
        differing = [
            new for old, new in zip(before, after, strict=True) if old != new and "DAMAGED" in new
        ]
        assert differing == [
            f"- {saved} · DAMAGED: it does not fit the chain, so what it says is not shown"
        ]
        assert [line for line in after if line not in differing] == [
            line for line in before if line.split()[1] != str(saved)
        ]
        transcript = await text_at(client, addresses.transcript("r"))
        assert "*Messages: damaged, so not shown." in transcript
        assert "What does it cost" not in transcript
        assert "3 EUR" in transcript


@async_test
async def test_what_was_erased_is_told_and_gone(tmp_path: Path) -> None:
    async with served(tmp_path) as (hf, server), Client(server) as client:
        given = {"name": "release", "inputs": {"version": "Secret"}, "run_id": "r"}
        await told(client, "execute_workflow", **given)
        await told(client, "resume_workflow", run_id="r", answers={"approve": "no"})
        assert await hf.workflows.cleanup_expired(0) == 1
        timeline = await text_at(client, addresses.timeline("r"))
        assert "begun: workflow release (its content is erased)" in timeline
        assert "held is erased: the workflow ended long ago" in timeline
        assert "DAMAGED" not in timeline
        transcript = await text_at(client, addresses.transcript("r"))
        for what in ("*Input: erased.*", "*Blocks: erased.*", "*Result: erased.*"):
            assert what in transcript
        assert "## Question approve\n\n*Erased; it is resolved.*" in transcript
        assert "Secret" not in transcript
        with pytest.raises(MCPError, match="erased"):
            await client.read_resource(addresses.result("r"))


@asynccontextmanager
async def caller(name: str, *scopes: str) -> AsyncIterator[None]:
    token = AccessToken(token="t", client_id=name, scopes=list(scopes))
    reset = auth_context_var.set(AuthenticatedUser(token))
    try:
        yield
    finally:
        auth_context_var.reset(reset)


@OLDER_WIRE
@async_test
async def test_only_ones_own_runs_are_listed_read_and_heard(tmp_path: Path) -> None:
    async with talking(str(tmp_path / "s.db")) as (hf, server):
        await hf.start(talks, run_id="hers", owner="ann")
        await hf.start(talks, run_id="his", owner="bob")
        uris = [addresses.timeline("hers"), addresses.timeline("his")]
        async with caller("bob"), Client(server) as client:
            assert [each.name for each in (await client.list_resources()).resources] == ["his"]
            for uri in (uris[0], addresses.transcript("hers"), addresses.result("hers")):
                with pytest.raises(MCPError, match="there is no run 'hers'"):
                    await client.read_resource(uri)
            assert "begun: talks" in await text_at(client, uris[1])
            async with client.listen(resource_subscriptions=uris) as heard:
                assert heard.honored.resource_subscriptions == [uris[1]]
                await hf.runs.cancel("hers")
                await hf.runs.cancel("his")
                event = await asyncio.wait_for(anext(aiter(heard)), 60)
                assert event == ResourceUpdated(uri=uris[1])
        async with caller("bob"), Client(server, mode="legacy") as client:
            with pytest.raises(MCPError, match="there is no run 'hers'"):
                await client.session.subscribe_resource(uris[0])  # pyright: ignore[reportDeprecated]
        async with caller("eve", "operator"), Client(server) as client:
            assert "begun: talks" in await text_at(client, uris[0])


@async_test
async def test_listeners_hear_of_what_other_processes_write(backend: Backend) -> None:
    uri, result = addresses.timeline(STRANGE), addresses.result(STRANGE)
    async with (
        talking(backend.url) as (hf, server),
        holdfast.Holdfast(backend.url, agents=[talks]) as other,
        Client(server) as client,
    ):
        await hf.start(talks, run_id=STRANGE)
        async with client.listen(resource_subscriptions=[uri, result]) as heard:
            await other.runs.block(STRANGE, "budget")
            events = aiter(heard)
            assert await asyncio.wait_for(anext(events), 60) == ResourceUpdated(uri=uri)
            assert "blocked" in await text_at(client, uri)
            await other.runs.cancel(STRANGE)
            rest = {await asyncio.wait_for(anext(events), 60) for _ in range(2)}
            assert rest == {ResourceUpdated(uri=uri), ResourceUpdated(uri=result)}


@async_test
async def test_a_stream_that_ends_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_WATCHES", 1)
    uri = addresses.timeline("r")
    async with talking(str(tmp_path / "s.db")) as (hf, server), Client(server) as client:
        await hf.start(talks, run_id="r")

        async def is_refused() -> bool:
            try:
                async with client.listen(resource_subscriptions=[uri]) as heard:
                    return heard.honored.resource_subscriptions != [uri]
            except MCPError as error:
                return "1 addresses are listened to already" in str(error)

        async with client.listen(resource_subscriptions=[uri]):
            assert await is_refused()
        async with asyncio.timeout(60):
            while is_full := await is_refused():
                await asyncio.sleep(0.01)
        assert not is_full


@OLDER_WIRE
@async_test
async def test_subscribers_of_the_older_wire_hear_until_they_unsubscribe(tmp_path: Path) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.put_nowait(str(message.params.uri))

    kept, left = addresses.timeline("kept"), addresses.timeline("left")
    async with (
        talking(str(tmp_path / "s.db")) as (hf, server),
        Client(server, mode="legacy", message_handler=hear) as client,
    ):
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe is True
        for name, uri in (("kept", kept), ("left", left)):
            await hf.start(talks, run_id=name)
            await client.session.subscribe_resource(uri)  # pyright: ignore[reportDeprecated]
        with pytest.raises(MCPError, match="nothing at this address"):
            await client.session.subscribe_resource("test://x")  # pyright: ignore[reportDeprecated]
        await hf.runs.block("left", "budget")
        assert await asyncio.wait_for(heard.get(), 60) == left
        await client.session.unsubscribe_resource(left)  # pyright: ignore[reportDeprecated]
        await hf.runs.cancel("left")
        await hf.runs.cancel("kept")
        assert await asyncio.wait_for(heard.get(), 60) == kept
        assert heard.empty()
