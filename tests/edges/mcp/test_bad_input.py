"""What is wrong with a call is told as data by every tool, and no run is touched by it.

The tools are those that a server lists, and what is wrong with arguments is made of their schemas:
a new tool needs right arguments here, and nothing else.
"""

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.stdio import stdio_server

from holdfast.agents.work import schedules
from holdfast.edges.mcp.contract import BadArguments
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.scene import FLOW, Scene, scene

Given = dict[str, Any]

NO_TEXT = "a\ud800b"
CONTROLS = ("a\0b", "a\nb", "a\x1bb")
KINDS: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True],
    "integer": [7],
    "number": [7.5],
    "string": ["words"],
    "array": [[1]],
    "object": [{"a": 1}],
}
ANY_TEXT = {
    ("list_workflows", "search"),
    ("validate_workflow", "definition"),
    ("asker", "name"),
}
"""Where control characters are as good as any."""


def right(scene: Scene) -> dict[str, Given]:
    """Arguments of every tool that it takes; each names all that it may be given."""
    wait = {"wait_seconds": 0.0}
    return {
        "list_workflows": {"search": "release"},
        "get_workflow_info": {"name": "release"},
        "execute_workflow": {"name": "release", "inputs": {"who": "Ed"}, "run_id": "new", **wait},
        "execute_inline_workflow": {
            "definition": FLOW,
            "inputs": {"who": "Ed"},
            "run_id": "newer",
            **wait,
        },
        "resume_workflow": {"run_id": "flow", "answers": {"approve": "yes"}, **wait},
        "validate_workflow": {"definition": FLOW},
        "get_workflow_schema": {},
        "get_run": {"run_id": "asking", **wait},
        "list_runs": {
            "status": "waiting",
            "agent": "asker",
            "workflow": "release",
            "parent_id": "asking",
            "limit": 3,
            "before": "asking",
        },
        "cancel_run": {"run_id": "asking", "note": "enough"},
        "list_agents": {},
        "start_agent": {"agent": "asker", "input": {"name": "Ed"}, "run_id": "newest", **wait},
        "list_approvals": {"run_id": "asking", "limit": 3},
        "answer": {
            "wait_id": scene.request,
            "value": True,
            "note": "fine",
            "digest": "",
            **wait,
        },
        "list_unknown_effects": {"run_id": "lost", "limit": 3},
        "resolve_effect": {
            "effect_id": scene.effect,
            "outcome": "happened",
            "result": "sent",
            "note": "asked",
            "force": False,
        },
        "get_checkpoint": {
            "run_id": "saved",
            "version": 3,
            "checkpoint_id": scene.checkpoint,
            "parts": ["log"],
        },
        "diff_checkpoints": {"run_id": "saved", "before": 1, "after": 3, "parts": ["log"]},
        "asker": {"name": "Ed"},
    }


def kinds_of(schema: Given) -> set[str]:
    """The types that a schema takes; all if it does not say."""
    if "anyOf" in schema:
        return set().union(*map(kinds_of, schema["anyOf"]))
    if "enum" in schema:
        return {"string"}
    told = schema.get("type")
    if told is None:
        return set(KINDS)
    found = {told} if isinstance(told, str) else set(told)
    return found | ({"integer"} if "number" in found else set())


def bounds_of(schema: Given) -> Iterator[Any]:
    """Values just outside of the bounds of a schema, and absurd ones."""
    for each in (schema, *schema.get("anyOf", ())):
        if "minimum" in each:
            yield from (each["minimum"] - 1, -(10**400), each["maximum"] + 1, 10**400)
        if "maxLength" in each:
            yield "x" * (each["maxLength"] + 1)
        if each.get("minLength"):
            yield ""
        if "enum" in each:
            yield "nonsense"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


UNSAYABLE: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    1e309,
    NO_TEXT,
    [NO_TEXT],
    {NO_TEXT: 1},
    nested(101),
    nested(100_000),
)
"""What no client can send, if it does not write JSON by hand."""


def wrong(name: str, schema: Given, given: Given) -> Iterator[Given]:
    """The arguments of a tool, each time with one mistake."""
    for required in schema.get("required", ()):
        yield {key: value for key, value in given.items() if key != required}
    yield given | {"surprise": 1}
    for key, told in schema.get("properties", {}).items():
        taken = kinds_of(told)
        bad = [value for kind in KINDS if kind not in taken for value in KINDS[kind]]
        bad += bounds_of(told)
        if "string" in taken and "type" not in told.get("items", {}):
            is_name = taken <= {"string", "null"} and (name, key) not in ANY_TEXT
            bad += CONTROLS if is_name and not key.startswith(("note", "definition")) else ()
            bad += ["a\0b"] if key == "note" else ()
        yield from (given | {key: value} for value in bad)


@async_test
async def test_every_mistake_in_arguments_is_told_and_touches_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        tools, known = await made.tools(), right(made)
        assert tools.keys() == known.keys(), "a tool is missing here, or gone"
        before = made.journal()
        made_wrong = 0
        for name, tool in tools.items():
            assert tool.input_schema["additionalProperties"] is False
            assert known[name].keys() == tool.input_schema["properties"].keys(), name
            for given in wrong(name, tool.input_schema, known[name]):
                error = await made.refuse(name, **given)
                assert error["kind"] in ("misuse", "not_found", "conflict"), (name, error)
                made_wrong += 1
        assert made_wrong > 400
        assert made.journal() == before


@async_test
async def test_what_json_cannot_say_is_refused_before_anything_looks_at_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        before = made.journal()
        for name, given in right(made).items():
            tool = made.server._tools[name]
            assert tool.arguments_of(given) is not None
            for key in given:
                for value in UNSAYABLE:
                    with pytest.raises(BadArguments, match="takes other arguments") as refused:
                        tool.arguments_of(given | {key: value})
                    json.dumps(refused.value.problems).encode()
        assert made.journal() == before


def mistaken(made: Scene) -> Iterator[tuple[str, str, Given]]:
    """Calls for what is not there, or not of the kind that is wanted."""
    nobody, none = {"run_id": "nobody"}, "00000000-0000-7000-8000-000000000000"
    for tool in ("get_run", "cancel_run", "resume_workflow", "list_approvals"):
        yield tool, "RunNotFound", nobody
    yield "list_unknown_effects", "RunNotFound", nobody
    yield "get_checkpoint", "RunNotFound", nobody
    yield "diff_checkpoints", "RunNotFound", {**nobody, "before": 0, "after": 0}
    yield "list_runs", "RunNotFound", {"before": "nobody"}
    for wait_id in ("nobody", none, "asking", made.effect, made.checkpoint):
        yield "answer", "WaitNotFound", {"wait_id": wait_id, "value": 1}
    for effect_id in ("nobody", none, "lost", made.question, made.checkpoint):
        yield "resolve_effect", "EffectNotFound", {"effect_id": effect_id, "outcome": "retry"}
    for checkpoint_id in ("nobody", none, "saved", made.question, made.effect):
        yield "get_checkpoint", "CheckpointNotFound", {"checkpoint_id": checkpoint_id}
    for run_id in (made.question, made.effect, made.checkpoint):
        yield "get_run", "RunNotFound", {"run_id": run_id}
    yield "get_checkpoint", "CheckpointNotFound", {"run_id": "saved", "version": 4}
    yield "get_checkpoint", "BadArguments", {}
    yield "get_checkpoint", "BadArguments", {"run_id": "lost", "checkpoint_id": made.checkpoint}
    yield "get_checkpoint", "BadArguments", {"version": 1, "checkpoint_id": made.checkpoint}
    yield "diff_checkpoints", "CheckpointNotFound", {"run_id": "saved", "before": 1, "after": 9}
    yield "cancel_run", "RunEnded", {"run_id": "saved"}


def refused(made: Scene) -> Iterator[tuple[str, str, Given]]:
    """Answers and outcomes that do not fit, or come too late."""
    for value in ("old", None, 1.5, [7], {"age": 7}, True):
        yield "answer", "AnswerRefused", {"wait_id": made.question, "value": value}
    yield "answer", "UnsupportedValue", {"wait_id": made.question, "value": 10**30}
    yield "answer", "MisuseError", {"wait_id": made.question, "value": 7, "digest": "00"}
    for value in ("maybe", None, 1, [], {}, {"approve": "perhaps"}):
        yield "answer", "AnswerRefused", {"wait_id": made.request, "value": value}
    yield "answer", "MisuseError", {"wait_id": made.request, "value": True, "digest": "00"}
    yield "answer", "AlreadyAnswered", {"wait_id": made.withdrawn, "value": 7}
    yield "resume_workflow", "AnswerRefused", {"run_id": "flow", "answers": {"approve": "perhaps"}}
    yield "resume_workflow", "WaitNotFound", {"run_id": "flow", "answers": {"other": "yes"}}
    yield "resume_workflow", "RunNotFound", {"run_id": "asking", "answers": {"approve": "yes"}}
    for outcome in ({"outcome": "happened"}, {"outcome": "retry", "result": None}):
        yield "resolve_effect", "BadArguments", {"effect_id": made.effect, **outcome}


def unstartable(made: Scene) -> Iterator[tuple[str, str, Given]]:
    """What was erased cannot be shown, and what is wrong cannot be started."""
    yield "get_run", "BodyErased", {"run_id": "gone"}
    yield "get_checkpoint", "CheckpointCorrupted", {"run_id": "gone"}
    yield "diff_checkpoints", "CheckpointCorrupted", {"run_id": "gone", "before": 0, "after": 1}
    yield "get_workflow_info", "NotFoundError", {"name": "unheard of"}
    yield "execute_workflow", "NotFoundError", {"name": "../../etc/passwd"}
    for inputs in ({}, {"who": [1]}, {"who": "a", "why": "b"}):
        yield "execute_workflow", "WorkflowInvalid", {"name": "release", "inputs": inputs}
    yield (
        "execute_workflow",
        "InputDiffers",
        {
            "name": "release",
            "inputs": {"who": "somebody else"},
            "run_id": "flow",
        },
    )
    inline = "execute_inline_workflow"
    for definition in ("", "- 1", "name: [", "name: x\0", "a: &a [*a]", '{name: "\\ud800"}'):
        yield inline, "WorkflowInvalid", {"definition": definition}
    yield "start_agent", "AgentNotFound", {"agent": "unheard of"}
    evil = {"name": "evil", "blocks": [{"id": "a", "type": "Shell", "inputs": {"command": "id"}}]}
    start = {"workflow": "evil", "seal": "0" * 16, "library": {"evil": evil}}
    for agent in ("workflow", schedules.AGENT):
        yield "start_agent", "AgentNotFound", {"agent": agent, "input": {"start": start}}
    for given in (None, {}, {"name": 1}, {"name": "a", "age": 2}, 7):
        yield "start_agent", "UnsupportedValue", {"agent": "asker", "input": given}


@pytest.mark.parametrize("calls", [mistaken, refused, unstartable])
@async_test
async def test_calls_that_cannot_be_right_are_told_and_touch_nothing(
    calls: Callable[[Scene], Iterator[tuple[str, str, Given]]], tmp_path: Path
) -> None:
    """Each with the error that says why."""
    async with scene(tmp_path) as made:
        before = made.journal()
        seen: list[tuple[str, str, str]] = []
        for name, error, given in calls(made):
            told = await made.refuse(name, **given)
            if told["type"] != error:
                seen.append((name, error, told["type"]))
        assert seen == []
        assert made.journal() == before


@async_test
async def test_failure_does_not_grow_with_what_was_given(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        for name, given in (
            ("get_checkpoint", {"run_id": "saved", "parts": [1] * 10_000}),
            ("get_workflow_info", {"name": "x" * 100_000}),
            ("get_run", {"run_id": "x" * 100_000}),
            ("answer", {"wait_id": made.request, "value": "x" * 100_000}),
        ):
            error = await made.refuse(name, **given)
            assert len(json.dumps(error)) < 20_000, name


GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "by hand", "version": "1"},
}
BY_HAND = (
    '{"run_id": "asking", "wait_seconds": NaN}',
    '{"run_id": "asking", "wait_seconds": 1e309}',
    '{"run_id": "asking", "wait_seconds": -Infinity}',
    '{"run_id": "asking", "wait_seconds": 1' + "0" * 5000 + "}",
    '{"run_id": "a\\ud800b"}',
    '{"\\udfff": 1}',
    '{"run_id": ' + "[" * 5000 + "]" * 5000 + "}",
    '{"run_id": "asking", "run_id": "nobody"}',
    '["asking"]',
    '"asking"',
    '{"run_id": "asking"',
    "nonsense",
)


@async_test
async def test_json_written_by_hand_breaks_nothing(tmp_path: Path) -> None:
    """Over the pipe, as a client of a hostile model might send it."""
    lines = [_request(0, "initialize", json.dumps(GREETING))]
    lines.append('{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    for number, given in enumerate((*BY_HAND, '{"run_id": "asking"}'), start=1):
        params = f'{{"name": "get_run", "arguments": {given}}}'
        lines.append(_request(number, "tools/call", params))
    async with scene(tmp_path) as made:
        before = made.journal()
        replies = await _spoken_with(made, lines, last=len(BY_HAND) + 1)
        assert made.journal() == before
    good = replies.pop(len(BY_HAND) + 1)
    assert good["result"]["structuredContent"]["status"] == "waiting"
    assert replies.pop(0)["result"]["serverInfo"]["name"] == "holdfast"
    for reply in replies.values():
        is_told = reply.get("result", {}).get("isError")
        assert is_told or reply["error"]["code"] in (-32700, -32600, -32602), reply


def _request(number: int, method: str, params: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": {number}, "method": "{method}", "params": {params}}}'


async def _spoken_with(made: Scene, lines: list[str], *, last: int) -> dict[int, Given]:
    """The replies of a server to these lines by their ids, until the last has come."""
    heard, ours = os.pipe()
    theirs, spoken = os.pipe()
    replies: dict[int, Given] = {}

    def speak() -> None:
        with os.fdopen(ours, "w") as speaker, os.fdopen(theirs) as listener:
            speaker.write("".join(f"{line}\n" for line in lines))
            speaker.flush()
            while last not in replies:
                reply = json.loads(listener.readline())
                replies[reply.get("id")] = reply

    with os.fdopen(heard) as incoming, os.fdopen(spoken, "w") as outgoing:
        pipes = stdio_server(anyio.wrap_file(incoming), anyio.wrap_file(outgoing))
        async with asyncio.timeout(60), asyncio.TaskGroup() as group, pipes as streams:
            group.create_task(asyncio.to_thread(speak))
            options = made.server.lowlevel.create_initialization_options()
            await made.server.lowlevel.run(*streams, options)
    return replies
