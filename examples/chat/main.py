"""A chat agent in the terminal that survives kill -9.

    python examples/chat/main.py --session alpha

Nothing of the conversation lives in this process: for each message the store is opened, the session
answers, and the store is closed. See README.md.
"""

import argparse
import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripted import ScriptedModel

import holdfast
from holdfast import AgentLoop, Budget, Happened, Key, NotDone, Tool
from holdfast.errors import HoldfastError, RunNotFound

SYSTEM = "You keep a shopping list. Use your tools, and answer in one sentence."
# On another machine, a killed process keeps its session for as long as its lease.
SETTINGS = holdfast.Settings(lease_seconds=3)


class ShoppingList:
    """A text file: what the agent changes in the world."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[str, str]]:
        """The key and the item of each line."""
        if not self.path.exists():
            return []
        found = [line.partition(" ") for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [(key, item) for key, _, item in found]

    def add(self, item: str, key: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{key} {item}\n")
            file.flush()
            os.fsync(file.fileno())


def tools_for(shopping: ShoppingList) -> list[Tool[..., Any]]:
    """What the model may call."""

    def find_item(item: str, key: Key) -> Happened[str] | NotDone:
        """Asked after a crash: was the line written?"""
        if (key, item) in shopping.lines():
            return Happened(f"added {item}")
        return NotDone()

    # It is meant to be repeated: whoever wants milk again next week gets it.
    @holdfast.tool(effect="mutate", verify=find_item, repeat=True, limit_seconds=5)
    def add_item(item: str, *, key: Key) -> str:
        """Put an item on the shopping list."""
        shopping.add(item, key)
        return f"added {item}"

    @holdfast.tool(effect="read")
    def list_items() -> str:
        """Read the shopping list."""
        return ", ".join(item for _, item in shopping.lines()) or "nothing"

    return [add_item, list_items]


def agent_for(args: argparse.Namespace) -> AgentLoop:
    model: Any = ScriptedModel(think_seconds=args.think)
    if args.model:
        from holdfast.integrations.pydantic_ai import PydanticAIModel  # only if it is wanted

        model = PydanticAIModel(args.model)
    shopping = ShoppingList(args.folder / f"{args.session}.txt")
    budget = None if args.budget is None else Budget(usd=args.budget)
    return AgentLoop(model, tools=tools_for(shopping), system=SYSTEM, name="chat", budget=budget)


class Chat:
    """One session, from the first process to the last."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._agent = agent_for(args)
        self._store = str(args.folder / "chat.db")
        self._session_id = args.session

    async def send(self, text: str) -> str:
        async with self._open() as hf:
            return await hf.session(self._agent, self._session_id).send(text)

    async def catch_up(self) -> list[tuple[str, str]]:
        """Answer what was said to a process that was killed before it could."""
        async with self._open() as hf:
            chat = hf.session(self._agent, self._session_id)
            try:
                state = await chat.state()
            except RunNotFound:
                print(f"session {self._session_id} is new; try: add milk")
                return []
            print(f"session {self._session_id} has {len(state.get('transcript', []))} messages")
            missed: list[tuple[str, str]] = []
            for signal in await chat.unanswered():
                text = await hf.signals.value(self._session_id, signal.signal_id)
                missed.append((text, await chat.send(text, id=signal.signal_id)))
            return missed

    def _open(self) -> holdfast.Holdfast:
        return holdfast.Holdfast(self._store, agents=[self._agent], settings=SETTINGS)


def said() -> Iterator[str]:
    """What the user types, until the end of input or Ctrl-C."""
    try:
        while True:
            text = input("you: ").strip()
            if text:
                yield text
    except (EOFError, KeyboardInterrupt):
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat with an agent that survives kill -9.")
    parser.add_argument("--session", default="alpha", help="which conversation [alpha]")
    parser.add_argument("--model", help="a model of Pydantic AI, such as openai:gpt-4o")
    parser.add_argument("--budget", type=float, help="block the session at so many USD")
    parser.add_argument("--think", type=float, default=0.0, help="seconds for the scripted model")
    parser.add_argument("--folder", type=Path, default=Path("chat-data"), help="[chat-data]")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chat = Chat(args)
    with asyncio.Runner() as runner:
        for text, answer in runner.run(chat.catch_up()):
            print(f"you: {text}\nagent: {answer}", flush=True)
        for text in said():
            try:
                print(f"agent: {runner.run(chat.send(text))}", flush=True)
            except HoldfastError as error:
                print(f"({error})", flush=True)


if __name__ == "__main__":
    main()
