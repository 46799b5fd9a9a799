"""Workers to be killed, by commands.

    python -m tests.agents.victims STORE LEDGER [MODULE:MAKE [TRANSPORT [CONCURRENCY LEASE]]]

MAKE is a function from a `Ledger` to the agents of the worker; the spender unless it is named.

The process imports everything once and forks a worker for each command, so that the next victim is
there at once. A command is [fault point or "", how often to pass it, and "stop" if it is not to be
killed there, but stopped as by Ctrl-Z]; the point "a>b" is b, the next time after a. The answer is
the worker's pid. "wait" waits until it is gone, and answers how it ended.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, Key, Message, NotDone, Settings, ToolCall
from holdfast.agents.definitions.cadence import Cadence
from holdfast.faults import install
from holdfast.testing import arm
from tests.agents.ledger import Ledger

LEASE_SECONDS = 0.3
LIMIT_SECONDS = 0.4


def spender(ledger: Ledger, cadence: Cadence = "turn") -> holdfast.Agent[[int], int]:
    """An agent that charges, takes a note and looks something up in each turn, all at once."""

    async def find_charge(run: str, turn: int, key: str) -> Happened[str] | NotDone:
        return Happened(f"receipt {turn}") if ledger.has("charge", key) else NotDone()

    @holdfast.tool(verify=find_charge, limit_seconds=LIMIT_SECONDS)
    async def charge(run: str, turn: int, *, key: Key) -> str:
        await asyncio.sleep(0.001)
        ledger.write("charge", run, turn, key)
        await asyncio.sleep(0.001)
        return f"receipt {turn}"

    @holdfast.tool(effect="idempotent")
    async def note(run: str, turn: int, *, key: Key) -> str:
        ledger.write("note", run, turn, key)
        return f"noted {turn}"

    @holdfast.tool(effect="read")
    def look(run: str, turn: int) -> str:
        return f"seen {turn}"

    async def model(talk: Any, run: str, turn: int) -> Message:
        ledger.write("model", run, turn)
        args = {"run": run, "turn": turn}
        names = ("look", "charge", "note", "charge")
        calls = [ToolCall(f"{turn}-{n}", name, args) for n, name in enumerate(names)]
        return Message.assistant(f"turn {turn}", calls)

    @holdfast.agent(tools=[charge, note, look], name="spender", loop_limit=0, cadence=cadence)
    async def agent(run: holdfast.Run, turns: int) -> int:
        talk = run.log("transcript", Message)
        done = run.value("done", int, 0)
        while done.get() < turns:
            reply = await run.model(model, talk, run.run_id, done.get())
            talk.append(reply)
            results = await run.tools(reply.tool_calls)
            contents = [message.results[0].content for message in results]
            turn = done.get()
            assert contents[:3] == [f"seen {turn}", f"receipt {turn}", f"noted {turn}"], contents
            assert contents[3] == f"[idempotent replay of {turn}-1]: receipt {turn}", contents
            talk.extend(results)
            done.set(turn + 1)
            await run.checkpoint()
        assert len(talk) == 5 * turns, len(talk)
        return done.get()

    return agent


def settings(transport: str = "", lease: float = LEASE_SECONDS) -> Settings:
    return Settings(lease_seconds=lease, wakeup_poll_seconds=0.1, transport=transport)


Make = Callable[[Ledger], Sequence[holdfast.Agent[..., Any]]]


def make_spender(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [spender(ledger)]


def named(path: str) -> Make:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


async def work(
    store: str,
    ledger: Ledger,
    make: Make,
    transport: str = "",
    at_once: str = "4",
    lease: str = str(LEASE_SECONDS),
) -> None:
    given = settings(transport, float(lease))
    async with holdfast.Holdfast(store, agents=make(ledger), settings=given) as hf:
        worker = hf.new_worker(concurrency=int(at_once))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def main(begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Take commands; `begin` is what a victim does."""
    pid = 0
    for line in sys.stdin:
        command = json.loads(line)
        if command == "wait":
            say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            if command[2:]:
                stop_at(*command[:2])
            elif ">" in command[0]:
                kill_after(*command[0].split(">"))
            elif command[0]:
                arm(command[0], "kill", skip=command[1])
            asyncio.run(begin())
            os._exit(0)
        say(pid)


def kill_after(first: str, then: str) -> None:
    """Die at a point of those that every commit passes: the next time after another one."""
    passed: list[str] = []

    def kill(reached: str) -> None:
        if passed and reached == then:
            os.kill(os.getpid(), signal.SIGKILL)
        if reached == first:
            passed.append(first)

    install(kill)


def stop_at(point: str, skip: int) -> None:
    left = iter(range(skip, -1, -1))

    def stop(reached: str) -> None:
        if reached == point and next(left, -1) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    install(stop)


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    store, ledger, *more = sys.argv[1:]
    make = named(more[0]) if more else make_spender
    main(lambda: work(store, Ledger(Path(ledger)), make, *more[1:]))
