"""What a store promises, in the words of the domain.

A use case builds one `Write`; the store applies it whole or not at all, and answers. Writes of many
runs share a transaction (`combiner`), so none of them may hold one open: a `Commit` says where it
continues from; a `Late` brings the rule to decide by, and is given the rows under the run's lock.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from holdfast.clock import Clock
from holdfast.kernel.budgets import Account, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.events import Fed, FeedPosition
from holdfast.kernel.indexes import Change, Indexes
from holdfast.kernel.journal import Draft, Entry, Position
from holdfast.kernel.leases import Worker
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import Message, MessageStatus, Move
from holdfast.kernel.records import RecordRow, Revision
from holdfast.kernel.runs import Run
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait
from holdfast.stores.home import Home


class BegunRun(msgspec.Struct, frozen=True, gc=False):
    """A run that begins with a commit of another: the first entries of its journal, and its row."""

    run: Run
    entries: tuple[Entry, ...]


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Entries that continue a journal after a known position, and what they do to the indexes.

    `run` is the run's row if it changed; runs that are `begun` are stored with it or not at all.
    Applying the same commit twice is the same as once.
    """

    tenant: str
    run_id: str
    after: Position
    entries: tuple[Entry, ...]
    run: Run | None
    changes: tuple[Change, ...]
    begun: tuple[BegunRun, ...] = ()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The commit is stored, on disk."""


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The journal does not end where the commit continues. Nothing was stored."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A change's condition did not hold (the key is taken, the id used). Nothing was stored."""

    change: Change


Outcome = Applied | Conflict | Refused


class AtCheckpoint(NamedTuple):
    """The newest checkpoint of a run; 0 and None if there is none."""

    seq: int
    version: int
    checkpoint_id: UUID | None


NO_CHECKPOINT: Final = AtCheckpoint(0, 0, None)


class Snapshot(msgspec.Struct):
    """What a late-bound decision sees: a run's rows as they are under its lock.

    `indexes` holds the run and the waits, groups, effects, signals, budget and reservations that
    were asked for.
    """

    position: Position
    indexes: Indexes
    now: int
    newest: AtCheckpoint
    holder_expires_at: int

    @property
    def run(self) -> Run | None:
        return self.indexes.run


class ExtendWait(msgspec.Struct, frozen=True, gc=False):
    """Move an open wait's deadline: a hint of a peer, not on the journal, with what it said."""

    wait_id: str
    deadline: int
    at: int
    progress: str = ""


class NoteDuplicate(msgspec.Struct, frozen=True, gc=False):
    """Count a reply to a wait that was settled before."""

    wait_id: str


class ClaimWait(msgspec.Struct, frozen=True, gc=False):
    """Keep an open wait for whoever is about to answer it: nobody else claims or expires it."""

    wait_id: str
    by: str
    until: int


Touch = ExtendWait | NoteDuplicate | ClaimWait


class Decision(msgspec.Struct, frozen=True):
    """What a late-bound decision wants: entries, row touches beside the journal, and its answer."""

    answer: Any
    drafts: tuple[Draft, ...] = ()
    touches: tuple[Touch, ...] = ()


Decide = Callable[[Snapshot], Decision]


EVERYBODY: Final = "*"
"""The topic of a write that may concern anybody."""

DEADLINES: Final = "deadlines"
"""The topic of a write that sets a deadline, for those who sleep until the next one."""

JOURNAL: Final = "journal"
"""The topic of a write that adds entries, to whichever run."""


class Late(msgspec.Struct, frozen=True):
    """A write of somebody who does not hold the run: decided on the rows under the run's lock.

    `decide` is pure; what it raises reaches the submitter, and nothing is stored for it. Without a
    `run_id` it is the run of the first of `wait_ids`, which the store looks up on the way.
    `signal_names` asks for the run's open waits that signals of these names resolve, `has_budget`
    for its budget. `topics` are whom it concerns beside the run.
    """

    tenant: str
    run_id: str
    actor: str
    decide: Decide
    wait_ids: tuple[str, ...] = ()
    effect_ids: tuple[UUID, ...] = ()
    signal_ids: tuple[str, ...] = ()
    signal_names: tuple[str, ...] = ()
    reservation_ids: tuple[str, ...] = ()
    has_budget: bool = False
    topics: tuple[str, ...] = ()


class Sweep(msgspec.Struct, frozen=True):
    """Find runs by one query and decide for each, in one transaction.

    `find` is "ready_runs", "lost_runs" or "due_waits"; each run is given to exactly one sweep. The
    answer is a list of (run id, answer); the answer for a damaged run is an IntegrityError. With
    `agents` only their runs are found; of waits only those for peers.
    """

    tenant: str
    find: str
    actor: str
    limit: int
    decide: Decide
    agents: tuple[str, ...] = ()


FIND_OF_AGENTS: Final = {
    "ready_runs": "find_ready_runs_of_agents",
    "due_waits": "find_due_waits_of_agents",
}
"""The queries of sweeps that look at the runs of some agents only."""


class Beat(msgspec.Struct, frozen=True, gc=False):
    """Keep a worker alive until `expires_at`; 0 forgets it."""

    tenant: str
    worker: str
    started_at: int
    expires_at: int


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Put a message into its queue; the answer is False if its id was used there before.

    It is due at `due_at`, by the store's clock.
    """

    message: Message


class TakeMessages(msgspec.Struct, frozen=True, gc=False):
    """Deliver what is due in a queue, in order, for `lease` microseconds; a list of messages.

    Nobody else is given them until then. A message of an ordering is not delivered while an earlier
    one of it is ready, unless both are delivered here.
    """

    tenant: str
    queue: str
    worker: str
    limit: int
    lease: int


class MoveMessage(msgspec.Struct, frozen=True, gc=False):
    """Change a message; the answer is False if it is not as `message` has it any more.

    What tells is its worker, its attempts and its status: whoever lost a delivery moves nothing.
    Moving it a second time in the same way is the same as once.
    """

    message: Message
    move: Move


MessageWrite = Publish | TakeMessages | MoveMessage
Write = Commit | Late | Sweep | Beat | MessageWrite


class TreeStanding(NamedTuple):
    """Whether any run below one goes on, or is blocked; and whether any question is open."""

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
    """The same by what records tell; `words` are all to be in the summary."""

    agent_type: str | None = None
    words: str = ""


class FoundRecord(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint, its record's row (that of one which has none tells nothing), and its parent."""

    checkpoint: Checkpoint
    row: RecordRow
    parent_id: str


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


class RunAtHead(msgspec.Struct, frozen=True, gc=False):
    """A run's row and where its journal ends, both at one moment."""

    run: Run
    position: Position


class RunReads(Protocol):
    async def get(self, run_id: str) -> Run | None: ...
    async def at_head(self, run_id: str) -> RunAtHead | None: ...
    async def page(self, wanted: RunFilter) -> list[Run]: ...
    async def count(self) -> dict[str, int]: ...
    async def ids(self, after: str, limit: int) -> list[str]:
        """Ids of all runs in order: those with a journal, and those that only have a row."""
        ...

    async def held_by(self, worker: str) -> list[Run]: ...
    async def standing(self, run_id: str) -> TreeStanding:
        """What there is in the tree of a run, through those that wait."""
        ...

    async def of_peers(self, run_id: str, limit: int) -> list[Run]:
        """The runs a run waits for as their caller: those that are ready, then those that wait."""
        ...

    async def expired(
        self, agent: str, before: int, *, after: tuple[int, str], limit: int
    ) -> list[Run]:
        """Runs of an agent that ended before a moment and are not erased; oldest first.

        None that another run called, and none that owes somebody a message. `after` continues a
        listing: when a run was created, and its id.
        """
        ...

    async def live(
        self, agent: str, subject: str | None, *, after: tuple[int, str], limit: int
    ) -> list[Run]:
        """Runs of an agent, and of a subject, that have not ended; oldest first, as `expired`."""
        ...

    async def next_ready_at(self) -> int | None: ...
    async def failing(self) -> dict[str, int]:
        """How many runs of each agent have failed more than once in a row, and want to go on."""
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

    async def erasures(self, run_id: str) -> list[Entry]:
        """The entries that say which bodies were erased, in order."""
        ...

    async def feed(self, after: FeedPosition, limit: int) -> list[Fed]:
        """The entries of all runs after a place in the feed, those of each run in order.

        Whoever goes on after the last one it was given gets every entry, and none twice.
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
    async def by_key(self, key: str) -> Effect | None: ...
    async def of_run(self, run_id: str) -> list[Effect]: ...
    async def open(self, status: str, *, owner: str | None = None, limit: int) -> list[Effect]:
        """Those of an open status over all runs, or an owner's; the earliest time limit first."""
        ...


class WaitReads(Protocol):
    async def get(self, wait_id: str) -> Wait | None: ...
    async def of_run(self, run_id: str) -> list[Wait]: ...
    async def of_group(self, run_id: str, group_id: str) -> list[Wait]: ...
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
    async def get(self, run_id: str, signal_id: str) -> Signal | None: ...
    async def of_run(self, run_id: str) -> list[Signal]:
        """All signals of a run, in the order they came."""
        ...

    async def untaken(self, run_id: str, name: str, limit: int) -> list[Signal]:
        """The signals of a name that a run has not taken yet, in the order they came."""
        ...


class BudgetReads(Protocol):
    async def get(self, run_id: str) -> Account | None: ...
    async def over(self, run_id: str) -> list[Account]:
        """The budgets that a run draws on: its own first, and those of runs it descends from."""
        ...

    async def reservations(self, run_id: str) -> list[Reservation]:
        """What is reserved on a run's budget just now."""
        ...

    async def reserved_by(self, spender: str) -> list[Reservation]:
        """What calls of a run have reserved on any budget."""
        ...


class MessageReads(Protocol):
    async def get(self, queue: str, message_id: str) -> Message | None: ...
    async def count(self, queue: str) -> dict[str, int]:
        """How many messages of each status a queue has."""
        ...

    async def next_due_at(self, queue: str, after: int) -> int | None:
        """When the next message becomes due of those that are not due at a moment."""
        ...

    async def page(self, queue: str, status: MessageStatus, limit: int) -> list[Message]:
        """The messages of a status, in the order they were published."""
        ...


class WorkerReads(Protocol):
    async def page(self) -> list[Worker]: ...


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a store is, for people."""

    url: str
    backend: str
    library: str
    schema: int
    newest_schema: int
    journal_mode: str
    size_bytes: int
    runs: dict[str, int]


class Store(Protocol):
    """Durable rows of one tenant. What `submit` has answered is on disk."""

    clock: Clock
    tenant: str
    on_applied: Callable[[Iterable[str]], None] | None
    """Called after each batch with the topics it concerned: a hint for whoever waits."""

    @property
    def home(self) -> Home: ...
    @property
    def runs(self) -> RunReads: ...
    @property
    def journal(self) -> JournalReads: ...
    @property
    def checkpoints(self) -> CheckpointReads: ...
    @property
    def records(self) -> RecordReads: ...
    @property
    def marks(self) -> MarkReads: ...
    @property
    def writes(self) -> WriteReads: ...
    @property
    def effects(self) -> EffectReads: ...
    @property
    def waits(self) -> WaitReads: ...
    @property
    def signals(self) -> SignalReads: ...
    @property
    def budgets(self) -> BudgetReads: ...
    @property
    def messages(self) -> MessageReads: ...
    @property
    def workers(self) -> WorkerReads: ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def submit(self, write: Write) -> Awaitable[Any]:
        """Apply a write: an Outcome for a Commit, the decision's answer for the others.

        The store owns what was submitted: cancelling the caller does not withdraw it.
        """
        ...

    async def reindex(self, run_id: str) -> None:
        """Rebuild a run's indexes from its journal, in one transaction."""
        ...

    async def info(self) -> StoreInfo: ...
    async def store_id(self) -> str:
        """Who this store is, among all stores."""
        ...
