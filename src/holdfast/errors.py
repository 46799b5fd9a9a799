"""Every error Holdfast raises, in one tree.

HoldfastError
├── ConflictError            a domain answer: somebody else was first, or the move is not legal now
│   ├── AlreadyAnswered
│   ├── CheckpointFinal
│   ├── Fenced
│   ├── IllegalMove
│   ├── InputDiffers
│   ├── LeaseHeld
│   ├── NoAnswer
│   ├── RunBlocked
│   ├── RunEnded
│   │   └── RunCancelled
│   ├── RunExists
│   ├── RunFailed
│   ├── RunWaiting
│   ├── SpoolSuperseded
│   └── WaitExists
├── NotFoundError            nothing is stored under that name
│   ├── AgentNotFound
│   ├── CheckpointNotFound
│   ├── EffectNotFound
│   ├── RunNotFound
│   ├── ScheduleNotFound
│   ├── SignalNotFound
│   ├── WaitNotFound
│   └── WebhookNotFound
├── UnavailableError         try again later
│   ├── McpUnavailable
│   ├── OutcomeUnknown
│   ├── SpoolUnusable
│   ├── StoreBusy
│   ├── StoreFull
│   ├── StoreUnavailable
│   └── TransportUnavailable
├── IntegrityError           stored bytes are not what was written
│   ├── BodyErased
│   ├── CheckpointCorrupted
│   ├── JournalCorrupted
│   └── SpoolCorrupted
├── ToolError                what a tool says of its own call
│   ├── BlockFailed
│   ├── NotDone
│   ├── PeerFailed
│   │   ├── PeerCancelled
│   │   └── PeerTimedOut
│   ├── ToolFailed
│   └── WorkflowFailed
└── MisuseError              the caller's mistake
    ├── AnswerRefused
    ├── ContextTooSmall
    ├── InvalidConfig
    ├── InvalidIdentifier
    ├── InvalidSetting
    ├── KeyReused
    ├── RecordInvalid
    ├── SchemaMismatch
    ├── SignatureInvalid
    ├── StoreClosed
    ├── StoreNotPermitted
    ├── TurnDiverged
    ├── UnsupportedValue
    ├── ValueTooLarge
    ├── WorkflowInvalid
    └── WrongProcess

The docstring of a class is its default message.
"""

import inspect


class HoldfastError(Exception):
    """Holdfast could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or type(self).__name__))


class ConflictError(HoldfastError):
    """Somebody else was first. Load the run again and decide anew."""


class NotFoundError(HoldfastError):
    """Nothing is stored under that name. `holdfast runs list` shows what is."""


class UnavailableError(HoldfastError):
    """The store did not answer. Nothing that was acknowledged is lost; try again."""


class IntegrityError(HoldfastError):
    """Stored bytes are not what was written. `holdfast audit verify` names every damaged entry."""


class ToolError(HoldfastError):
    """A tool could not do what was asked."""


class MisuseError(HoldfastError):
    """The call cannot be right. Nothing was written."""


class Fenced(ConflictError):
    """A lease on this run was taken after yours: stop working on it, its new holder goes on."""


class LeaseHeld(ConflictError):
    """A live worker holds this run. Wait until it is done, or open it with takeover=True."""


class RunExists(ConflictError):
    """A run with this id exists already. Open it, or choose another id."""


class RunEnded(ConflictError):
    """The run has ended and takes no more work. Fork it to go on from one of its versions."""


class RunCancelled(RunEnded):
    """The run was cancelled: stop working on it."""


class IllegalMove(ConflictError):
    """The run is not in a state that allows this. `holdfast runs show` tells its state."""


class WaitExists(ConflictError):
    """A wait with this id exists already. Wait ids are used once; choose another."""


class InputDiffers(ConflictError):
    """A run with this id was started with another agent or input. Choose another id."""


class RunFailed(ConflictError):
    """The run has failed: its agent raised. `holdfast runs show` tells what."""


class RunBlocked(ConflictError):
    """An operator must act before the run goes on. `holdfast runs show` tells why."""


class RunWaiting(ConflictError):
    """The run waits for something from outside. Ask again later; it is not lost meanwhile."""

    def __init__(self, message: str | None = None, *, run_id: str = "", waits: object = ()) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.waits = waits


class AlreadyAnswered(ConflictError):
    """Somebody else has answered before; that answer stays. `holdfast approvals show` tells it."""


class NoAnswer(ConflictError):
    """What the run waited for did not come in time. Give run.ask() or run.signal() a default."""


class AnswerRefused(MisuseError):
    """The answer does not fit the question. Nothing was recorded; answer again."""


class AgentNotFound(NotFoundError):
    """No agent of this name is known here. Name it in Holdfast(agents=[...])."""


class NotDone(ToolError):
    """What the tool was to do outside has not happened, and will not."""


class ToolFailed(ToolError):
    """The tool raised, or its call was refused."""


class PeerFailed(ToolError):
    """The peer could not do what was asked. Its run tells more: `holdfast runs show`."""


class PeerTimedOut(PeerFailed):
    """The peer did not answer in time, and was asked to stop. Give run.peer() a longer timeout."""


class PeerCancelled(PeerFailed):
    """The peer's run, or the wait for it, was cancelled."""


class BlockFailed(ToolError):
    """A block of a workflow has failed. Its outputs, as far as there are any, can be read.

    One that `is_final` is not tried again, whatever the block's `retries` say.
    """

    def __init__(
        self, message: str = "", *, outputs: object = None, is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.outputs = outputs
        self.is_final = is_final


class WorkflowFailed(ToolError):
    """A workflow has failed. `holdfast workflows show` tells which blocks, and why."""


class WorkflowInvalid(MisuseError):
    """A workflow's definition or inputs are wrong. Nothing was started; mend what is named."""

    def __init__(self, message: str = "", *, problems: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class ContextTooSmall(MisuseError):
    """What a fresh context must know does not fit into it."""


class TurnDiverged(MisuseError):
    """The agent did not repeat a call that is on the record of its turn.

    Between checkpoints an agent must make the same calls again after a crash. Its code was changed,
    or it decided by something that is not recorded: wrap that in run.step().
    """


class RunNotFound(NotFoundError):
    """There is no run with this id. `holdfast runs list` shows those that exist."""


class CheckpointNotFound(NotFoundError):
    """There is no such checkpoint. `holdfast checkpoints list RUN` shows those that exist."""


class WaitNotFound(NotFoundError):
    """There is no wait with this id."""


class WebhookNotFound(NotFoundError):
    """There is no webhook of this name. `holdfast webhooks list` shows those that exist."""


class EffectNotFound(NotFoundError):
    """There is no effect with this key."""


class ScheduleNotFound(NotFoundError):
    """There is no schedule of this name. `holdfast schedules list` shows those that exist."""


class SignalNotFound(NotFoundError):
    """The run has received no signal with this id."""


class StoreUnavailable(UnavailableError):
    """The store could not be reached. Nothing that was acknowledged is lost; try again."""


class TransportUnavailable(UnavailableError):
    """The servers between agents did not answer. What was acknowledged is not lost; try again."""


class McpUnavailable(UnavailableError):
    """An MCP server could not be reached, or does not speak MCP. Nothing was asked of it."""


class StoreBusy(UnavailableError):
    """Another process held the write lock too long. Try again, or raise `busy_timeout_seconds`."""


class StoreFull(UnavailableError):
    """There is no room left for the store. Nothing was written; free some space and try again."""


class OutcomeUnknown(UnavailableError):
    """The store went away during a commit. It is resent unchanged when the run is used again."""


class SpoolUnusable(UnavailableError):
    """The store is away, and the local spool cannot be written. Free space; see `spool_folder`."""


class SpoolSuperseded(ConflictError):
    """The run went on elsewhere meanwhile. `holdfast spool evidence` has what was spooled."""


class SpoolCorrupted(IntegrityError):
    """A spool is not what was written. It is kept; `holdfast spool evidence` tells where."""


class ThreadBusy(ConflictError):
    """Another process works on this thread. Nothing was stored; wait until it is done."""


class CheckpointConflict(ConflictError):
    """Another process went on from the same checkpoint. Nothing of this one was stored."""


class CheckpointFinal(ConflictError):
    """The checkpoint is final: nothing of it changes any more. Create another one."""


class BodyErased(IntegrityError):
    """What the entry held was erased; only its digest is left, so that the chain stays whole."""


class CheckpointCorrupted(IntegrityError):
    """The checkpoint's stored bytes are damaged; no state was returned."""


class JournalCorrupted(IntegrityError):
    """An entry of the journal is damaged; it was not used."""


class IndexCorrupted(IntegrityError):
    """An index row is not what the journal says. `holdfast store reindex` makes the rows anew."""


class RecordInvalid(MisuseError):
    """What a checkpoint is to tell does not fit the schema. Nothing was written; see the path."""


class InvalidIdentifier(MisuseError):
    """An identifier must be 1 to 255 printable characters."""


class KeyReused(MisuseError):
    """A tool's `key=` gave one key to calls with different arguments. Nothing was called.

    Let the key depend on everything that makes two calls different operations.
    """


class InvalidSetting(MisuseError):
    """A setting has a value it cannot have."""


class InvalidConfig(MisuseError):
    """A configuration cannot be used. `holdfast config check FILE` lists what is wrong with it."""

    def __init__(self, message: str | None = None, *, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class SchemaMismatch(MisuseError):
    """The store's schema does not fit this version of Holdfast. Run `holdfast store migrate`."""


class StoreNotPermitted(MisuseError):
    """The store's file or server does not permit this. Check its owner and permissions."""


class SignatureInvalid(MisuseError):
    """A request does not show that whoever has the secret sent it just now. Refuse it."""


class StoreClosed(MisuseError):
    """The store is not open. Use it inside `async with holdfast.open(...)`."""


class WrongProcess(MisuseError):
    """A store belongs to the process and the event loop that opened it. Open another one here."""


class ValueTooLarge(MisuseError):
    """The value is larger than `max_body_bytes`. Keep it elsewhere and store where it is."""


class TypeNotAllowed(MisuseError):
    """A type that stored data may not name. If it is yours: HoldfastSaver(..., allow=[Type])."""


class UnsupportedValue(MisuseError):
    """State is data: None, bool, int, float, str, bytes, datetime, UUID, Decimal, list, dict."""
