"""The connection is cut where it hurts: at the reply to a commit, or just before the commit.

Whoever asked does not know what happened; every call that returned is stored exactly once.
"""

import asyncio
import random
from collections import Counter

from tests.chaos.judging import faults_in
from tests.chaos.oracle import Oracle
from tests.chaos.sessions import Ledger, disturbed
from tests.proxy import Group, Proxy

PHASES = [{"stored": 0.5, "not stored": 0.1}, {"stored": 0.05, "not stored": 0.6}]
PHASE_CUTS = 50
PATIENCE_SECONDS = 0.05
KINDS = 4
VERDICTS = ("and stored", "and not stored")


class Cuts:
    """Chooses what is cut. The proxy's thread asks it."""

    def __init__(self, seed: int) -> None:
        self.made: Counter[str] = Counter()
        self.is_over = False
        self._seed = seed
        self._chance = random.Random(seed)

    def loses_reply(self, reply: Group) -> bool:
        return self._cuts(reply, "stored")

    def loses_request(self, request: Group) -> bool:
        return self._cuts(request, "not stored")

    def _cuts(self, group: Group, what: str) -> bool:
        phase = PHASES[self.made.total() // PHASE_CUTS % len(PHASES)]
        if self.is_over or not group.commits or self._chance.random() > phase[what]:
            return False
        who = "transaction" if "COMMIT" in group.words else "statement"
        self.made[f"{who} {what}"] += 1
        return True

    def __str__(self) -> str:
        return f"seed {self._seed}, cuts: {dict(self.made)}"


def test_every_call_that_returned_is_stored_once_however_often_connections_are_cut(
    postgres_url: str, seed: int, is_chaos: bool
) -> None:
    goal = 10_000 if is_chaos else 200
    cuts = Cuts(seed)

    async def main(proxy: Proxy) -> None:
        ledger, oracle = Ledger(), Oracle(postgres_url)
        looking = asyncio.Lock()

        async def is_stored(run_id: str, marker: str) -> bool:
            async with looking:
                await asyncio.to_thread(oracle.look)
            return marker in oracle.markers[run_id]

        def is_all_seen() -> bool:
            return len(cuts.made) == KINDS and all(ledger.raised[known] for known in VERDICTS)

        async def cut_enough() -> None:
            proxy.cut_replies(cuts.loses_reply)
            proxy.cut_requests(cuts.loses_request)
            # Also until each has happened: some come about once in fifty cuts.
            while cuts.made.total() < goal or not is_all_seen():
                await ledger.reach(1)
            cuts.is_over = True

        await disturbed(
            proxy.url(postgres_url),
            cut_enough,
            ledger,
            seed=seed,
            patience_seconds=PATIENCE_SECONDS,
            is_stored=is_stored,
        )
        context = f"{cuts}; {ledger}"
        assert await faults_in(postgres_url, ledger, oracle) == [], context
        assert proxy.cuts >= goal, context
        assert is_all_seen(), context
        print(context)

    with Proxy(postgres_url) as proxy:
        asyncio.run(asyncio.wait_for(main(proxy), goal))
