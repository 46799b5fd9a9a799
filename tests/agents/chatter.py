"""A process that talks to a session: `python -m tests.agents.chatter STORE FILE`."""

import asyncio
import json
import sys
from typing import Any

import holdfast


async def main(store: str, answered: str) -> None:
    @holdfast.agent(name="shouter")
    async def shouter(run: holdfast.Run, words: str) -> str:
        with open(answered, "a") as file:
            file.write(words + "\n")
        return words + "!"

    async with holdfast.Holdfast(store, agents=[shouter]) as hf:
        say("ready")
        for line in sys.stdin:
            _, name, count = json.loads(line)
            chat = hf.session(shouter, "alpha")
            say([await chat.send(f"{name}-{n}", id=f"{name}-{n}") for n in range(count)])
            return


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
