"""An app for tests of the MCP server: a workflow that asks and then charges, and agents that ask.

The ledger is a plain file that shares no code with Holdfast: a line for each charge that was made.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.edges.mcp import ProtocolError
from holdfast.settings import Settings
from holdfast.workflows import Block, Input, Kit, Workflow
from tests.workflows.flows import call, flow, prompt

RELEASE = Workflow(
    name="release",
    description="Asks whether to release, then charges.",
    inputs={"version": Input(type="str", description="What is released.")},
    blocks=[
        prompt("approve", "Release {{ inputs.version }}?", choices=["yes", "no"]),
        call(
            "charge",
            "charge",
            args={"what": "{{ inputs.version }}"},
            depends_on=["approve"],
            timeout=5,
            condition="{{ blocks.approve.outputs.response == 'yes' }}",
        ),
    ],
    outputs={"said": "{{ blocks.approve.outputs.response }}"},
)
NESTED = flow(
    Block(id="inner", type="Workflow", inputs={"workflow": "release", "inputs": {"version": "2"}}),
    name="nested",
)
TWO = flow(prompt("first"), prompt("second"), name="two")


class Address(msgspec.Struct):
    street: str
    number: int


class Trip(msgspec.Struct):
    stops: list[str]


@holdfast.agent
async def greet(run: holdfast.Run, name: str, loud: bool = False) -> str:
    """Greets somebody."""
    return f"Hello, {name}!".upper() if loud else f"Hello, {name}!"


@holdfast.agent
async def ages(run: holdfast.Run, name: str) -> dict[str, Any]:
    """Asks how old somebody is."""
    return {"name": name, "age": await run.ask(f"How old is {name}?", schema=int, name="age")}


@holdfast.agent
async def moves(run: holdfast.Run) -> str:
    """Asks for an address: an object of flat values."""
    where = await run.ask("Where to?", schema=Address)
    return f"{where.street} {where.number}"


@holdfast.agent
async def travels(run: holdfast.Run) -> list[str]:
    """Asks for something that no form can show."""
    trip = await run.ask("Which stops?", schema=Trip)
    return trip.stops


@holdfast.agent
async def fails(run: holdfast.Run) -> str:
    """Fails."""
    raise ValueError("no luck today")


@holdfast.agent
async def breaks(run: holdfast.Run) -> str:
    """Breaks the protocol, not the work."""
    raise ProtocolError(-32050, "the upstream is gone", {"after": 3})


@holdfast.agent
async def twice(run: holdfast.Run) -> str:
    """Asks one thing after the other."""
    first = await run.ask("First?", name="first")
    return f"{first} {await run.ask('Second?', name='second')}"


def charging(ledger: str | Path) -> Any:
    """A tool that writes a line for each charge."""

    @holdfast.tool(effect="mutate")
    async def charge(what: str) -> str:
        if what == "broken":
            raise ConnectionError("the line is dead")
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
            file.flush()
            os.fsync(file.fileno())
        return f"charged {what}"

    return charge


def make(store: str, ledger: str | Path) -> holdfast.Holdfast:
    charge = charging(ledger)

    @holdfast.agent(tools=[charge])
    async def pays(run: holdfast.Run, what: str) -> str:
        """Asks whether it may, then charges."""
        if not await run.ask(f"Pay for {what}?", schema=bool, name="pay"):
            return "not paid"
        return await run.call(charge, what=what)

    approved = holdfast.tool(
        effect="mutate", approval=holdfast.Approval(prompt=lambda what: f"Really buy {what}?")
    )(_buy)

    @holdfast.agent(tools=[approved])
    async def buys(run: holdfast.Run, what: str) -> str:
        """Calls a tool that a person must approve."""
        return await run.call(approved, what=what)

    return holdfast.Holdfast(
        store,
        agents=[greet, ages, moves, travels, fails, breaks, twice, pays, buys],
        settings=Settings(wakeup_poll_seconds=0.1, lease_seconds=2),
        workflows=Kit(tools=[charge], definitions=[RELEASE, NESTED, TWO]),
    )


async def _buy(what: str) -> str:
    return f"bought {what}"
