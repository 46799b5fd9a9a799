"""What a store lets be read, one protocol for each primitive, and the filters of its listings."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from holdfast.kernel.budgets import Account, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.events import Fed, FeedPosition
from holdfast.kernel.journal import Entry, Header, Position
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import MessageStatus, QueuedMessage
from holdfast.kernel.records import RecordRow, Revision
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait


class TreeStanding(NamedTuple):
    """Whether any run below one is busy or blocked; and whether any question is open."""

    is_busy: bool
    is_blocked: bool
    is_asking: bool


class RunFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which runs to list: all, or those of a status, an agent (and a subject), a parent,
    or an owner (and any of these)."""

    status: str | None = None
    agent: str | None = None
    subject: str | None = None
    parent: str | None = None
    owner: str | None = None
    limit: int = 100
    before: tuple[int, str] | None = None


class CheckpointFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which checkpoints to search for. These fields and no others can be searched."""

    run_id: str | None = None
    agent: str | None = None
    phase: str | None = None
    status: str | None = None
    label: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 100
    before: UUID | None = None


class RecordFilter(CheckpointFilter, frozen=True, kw_only=True, gc=False):
    """The same by fields of records; the summary must have all `words`."""

    agent_type: str | None = None
    words: str = ""


class FoundRecord(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint, its record's row (empty if it has none), and its parent.

    `parent_seq` is where the entry of the version before it lies; 0 if that has no row.
    """

    checkpoint: Checkpoint
    row: RecordRow
    parent_id: str
    parent_seq: int = 0


class MarkFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which marks to list: of a run or of all, newest first; None means any.

    A mark has `tags` if each of them equals its own as JSON data: 1 equals 1.0, but unlike in
    Python True is not 1; the order of keys does not matter. One that is to be None may be missing.
    """

    run_id: str | None = None
    space: str | None = None
    name: str | None = None
    before_version: int | None = None
    before_name: str | None = None
    tags: dict[str, Any] = {}
    limit: int = 100


class Linked(msgspec.Struct, frozen=True, gc=False):
    """An entry with the link of the one before it, so that it can be checked by itself."""

    entry: Entry
    previous: bytes | None


class Extent(NamedTuple):
    """Where a journal ends, and how many entries it has: as many, if none is missing."""

    last: int
    entries: int

    @property
    def is_whole(self) -> bool:
        return self.last == self.entries


class CheckpointPosition(NamedTuple):
    """Where the entry of a checkpoint lies, and the checkpoint's id."""

    run_id: str
    seq: int
    checkpoint_id: UUID


class RunAtHead(msgspec.Struct, frozen=True, gc=False):
    """A run's row and where its journal ends, both at one moment."""

    run: RunRow
    position: Position


class RunReads(Protocol):
    """Rows of runs, compared with the journal.

    Raise IndexCorrupted for a row that was changed outside Holdfast.
    """

    async def get(self, run_id: str) -> RunRow | None: ...
    async def row(self, run_id: str) -> RunRow | None:
        """Return a run's row without comparing it."""
        ...

    async def at_head(self, run_id: str) -> RunAtHead | None: ...
    async def page(self, wanted: RunFilter) -> list[RunRow]: ...
    async def count(self) -> dict[str, int]: ...
    async def ids(self, after: str, limit: int) -> list[str]:
        """Ids of all runs in order: those with a journal, and those that only have a row."""
        ...

    async def held_by(self, worker: str) -> list[RunRow]: ...
    async def standing(self, run_id: str) -> TreeStanding:
        """Return what there is in the tree of a run, through the runs that wait."""
        ...

    async def of_peers(self, run_id: str, limit: int) -> list[RunRow]:
        """The runs a run waits for as their caller: those that are ready, then those that wait."""
        ...

    async def expired(
        self, agent: str, before: int, *, after: tuple[int, str], limit: int
    ) -> list[RunRow]:
        """Runs of an agent that ended before a moment and are not erased; oldest first.

        None that another run called, and none that owes somebody a message. `after` continues a
        listing: when a run was created, and its id.
        """
        ...

    async def live(
        self, agent: str, subject: str | None, *, after: tuple[int, str], limit: int
    ) -> list[RunRow]:
        """Runs of an agent, and of a subject, that have not ended; oldest first, as `expired`."""
        ...

    async def next_ready_at(self) -> int | None: ...
    async def failing(self) -> dict[str, int]:
        """How many runs of each agent its code has failed more than once in a row, and that are
        to be tried again."""
        ...

    async def find_suspect(self, agents: Sequence[str], now: int) -> str | None:
        """The run of these agents that is to be tried alone, and has wanted a worker longest."""
        ...


class JournalReads(Protocol):
    async def head(self, run_id: str) -> Position | None: ...
    async def read(self, run_id: str, *, after: int, limit: int) -> list[Entry]: ...
    async def checkpoints(self, run_id: str, *, after: int, upto: int) -> list[Linked]:
        """The entries of checkpoints in a stretch of a journal, in order."""
        ...

    async def named(self, run_id: str, seqs: Sequence[int]) -> list[Linked]:
        """The entries with these seqs; one that is missing is left out."""
        ...

    async def extent(self, run_id: str) -> Extent: ...
    async def seqs(self, run_id: str) -> list[int]:
        """The seqs of all entries that are there, in order."""
        ...

    async def headers(self, places: Sequence[tuple[str, int]]) -> list[Header]:
        """The entries at these (run id, seq) without their bodies; missing ones are left out."""
        ...

    async def headers_after(self, run_id: str, *, after: int, limit: int) -> list[Header]:
        """A stretch of a journal without its bodies, in order."""
        ...

    async def telling(
        self, places: Sequence[CheckpointPosition], *, with_bodies: bool = True
    ) -> list[Linked]:
        """Return the journal's entries about checkpoints, whatever the rows say.

        The entry of each at its place; and found by its id, the last one that changes it, makes it
        final, links it, and takes it away. Without bodies they cannot be checked by themselves.
        """
        ...

    async def told_checkpoint(self, checkpoint_id: UUID) -> Linked | None:
        """Return the entry of a checkpoint that has a record, whether or not it has a row."""
        ...

    async def tombstones(self, run_id: str) -> list[Header]:
        """The entries that take versions away, in order."""
        ...

    async def erasures(self, run_id: str) -> list[Entry]:
        """The entries that say which bodies were erased, in order."""
        ...

    async def feed(self, after: FeedPosition, limit: int) -> list[Fed]:
        """The entries of all runs after a place in the feed, those of each run in order.

        A reader that continues after its last entry gets every entry, and none twice.
        """
        ...

    async def feed_end(self) -> FeedPosition:
        """A place that everything which is committed from now on comes after."""
        ...


class CheckpointReads(Protocol):
    async def get(self, run_id: str, version: int) -> Checkpoint | None: ...
    async def by_id(self, checkpoint_id: UUID) -> Checkpoint | None: ...
    async def page(self, run_id: str, *, before: int, limit: int) -> list[Checkpoint]: ...
    async def search(self, wanted: CheckpointFilter) -> list[Checkpoint]: ...


class RecordReads(Protocol):
    async def by_id(self, checkpoint_id: UUID) -> FoundRecord | None: ...
    async def page(self, run_id: str, *, before: int, limit: int) -> list[FoundRecord]:
        """The versions of a run, newest first."""
        ...

    async def search(self, wanted: RecordFilter) -> list[FoundRecord]:
        """Checkpoints over all runs by their ids, newest first."""
        ...

    async def of_run(self, run_id: str) -> list[RecordRow]: ...
    async def revisions(self, run_id: str) -> list[Revision]: ...
    async def revision(self, run_id: str, version: int, revision: int) -> Revision | None:
        """Where a revision after the first lies."""
        ...


class MarkReads(Protocol):
    """Rows of marks, compared with the journal; see `RunReads`."""

    async def rows(self, run_id: str) -> list[Marked]:
        """Return a run's rows without comparing them."""
        ...

    async def get(self, run_id: str, space: str, name: str) -> Marked | None: ...
    async def latest(self, run_id: str, space: str) -> Marked | None:
        """The one with the highest version."""
        ...

    async def page(self, wanted: MarkFilter) -> list[Marked]:
        """Of one run by version, of all by name, from the highest down; UUIDs are above others."""
        ...

    async def of_run(self, run_id: str) -> list[Marked]:
        """All marks of a run, from the lowest version up."""
        ...

    async def tagged(self, tag: str, values: Sequence[str]) -> list[Marked]:
        """The marks over all runs whose tag is one of these values. Looks at every mark."""
        ...

    async def idle_runs(self, agent: str, before: int, limit: int) -> list[str]:
        """Runs of an agent whose marks are all from before a moment, the oldest run first.

        Not those that are running, or that have an open wait.
        """
        ...


class WriteReads(Protocol):
    async def of_marks(self, run_id: str, keys: Sequence[tuple[str, str]]) -> list[WrittenAt]:
        """Where the writes of these (space, name) lie, in order."""
        ...

    async def of_run(self, run_id: str) -> list[WrittenAt]:
        """Where all writes of a run lie, in order."""
        ...


class EffectReads(Protocol):
    async def get(self, effect_id: UUID) -> Effect | None: ...
    async def intents(self, key: str) -> list[Header]:
        """Return the journal's entries that issued an effect with this key, in any run."""
        ...

    async def by_key(self, key: str) -> Effect | None: ...
    async def of_run(self, run_id: str) -> list[Effect]: ...
    async def open(self, status: str, *, owner: str | None = None, limit: int) -> list[Effect]:
        """Those of an open status over all runs, or an owner's; the earliest time limit first."""
        ...


class WaitReads(Protocol):
    async def get(self, wait_id: str) -> Wait | None: ...
    async def of_run(self, run_id: str) -> list[Wait]: ...
    async def of_group(self, run_id: str, group_id: str) -> list[Wait]: ...
    async def for_call(self, address: str) -> list[Wait]:
        """The open waits that joined the call at an address (`kernel.peers.at_call`)."""
        ...

    async def group(self, run_id: str, group_id: str) -> Group | None: ...
    async def groups(self, run_id: str) -> list[Group]: ...
    async def next_deadline(self, after: int) -> int | None: ...
    async def open_questions(
        self, owner: str | None = None, *, after: tuple[int, str], limit: int
    ) -> list[Wait]:
        """What people are asked over all runs, or those of an owner, the oldest first; `after`
        continues a listing."""
        ...


class SignalReads(Protocol):
    """Rows of signals, compared with the journal; see `RunReads`."""

    async def rows(self, run_id: str) -> list[Signal]:
        """Return a run's rows without comparing them."""
        ...

    async def get(self, run_id: str, signal_id: str) -> Signal | None: ...
    async def of_run(self, run_id: str) -> list[Signal]:
        """All signals of a run, in the order they came."""
        ...

    async def untaken(self, run_id: str, name: str, limit: int) -> list[Signal]:
        """The signals of a name that a run has not taken yet, in the order they came."""
        ...


class BudgetReads(Protocol):
    async def get(self, run_id: str) -> Account | None: ...
    async def of_runs(self, run_ids: Sequence[str]) -> dict[str, Account | None]:
        """The budgets of those runs that have one; None where the journal has one and no row."""
        ...

    async def entries(self, run_id: str, *, after: int, limit: int) -> list[Header]:
        """The entries of a run's journal that change its budget, without bodies, in order."""
        ...

    async def reservations(self, run_id: str) -> list[Reservation]:
        """What is reserved on a run's budget just now."""
        ...

    async def reserved_by(self, spender: str) -> list[Reservation]:
        """What calls of a run have reserved on any budget."""
        ...


class MessageReads(Protocol):
    async def get(self, queue: str, message_id: str) -> QueuedMessage | None: ...
    async def count(self, queue: str) -> dict[str, int]:
        """How many messages of each status a queue has."""
        ...

    async def next_due_at(self, queue: str, after: int) -> int | None:
        """When the next message becomes due of those that are not due at a moment."""
        ...

    async def page(self, queue: str, status: MessageStatus, limit: int) -> list[QueuedMessage]:
        """The messages of a status, in the order they were published."""
        ...


class WorkerReads(Protocol):
    async def page(self) -> list[WorkerRow]: ...
    async def holding(self) -> list[WorkerRow]:
        """The workers that hold runs. How many is not counted."""
        ...
