"""The agent of `holdfast demo`, twice: with Holdfast, and as often written without it.

Both use the same scripted model and the same tools. The model is offline: it says what a real one
would, by how far the conversation has come.
"""

import http.client
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from holdfast.agents.definitions.agent import Agent, agent
from holdfast.agents.definitions.messages import Message, ToolCall, ToolResult, Usage
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tools import Happened, Tool, text_of, tool
from holdfast.agents.run import Run
from holdfast.errors import NotDone, ToolFailed

NAME: Final = "holdfast-demo"
REQUEST: Final = "Please charge order 1042 and send me the receipt."
LIMIT_SECONDS: Final = 2.0
_ORDERS: Final = {1042: {"customer": "ada", "cents": 1999}}
_ANSWER_SECONDS: Final = 1.5

Say = Callable[[str, str], None]
Model = Callable[[Sequence[Message]], Message]


class BankClient:
    """The bank as its customers reach it.

    `say` reports what is done here; `pause` is called just before and just after a charge, and may
    never return.
    """

    def __init__(self, port: int, say: Say, pause: Callable[[str], None]) -> None:
        self._port = port
        self._say = say
        self._pause = pause

    def charge(self, customer: str, cents: int, key: str) -> str:
        self._pause("before")
        self._say("calling", f"calls the bank: charge {customer} {cents / 100:.2f}")
        wanted = {"key": key, "customer": customer, "cents": cents}
        charged = self._ask("POST", "/charges", json.dumps(wanted))
        self._pause("during")
        return _receipt(charged)

    def find(self, key: str) -> list[str]:
        found: list[Any] = self._ask("GET", f"/charges?key={quote(key)}")
        answer = "yes, " + found[0]["id"] if found else "no"
        self._say("verified", f"asks the bank whether the charge is there: {answer}")
        return [_receipt(charge) for charge in found]

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, path, body)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def _receipt(charge: Any) -> str:
    return f"{charge['id']}: {charge['cents'] / 100:.2f} from {charge['customer']}"


def make_tools(bank: BankClient, mailbox: Path) -> list[Tool[..., Any]]:
    """What the agent can do: look, charge, and write to the customer."""

    def find_charge(key: Key) -> Happened[str] | NotDone:
        found = bank.find(key)
        return Happened(found[0]) if found else NotDone()

    @tool(effect="read")
    def look_up_order(order: int) -> dict[str, Any]:
        """Who ordered, and what it costs."""
        return _ORDERS[order]

    @tool(effect="mutate", verify=find_charge, limit_seconds=LIMIT_SECONDS)
    def charge(customer: str, cents: int, *, key: Key) -> str:
        """Take money from a customer."""
        return bank.charge(customer, cents, key)

    @tool(effect="idempotent", limit_seconds=LIMIT_SECONDS)
    def send_receipt(customer: str, text: str) -> str:
        """Write to a customer; the same letter twice is one letter."""
        (mailbox / f"{customer}.txt").write_text(text, encoding="utf-8")
        return "sent"

    return [look_up_order, charge, send_receipt]


def make_agent(tools: Sequence[Tool[..., Any]], model: Model, say: Say) -> Agent[[str], str]:
    """Return the agent on Holdfast: each pass resumes where the journal ends."""

    @agent(name=NAME, tools=tools)
    async def support(run: Run, request: str) -> str:
        begins = "begins the run" if run.is_fresh else f"goes on from checkpoint {run.version}"
        say("entered", begins)
        talk = run.log("transcript", Message)
        if not talk:
            talk.append(Message.user(request))
        while True:
            reply = await run.model(model, talk)
            talk.append(reply)
            if not reply.tool_calls:
                return reply.text
            talk.extend(await run.tools(reply.tool_calls))
            await run.checkpoint()

    return support


def run_plainly(tools: Sequence[Tool[..., Any]], model: Model, say: Say) -> str:
    """Run the same agent without Holdfast: what it has done is in its memory only."""
    functions = {tool.name: tool.function for tool in tools}
    say("entered", "begins from the first message")
    talk = [Message.user(REQUEST)]
    while True:
        reply = model(talk)
        talk.append(reply)
        if not reply.tool_calls:
            return reply.text
        for call in reply.tool_calls:
            assert isinstance(call.args, dict), "the model below gives objects"
            given = call.args | ({"key": Key("none")} if call.name == "charge" else {})
            talk.append(Message.tool(ToolResult(call.id, text_of(functions[call.name](**given)))))


def think(talk: Sequence[Message]) -> Message:
    """Return what a model would answer to this conversation."""
    results = [result for message in talk for result in message.results]
    for result in results:
        if result.is_error:
            raise ToolFailed(result.content)
    match results:
        case []:
            call = ToolCall("call-1", "look_up_order", {"order": 1042})
        case [order]:
            call = ToolCall("call-2", "charge", json.loads(order.content))
        case [order, charged]:
            text = f"We charged your card: {charged.content}"
            to = json.loads(order.content)["customer"]
            call = ToolCall("call-3", "send_receipt", {"customer": to, "text": text})
        case _:
            return Message.assistant(f"Done. {results[1].content}; the receipt is on its way.")
    return Message.assistant("", [call], usage=Usage(input_tokens=100, output_tokens=20))
