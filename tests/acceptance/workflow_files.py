"""Workflows and a program with tools for them, as the tests of the commands use them."""

RELEASE = """
name: release
version: "7"
inputs:
  version: {type: str}
  count: {type: int, default: 1}
  loud: {type: bool, default: false}
  sites: {type: list, default: []}
blocks:
  - id: approve
    type: Prompt
    inputs: {prompt: "Ship {{ inputs.version }}?", choices: ["yes", "no"]}
    timeout: 86400
  - id: size
    type: Prompt
    inputs: {prompt: "How many?", schema: {type: integer}}
  - id: reason
    type: Prompt
    depends_on: [approve]
    inputs: {prompt: "Why?"}
outputs:
  answer: "{{ blocks.approve.outputs.response }}"
  size: "{{ blocks.size.outputs.response }}"
  reason: "{{ blocks.reason.outputs.response }}"
  count: "{{ inputs.count }}"
"""

BROKEN = """
name: broken
blocks:
  - {id: fine, type: Tool, inputs: {tool: greet, args: {who: you}}}
  - {id: first, type: Tool, inputs: {tool: refuse, args: {why: out of paper}}}
  - {id: second, type: Tool, inputs: {tool: refuse, args: {why: out of ink}}}
  - {id: each, type: Tool, for_each: {a: fine, b: no good},
     inputs: {tool: refuse, args: {why: "{{ each.value }}"}}}
  - {id: after, type: Prompt, depends_on: [first], inputs: {prompt: never}}
"""

GATED = """
name: gated
blocks:
  - {id: gate, type: Tool, inputs: {tool: TOOL, args: {name: gate}}}
outputs:
  said: "{{ blocks.gate.outputs.result }}"
"""

SHOWN = """
name: shown
blocks:
  - {id: build, type: Tool, inputs: {tool: greet, args: {who: you}}}
  - {id: skipped, type: Tool, condition: false, inputs: {tool: greet, args: {who: nobody}}}
  - {id: spoilt, type: Tool, continue_on_error: true, inputs: {tool: refuse, args: {why: no ink}}}
  - {id: fan, type: Tool, depends_on: [build], for_each: [a, b, c],
     inputs: {tool: greet, args: {who: "{{ each.value }}"}}}
  - {id: inner, type: Workflow, depends_on: [fan], inputs: {workflow: inner}}
outputs:
  said: "{{ blocks.build.outputs.result }}"
"""

PROGRAM = """
import asyncio
from pathlib import Path
import holdfast
from holdfast import Holdfast, Settings
from holdfast.workflows import Block, Kit, Workflow

HERE = Path(__file__).parent

@holdfast.tool
async def greet(who: str) -> str:
    return f"hello {who}"

@holdfast.tool(effect="read")
async def refuse(why: str) -> str:
    if why == "fine":
        return why
    raise ValueError(why)

async def pause(name: str) -> str:
    with (HERE / f"began-{name}").open("a") as file:
        file.write("once\\n")
    while not (HERE / f"go-{name}").exists():
        await asyncio.sleep(0.01)
    return "open"

@holdfast.tool(effect="read", limit_seconds=60)
async def look(name: str) -> str:
    return await pause(name)

@holdfast.tool(limit_seconds=60)
async def change(name: str) -> str:
    return await pause(name)

def one(name, block):
    return Workflow(name=name, blocks=[block])

INNER = one("inner", Block(id="sure", type="Prompt", inputs={"prompt": "Sure?"}))
DEEP = one(
    "deep",
    Block(
        id="change", type="Tool", timeout=10, inputs={"tool": "change", "args": {"name": "deep"}}
    ),
)

hf = Holdfast(
    settings=Settings(lease_seconds=1, wakeup_poll_seconds=0.2),
    workflows=Kit(tools=[greet, refuse, look, change], definitions=[INNER, DEEP]),
)
"""

NESTED = """
name: nested
blocks:
  - {id: below, type: Workflow, inputs: {workflow: deep}}
"""

ROUNDS = """
name: rounds
blocks:
  - id: ask
    type: Prompt
    for_each: {a=b: 1, a: 2}
    inputs: {prompt: "{{ each.key }}?"}
outputs:
  said: "{{ blocks.ask.outputs }}"
"""

PATIENT = """
name: patient
blocks:
  - {id: nap, type: Wait, inputs: {seconds: 3600}}
"""
