"""A LangGraph agent that asks a manager, pays a refund, and pays it once.

    python examples/langgraph/main.py            asks the manager, and ends: nobody waits with it
    holdfast approvals list --store langgraph.db
    python examples/langgraph/main.py            goes on with the answer

See README.md.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.types import interrupt

import holdfast
from holdfast import Happened, NotDone
from holdfast.errors import ThreadBusy
from holdfast.integrations.langgraph import HoldfastSaver, durable, durable_tools, holdfast_key

STORE = "langgraph.db"
PAYMENTS = Path("payments.txt")
# On another machine, a killed process keeps its thread for as long as its lease.
SETTINGS = holdfast.Settings(lease_seconds=3)
DIES = ""


class ScriptedModel(BaseChatModel):
    """Stands for a model: asks the manager, then pays what was granted, then reports."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])


def _reply(messages: list[BaseMessage]) -> AIMessage:
    last = messages[-1]
    customer = next(m for m in messages if isinstance(m, HumanMessage)).text.split()[-1]
    match last.name:
        case "ask_manager":
            args = {"customer": customer, "cents": int(last.text)}
            return AIMessage("", tool_calls=[{"name": "pay", "args": args, "id": "call-2"}])
        case "pay":
            return AIMessage(f"{customer} has the money back: {last.text}")
        case _:
            args = {"question": f"How many cents does {customer} get back?"}
            return AIMessage("", tool_calls=[{"name": "ask_manager", "args": args, "id": "call-1"}])


@tool
def ask_manager(question: str) -> str:
    """Ask the manager something; the graph stops until there is an answer."""
    return str(interrupt({"question": question}))


@tool
def pay(customer: str, cents: int) -> str:
    """Pay a customer: a line in a file that is appended to, once for each payment."""
    _die_if("before")
    with PAYMENTS.open("a") as ledger:
        ledger.write(f"{customer} {cents} {holdfast_key()}\n")
    _die_if("after")
    return f"paid {cents} cents"


def _die_if(moment: str) -> None:
    if moment == DIES:
        print(f"kill -9 {moment} paying", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def find_payment(key: str, name: str, args: dict[str, Any]) -> Happened[str] | NotDone:
    """Look into the ledger: was this paid?"""
    paid = PAYMENTS.read_text().splitlines() if PAYMENTS.exists() else []
    if any(line.endswith(key) for line in paid):
        return Happened(f"paid {args['cents']} cents")
    return NotDone()


def agent_on(saver: HoldfastSaver) -> Any:
    tools = durable_tools(saver, read=["ask_manager"], verify=find_payment, limit_seconds=4)
    agent = create_agent(
        ScriptedModel(), [ask_manager, pay], middleware=[tools], checkpointer=saver
    )
    return durable(agent)


def go_on(graph: Any, config: Any, customer: str) -> dict[str, Any]:
    """Begin the thread, or go on with it once a process that was killed holds it no more."""
    while True:
        begun = graph.get_state(config).values
        said = None if begun else {"messages": [HumanMessage(f"refund {customer}")]}
        try:
            return graph.invoke(said, config)
        except ThreadBusy as busy:
            print(f"waiting: {busy}", flush=True)
            time.sleep(1)


def main(customer: str, shows_history: bool) -> None:
    config = {"configurable": {"thread_id": f"refund-{customer}"}}
    with HoldfastSaver(STORE, settings=SETTINGS) as saver:
        graph = agent_on(saver)
        if shows_history:
            for past in reversed(list(graph.get_state_history(config))):
                step, count = past.metadata["step"], len(past.values.get("messages", ()))
                print(f"step {step:>2}: {count} messages, next {', '.join(past.next) or '-'}")
            return
        state = go_on(graph, config, customer)
        if asked := state.get("__interrupt__"):
            print(f"{asked[0].value['question']}\n  holdfast approvals list --store {STORE}")
        else:
            print(state["messages"][-1].text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("customer", nargs="?", default="ann")
    parser.add_argument("--die", choices=("before", "after"), help="kill -9 before or after paying")
    parser.add_argument("--history", action="store_true", help="show the checkpoints")
    given = parser.parse_args()
    DIES = given.die or ""
    main(given.customer, given.history)
