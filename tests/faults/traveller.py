"""A process that is killed while it goes back: `python -m tests.faults.traveller STORE`.

A command is [verb, run id, arguments by name, fault point]; a process is forked for each, and the
answer is how it ended. The point is armed once the store is open: the next commit is the travel.
"""

import asyncio
import json
import os
import sys
from typing import Any

import holdfast
from holdfast.testing import arm


async def travel(store: str, verb: str, run_id: str, given: dict[str, Any], point: str) -> None:
    async with holdfast.open(store) as hf:
        arm(point, "kill")
        await getattr(hf.runs, verb)(run_id, **given)


def main(store: str) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            asyncio.run(travel(store, *command))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(json.dumps(os.waitstatus_to_exitcode(status)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
