"""The verdict on what agents left behind: the database by itself, and Holdfast's own view of it."""

import holdfast
from tests.chaos.oracle import Oracle
from tests.chaos.sessions import Ledger


async def faults_in(url: str, ledger: Ledger, oracle: Oracle) -> list[str]:
    """Everything that is not as the agents were told, in words; they have all ended."""
    found = [*oracle.look(), *oracle.missing(ledger.markers)]
    for run_id, stored in oracle.markers.items():
        if surplus := stored.keys() - set(ledger.markers[run_id]):
            found.append(f"{run_id} holds {sorted(surplus)}, which nobody was told")
    for wait_id, settlers in ledger.settlers.items():
        if settlers != {oracle.settlers.get(wait_id)}:
            found.append(f"{wait_id} is by {oracle.settlers.get(wait_id)}; told was {settlers}")
        if ledger.accepted[wait_id] > 1:
            found.append(f"{wait_id} was accepted {ledger.accepted[wait_id]} times")
    found += [f"effect {key} is not completed" for key in ledger.keys - oracle.completed_keys()]
    async with holdfast.open(url) as hf:
        async for run_id in hf.journal.run_ids():
            found += map(str, await hf.journal.verify(run_id))
            loaded = (await hf.checkpoints.load(run_id)).get("log", [])
            if sorted(loaded) != sorted(ledger.markers[run_id]):
                found.append(f"{run_id} loads another log than was acknowledged")
    return found
