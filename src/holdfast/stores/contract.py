"""What a store promises, in the words of the domain.

A use case builds one `Write`; the store applies it whole or not at all, and answers. Writes of many
runs share a transaction (`combiner`), so none of them may hold one open: a `Commit` says where it
continues from; a `Late` brings the rule to decide by, and is given the rows under the run's lock.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from holdfast.clock import Clock
from holdfast.kernel.index_rows import Indexes
from holdfast.kernel.indexes import Change
from holdfast.kernel.journal import Draft, Entry, Position
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.messages import Move, QueuedMessage
from holdfast.kernel.runs import RunRow
from holdfast.stores.home import Home
from holdfast.stores.reads import (
    BudgetReads,
    CheckpointReads,
    EffectReads,
    JournalReads,
    MarkReads,
    MessageReads,
    RecordReads,
    RunReads,
    SignalReads,
    WaitReads,
    WorkerReads,
    WriteReads,
)


class LookForForeign(Protocol):
    """Calls back with whether another process has committed since the last look.

    `begun` and `ended` count the batches that this process itself writes.
    """

    @property
    def begun(self) -> int: ...
    @property
    def ended(self) -> int: ...
    def __call__(self, then: Callable[[bool], None], /) -> None: ...


class BegunRun(msgspec.Struct, frozen=True, gc=False):
    """A run that begins with a commit of another: the first entries of its journal, and its row."""

    run: RunRow
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
    run: RunRow | None
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
    """The newest checkpoint of a run; 0 and None without one."""

    seq: int
    version: int
    checkpoint_id: UUID | None


NO_CHECKPOINT: Final = AtCheckpoint(0, 0, None)


class Holder(NamedTuple):
    """Until when the worker that holds a run counts as alive, and how often it has beaten."""

    expires_at: int
    beats: int


class Snapshot(msgspec.Struct):
    """What a late-bound decision sees: a run's rows, read under its lock.

    `indexes` holds the run and the waits, groups, effects, signals, budget and reservations that
    were asked for. `holder` is None if the run's worker has no row: it has ended well. A sweep for
    lost runs sees all `workers`, and whether the run `has_results` recorded since it was leased.
    """

    position: Position
    indexes: Indexes
    now: int
    newest: AtCheckpoint
    holder: Holder | None
    workers: Mapping[str, WorkerRow] = {}
    has_results: bool = False

    @property
    def run(self) -> RunRow | None:
        return self.indexes.run


class RunHead(NamedTuple):
    """A run after these entries were appended to it, and its newest checkpoint before them."""

    run: RunRow
    position: Position
    newest: AtCheckpoint
    entries: tuple[Entry, ...]


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
    """Claim an open wait to answer it soon: nobody else claims or expires it meanwhile."""

    wait_id: str
    by: str
    until: int


class ForgetMessages(msgspec.Struct, frozen=True, gc=False):
    """Forget messages of the outbox that the same write delivers, or makes unnecessary."""

    message_ids: tuple[str, ...]


Touch = ExtendWait | NoteDuplicate | ClaimWait | ForgetMessages


class LostWorker(NamedTuple):
    """A worker that is judged to be lost, by how often it had beaten then."""

    worker: str
    beats: int


class LateDecision(msgspec.Struct, frozen=True):
    """What a late-bound decision wants: entries, row touches beside the journal, and its answer.

    With `if_unmoved` its entries are stored only if, when they are written, that worker has beaten
    no more often than it says. With `answers_head` the answer is the run's `RunHead`.
    """

    answer: Any
    drafts: tuple[Draft, ...] = ()
    touches: tuple[Touch, ...] = ()
    if_unmoved: LostWorker | None = None
    answers_head: bool = False


Decide = Callable[[Snapshot], LateDecision]


DEADLINES: Final = "deadlines"
"""The topic of a write that sets a deadline, for those who sleep until the next one."""

JOURNAL: Final = "journal"
"""The topic of a write that adds entries, to whichever run."""


class Late(msgspec.Struct, frozen=True):
    """A write of somebody who does not hold the run: decided on the rows under the run's lock.

    `decide` is pure; what it raises reaches the submitter, and nothing is stored for it. Without a
    `run_id` it is the run of the first of `wait_ids`, which the store looks up on the way.
    `signal_names` asks for the run's open waits that signals of these names resolve, `has_budget`
    for its budget. `topics` are whom it concerns beside the run. The row of `taker`, who leases the
    run, is renewed in the same transaction if less than half of its lease is left, or if it says
    that the run is tried.
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
    taker: WorkerRow | None = None

    def answered(self, run_id: str, answer: Any) -> Any:
        """What a backend answers to this write, which turned out to be for that run."""
        is_found = not self.run_id and not isinstance(answer, BaseException)
        return FoundRun(run_id, answer) if is_found else answer


class FoundRun(NamedTuple):
    """The answer to a `Late` that names no run, with the run that the store found for it."""

    run_id: str
    answer: Any


class Sweep(msgspec.Struct, frozen=True):
    """Find runs by one query and decide for each, in one transaction.

    `find` is "ready_runs", "lost_runs" or "due_waits"; each run is given to exactly one sweep. The
    answer is a list of (run id, answer); the answer for a damaged run is an IntegrityError. With
    `agents` only their runs are found; of waits only those for peers. "ready_runs" finds runs that
    may have been the death of their workers only `with_suspects`; "lost_runs" finds those of the
    `lost` workers, and those of workers that have no row. `taker` as of a `Late`.
    """

    tenant: str
    find: str
    actor: str
    limit: int
    decide: Decide
    agents: tuple[str, ...] = ()
    with_suspects: bool = True
    lost: tuple[LostWorker, ...] = ()
    taker: WorkerRow | None = None


FIND_OF_AGENTS: Final = {
    "ready_runs": "find_ready_runs_of_agents",
    "due_waits": "find_due_waits_of_agents",
}
"""The queries of sweeps that look at the runs of some agents only."""


class Beat(msgspec.Struct, frozen=True, gc=False):
    """Keep a worker alive for its lease from now on; the last one forgets it.

    The store says until when that is. Another worker is forgotten only if it has not beaten since
    its row was read (`if_unmoved`).
    """

    worker: WorkerRow
    is_last: bool = False
    if_unmoved: bool = False


class NoteBlockedLoop(msgspec.Struct, frozen=True, gc=False):
    """Note on a worker's row which run's code holds its event loop; its next beat erases that."""

    tenant: str
    worker: str
    run_id: str


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Put a message into its queue; the answer is False if its id was used there before.

    It is due at `due_at`, by the store's clock.
    """

    message: QueuedMessage


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

    Its worker, attempts and status are compared: a worker that lost a delivery moves nothing.
    A message to be forgotten was delivered: it (`created_at`) is deleted, whichever worker has it.
    Moving it a second time in the same way is the same as once.
    """

    message: QueuedMessage
    move: Move


MessageWrite = Publish | TakeMessages | MoveMessage
Write = Commit | Late | Sweep | Beat | NoteBlockedLoop | MessageWrite


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
    """Called after each batch with the topics it concerned: a hint for those that wait."""

    look_for_foreign_commits: LookForForeign | None
    """Calls back with whether another process has committed since the last look.

    None where processes announce what they commit.
    """

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

        The store owns what was submitted: cancelling a caller that awaits it does not withdraw it.
        """
        ...

    def abort_connections(self) -> None:
        """Abort what waits for the event loop, from another thread: it holds locks.

        When the loop continues, the submitter gets the error of a lost connection.
        """
        ...

    async def reindex(self, run_id: str) -> None:
        """Rebuild a run's indexes from its journal, in one transaction."""
        ...

    async def info(self) -> StoreInfo: ...
    async def store_id(self) -> str:
        """Who this store is, among all stores."""
        ...
