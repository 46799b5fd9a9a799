"""Which classes of the async face are translated, and into which modules of `holdfast.sync`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PACKAGE: Final = "holdfast.sync"
LOOP: Final = "holdfast.sync.loop"
OPENING: Final = "holdfast.sync.lifecycle"


@dataclass(frozen=True)
class Face:
    """An async class, and what its source does not tell about its blocking face.

    - `attributes` are public attributes, beside those that are faces themselves.
    - `on_loop` are methods that do not wait, but must run in the loop's thread.
    - `made_of` is the parameter of its constructor that takes the Holdfast; users make the face.
    - `is_openable`: users make the face and enter it, so that it has an event loop of its own.
    - `base` is a base class with what Holdfast itself uses, and users do not.
    - `doc` replaces the docstring of the async class.
    """

    module: str
    name: str
    attributes: tuple[str, ...] = ()
    on_loop: tuple[str, ...] = ()
    made_of: str = ""
    is_openable: bool = False
    base: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Module:
    """A module of `holdfast.sync`; `functions` are copied from the module of its first face."""

    name: str
    doc: str
    faces: tuple[Face, ...]
    functions: tuple[str, ...] = ()


class Table:
    """Which faces there are, whichever modules they are in."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.faces: dict[tuple[str, str], str] = {}
        """For each async class that has a face, the module of the face."""
        self.openable: tuple[str, str] = ("", "")
        """The module and the name of the face that users open."""
        for module in modules:
            for face in module.faces:
                self.faces[face.module, face.name] = f"{PACKAGE}.{module.name}"
                if face.is_openable:
                    self.openable = (f"{PACKAGE}.{module.name}", face.name)


_LEASED_RUN: Final = Face(
    "holdfast.engine.held.leased_run",
    "LeasedRun",
    base="HeldRun",
    doc="A run and the lease on it. Use it from one thread at a time.",
)
_WORKFLOWS: Final = Face(
    "holdfast.workflows.workflows",
    "Workflows",
    doc="Workflows in a store, whoever works on them. Observers are called in another thread.",
)
_HOLDFAST: Final = Face(
    "holdfast.app",
    "Holdfast",
    is_openable=True,
    doc='An open store of agents\' state: `with holdfast.sync.open("agents.db") as hf:`.',
)
_MESH: Final = "holdfast.compat.mesh.checkpoint_service"
_RECORDS: Final = "holdfast.records.checkpoint_service"

MODULES: Final = (
    Module(
        "leases",
        "The blocking face of leases, and of a run that is held.",
        (_LEASED_RUN, Face("holdfast.engine.leases.leases", "Leases")),
    ),
    Module(
        "engine",
        "The services of a store, for code that blocks.",
        (
            Face("holdfast.engine.runs", "Runs"),
            Face("holdfast.engine.reading.journal", "Journal"),
            Face("holdfast.engine.checkpoints", "Checkpoints"),
            Face("holdfast.engine.handoffs", "Handoffs"),
            Face("holdfast.engine.maintenance.recoveries", "Recoveries"),
            Face("holdfast.engine.effects", "Effects"),
            Face("holdfast.engine.waits", "Waits"),
            Face("holdfast.engine.messages.outbox_messages", "Messages"),
            Face("holdfast.engine.signals", "Signals"),
            Face("holdfast.engine.budgets.budgets", "Budgets"),
        ),
    ),
    Module(
        "agents",
        "Runs of agents, sessions and workers, for code that blocks. Agents themselves are async.",
        (
            Face("holdfast.agents.work.handles", "Handle", attributes=("run_id",)),
            Face("holdfast.agents.work.sessions", "Session", attributes=("session_id",)),
            Face("holdfast.agents.work.worker", "Worker", on_loop=("stop",)),
            Face("holdfast.agents.work.approvals", "Approvals"),
        ),
    ),
    Module(
        "schedules",
        "Schedules, for code that blocks.",
        (Face("holdfast.agents.work.schedules", "Schedules"),),
    ),
    Module(
        "webhooks",
        "Webhooks, for code that blocks.",
        (Face("holdfast.subscribers.webhooks", "Webhooks"),),
    ),
    Module("workflows", "Workflows, for code that blocks.", (_WORKFLOWS,)),
    Module("app", "What `holdfast.sync.open()` returns.", (_HOLDFAST,), functions=("open",)),
    Module(
        "peers",
        "Tasks that pause for their peers, for code that blocks.",
        (Face(_MESH, "CheckpointService", made_of="hf"),),
    ),
    Module(
        "records",
        "Checkpoints that tell of the work, for code that blocks.",
        (Face(_RECORDS, "CheckpointService", made_of="hf"),),
    ),
)
