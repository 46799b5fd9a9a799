"""A process that is killed while it waits for a run: `python -m tests.peers.awaiting STORE LEDGER`.

A command is [run id, fault point, how often to pass it]; a process is forked for each, and the
answer is how it ended. It works on the run's peers itself, as nobody else does.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import holdfast
from holdfast import Settings
from holdfast.testing import arm
from tests.agents.ledger import Ledger
from tests.agents.victims import LEASE_SECONDS
from tests.peers import callers

SETTINGS = Settings(lease_seconds=LEASE_SECONDS)


async def wait_for(store: str, ledger: Ledger, run_id: str, point: str, skip: int) -> None:
    agents = callers.make(ledger)
    async with holdfast.Holdfast(store, agents=agents, settings=SETTINGS) as hf:
        arm(point, "kill", skip=skip)
        assert await hf.run(agents[0], 1, run_id=run_id) == 1


def main(store: str, ledger: Ledger) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            asyncio.run(wait_for(store, ledger, *command))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(json.dumps(os.waitstatus_to_exitcode(status)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Ledger(Path(sys.argv[2])))
