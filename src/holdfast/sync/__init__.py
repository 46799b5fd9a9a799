"""Holdfast for code that blocks: `with holdfast.sync.open("agents.db") as hf:`.

The same names, parameters and errors as the async face, over one event loop in a background thread.
Nothing is decided here: every method hands its call over and waits. Ctrl-C ends the waiting; a
write that was handed over may still be stored, as after any crash. The classes are generated from
those of the async face by `make sync`.
"""

from holdfast.sync.agents import Approvals, Handle, Session, Worker
from holdfast.sync.app import Holdfast, open
from holdfast.sync.engine import (
    Budgets,
    Checkpoints,
    Effects,
    Handoffs,
    Journal,
    Messages,
    Recoveries,
    Runs,
    Signals,
    Waits,
)
from holdfast.sync.leases import LeasedRun, Leases
from holdfast.sync.peers import CheckpointService
from holdfast.sync.schedules import Schedules
from holdfast.sync.webhooks import Webhooks

__all__ = [
    "Approvals",
    "Budgets",
    "CheckpointService",
    "Checkpoints",
    "Effects",
    "Handle",
    "Handoffs",
    "Holdfast",
    "Journal",
    "LeasedRun",
    "Leases",
    "Messages",
    "Recoveries",
    "Runs",
    "Schedules",
    "Session",
    "Signals",
    "Waits",
    "Webhooks",
    "Worker",
    "open",
]
