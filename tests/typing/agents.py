"""Types as a user sees them. Nothing here runs: `make check` reads it with pyright, where a wrong
`assert_type` and an ignore that is not needed are errors."""

from typing import assert_type

import holdfast
from holdfast import Handle, Key, Log, Message, Run, Session, Value


@holdfast.tool(effect="mutate")
async def charge(customer: str, cents: int, *, key: Key) -> str:
    return f"{customer} {cents} {key}"


@holdfast.tool(effect="read")
def balance(customer: str) -> int:
    return len(customer)


async def draw(low: int, high: int) -> float:
    return low / high


def blocking_draw(low: int) -> str:
    return str(low)


@holdfast.agent(tools=[charge, balance])
async def support(run: Run, request: str, depth: int = 3) -> list[str]:
    assert_type(run.log("transcript", Message), Log[Message])
    assert_type(run.value("count", int, 0), Value[int])
    assert_type(run.log("transcript", Message)[0], Message)
    assert_type(await run.step(draw, 1, 2), float)
    assert_type(await run.step(blocking_draw, 1), str)
    await run.step(draw, "one", 2)  # pyright: ignore[reportArgumentType]
    assert_type(await run.call(charge, "ann", 5), str)
    assert_type(await run.call(balance, "ann"), int)
    both = await run.gather(run.call(charge, "ann", 5), run.call(balance, "bob"))
    assert_type(both, tuple[str, int])
    many = await run.gather(*(run.call(charge, name, 5) for name in ("ann", "bob")))
    assert_type(many, tuple[str, ...])
    assert_type(await run.ask("How many?", schema=int), int)
    assert_type(await run.ask("How many?", schema=int, timeout=5, default=0), int)
    assert_type(await run.ask("Which?", choices=["a", "b"]), str)
    assert_type(await run.signal("paid", dict[str, int], timeout=5, default={}), dict[str, int])
    return [request] * depth


@holdfast.agent
async def chat(run: Run, message: str) -> str:
    return message


async def use(hf: holdfast.Holdfast) -> None:
    assert_type(await hf.run(support, "refund"), list[str])
    assert_type(await hf.run(support, "refund", 5, run_id="r", timeout=3.0), list[str])
    assert_type(await hf.start(support, "refund"), Handle[list[str]])
    assert_type(await (await hf.start(chat, "hi")).result(), str)
    assert_type(hf.session(chat, "alpha"), Session[str])
    assert_type(await hf.session(chat, "alpha").send("hi"), str)
    await hf.run(support, 5)  # pyright: ignore[reportArgumentType]
    await hf.run(chat)  # pyright: ignore[reportArgumentType]
    assert_type(await charge("ann", 5, key=Key("k")), str)
    assert_type(balance("ann"), int)
