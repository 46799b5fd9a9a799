"""The worker of `holdfast demo`: `python -m holdfast.cli.demo_worker TENANT RUN TURNS`.

The store's URL comes on stdin.

The same program whether it begins a run or goes on with one: it opens the run, says what it found,
and acknowledges each turn on stdout once it is saved.
"""

import sys
import time
from typing import Final

from holdfast.cli.output import say, write
from holdfast.cli.text import to_json
from holdfast.errors import HoldfastError
from holdfast.settings import Settings
from holdfast.sync import Holdfast

_THINKING_SECONDS: Final = 0.02


def work(url: str, tenant: str, run_id: str, turns: int) -> None:
    """Save so many turns more, then complete the run."""
    with Holdfast(url, settings=Settings(tenant=tenant)) as hf:
        run = hf.runs.open(run_id, agent="demo", input="count the turns", takeover=True)
        found = [turn["turn"] for turn in run.state().get("transcript", [])]
        write(to_json({"opened": run.version, "turns": found}))
        for turn in range(run.version + 1, run.version + turns + 1):
            time.sleep(_THINKING_SECONDS)
            run.append("transcript", {"turn": turn, "text": f"this is turn {turn}"})
            run.checkpoint()
            write(to_json({"saved": turn}))
        run.complete({"turns": run.version})
        write(to_json({"completed": run.version}))


def main() -> int:
    tenant, run_id, turns = sys.argv[1:]
    url = sys.stdin.read()
    try:
        work(url, tenant, run_id, int(turns))
    except HoldfastError as error:
        say(f"the worker stopped: {error}")
        return 1
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
