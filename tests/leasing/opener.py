"""A process that opens a run and is killed: `python -m tests.leasing.opener STORE RUN [WHEN]`.

Killed with the run open; or, with WHEN `loading`, when the run is leased and not loaded yet. If it
cannot open the run, it answers with the name of the error, and ends.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import holdfast
from holdfast.engine.leases.leases import Leases
from holdfast.errors import HoldfastError
from tests.leasing.laborer import settings


async def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    store, run_id, *when = sys.argv[1:]
    if when == ["loading"]:
        Leases._state_of = die  # type: ignore[assignment]
    async with holdfast.open(store, settings=settings(60)) as hf:
        try:
            await hf.runs.open(run_id)
        except HoldfastError as error:
            print(json.dumps(type(error).__name__), flush=True)
            return
        await die()


if __name__ == "__main__":
    asyncio.run(main())
