"""A process that drops versions and erases bodies in one commit, and fails at a point.

`python -m tests.faults.eraser URL POINT ACTION VERB`; it prints what the commit came to.
"""

import asyncio
import sys

import holdfast
from holdfast.testing import faults
from holdfast.testing.store_suite.mark_commits import commit, commit_late, erased, pruned

VERBS = {"commit": commit, "late": commit_late}


async def main(url: str, point: str, action: faults.Action, verb: str) -> None:
    async with holdfast.open(url) as hf:
        faults.arm(point, action)
        try:
            print(await VERBS[verb](hf, "a", pruned((1, 2)), erased((1, 5))), flush=True)
        except faults.InjectedFault:
            print("failed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]))  # type: ignore[arg-type]
