"""An agent that plans trips, and the three peers it asks. An instance is one of

holdfast worker agents:desk                all of them, on one store
holdfast worker agents:desk_behind_nats    the one that plans
holdfast worker agents:peers_behind_nats   those that are asked, on a store of their own
"""

import asyncio
import os

import holdfast
from holdfast import Run

# On another machine, a killed process keeps its runs for as long as its lease.
LEASE_SECONDS = 2.0
WORK_SECONDS = 0.5


async def look_up(what: str) -> str:
    """Stands for a model, or for anything else that takes its time."""
    await asyncio.sleep(WORK_SECONDS)
    return what


@holdfast.agent
async def flights(run: Run, city: str) -> str:
    times = await run.step(look_up, "9:40")
    await run.report({"found": times})
    return await run.step(look_up, f"fly to {city} at {times}")


@holdfast.agent
async def hotels(run: Run, city: str) -> str:
    rooms = await run.step(look_up, "a room at the harbour")
    await run.report({"found": rooms})
    return await run.step(look_up, f"stay in {rooms} of {city}")


@holdfast.agent
async def weather(run: Run, city: str) -> str:
    await run.step(look_up, "clouds")
    return await run.step(look_up, "take a coat")


@holdfast.agent(peers=[flights, hotels, weather])
async def trip(run: Run, city: str) -> str:
    """Ask all peers at the same time; the run is left to their answers and holds nothing."""
    plans = await run.gather(
        run.peer(flights, city), run.peer(hotels, city), run.peer(weather, city)
    )
    return f"{city}: {', '.join(plans)}."


PEERS = [flights, hotels, weather]


def opened(
    store: str, agents: list[holdfast.Agent[..., str]], transport: str = ""
) -> holdfast.Holdfast:
    settings = holdfast.Settings(
        lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=0.2, transport=transport
    )
    return holdfast.Holdfast(store, agents=agents, settings=settings)


def desk() -> holdfast.Holdfast:
    return opened(os.environ["TRIP_STORE"], [trip, *PEERS])


def desk_behind_nats() -> holdfast.Holdfast:
    return opened(os.environ["TRIP_STORE"], [trip], os.environ["TRIP_NATS"])


def peers_behind_nats() -> holdfast.Holdfast:
    return opened(os.environ["PEERS_STORE"], PEERS, os.environ["TRIP_NATS"])
