"""Which agents live workers serve, and what to say of those that none serves."""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.runs import RunRow, RunStatus

UNSERVED_MICROSECONDS: Final = 10_000_000
"""How long a run waits for a worker before Holdfast reports that none serves its agent."""
_OWN_PREFIX: Final = "holdfast."
"""Runs of Holdfast's own agents are worked on by every worker, beside its runs."""

_names: Final = msgspec.json.Decoder(list[str])


def served_agents(workers: Iterable[WorkerRow], *, now: int) -> set[str]:
    """The agents whose runs live workers take."""
    return {name for worker in workers if worker.expires_at > now for name in agents_of(worker)}


def agents_of(worker: WorkerRow) -> list[str]:
    """The agents whose runs a worker takes."""
    return _names.decode(worker.agents)


def unserved(found: Iterable[RunRow], workers: Iterable[WorkerRow], *, now: int) -> dict[str, str]:
    """A sentence for each agent whose runs wait for a worker, and no live worker serves it."""
    waiting = {
        run.agent
        for run in found
        if run.status is RunStatus.READY
        and run.ready_at + UNSERVED_MICROSECONDS <= now
        and not run.agent.startswith(_OWN_PREFIX)
    }
    served = served_agents(workers, now=now)
    named = ", ".join(sorted(served)) or "nothing"
    return {
        name: f"no live worker serves {name!r}; served now: {named}"
        for name in sorted(waiting - served - {""})
    }
