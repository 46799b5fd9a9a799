"""One call of a tool: its request, its outcome, and how the tool is tried."""

import asyncio
import hashlib
from typing import Any, Final

import msgspec

from holdfast import codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.tools import Arguments, Tool, text_of
from holdfast.agents.effects.doubt import Answer, CannotTell
from holdfast.agents.effects.effect_flow import Interrupted, Raised, Returned
from holdfast.agents.exits.exit_reasons import ExitReason, Suspend
from holdfast.agents.exits.interruptions import EndedLate
from holdfast.agents.turn.memo import RecordedCall
from holdfast.engine.budgets.purse import Ticket
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.errors import KeyReused, MisuseError, NotDone, UnsupportedValue
from holdfast.telemetry import log

_LONGEST_TEXT: Final = 100_000


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call: a value or an error text; `replay_of` names an earlier call."""

    value: Any = None
    error: str | None = None
    replay_of: str | None = None
    cause: BaseException | None = None


class Flight:
    """An operation under way in this pass, for calls of the same operation to follow."""

    def __init__(self, call_id: str, args_digest: bytes) -> None:
        self.call_id = call_id
        self.args_digest = args_digest
        self.ended = asyncio.Event()
        self.outcome: CallOutcome | None = None
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        self.ended.set()

    async def follow(self) -> CallOutcome | None:
        """Return its outcome as a replay; None if it was given up and must be done anew."""
        await self.ended.wait()
        if isinstance(self.error, Suspend):
            raise Suspend(self.error.way)
        if isinstance(self.error, asyncio.CancelledError):
            return None
        if self.error is not None:
            raise self.error
        if self.outcome is None or self.outcome.error is not None:
            return self.outcome
        replay_of = self.outcome.replay_of or self.call_id
        return msgspec.structs.replace(self.outcome, replay_of=replay_of)


class TurnCall(msgspec.Struct):
    """One call of a tool, in any state."""

    tool: Tool[..., Any]
    arguments: Arguments
    call_id: str = ""
    key: str = ""
    recorded: RecordedCall | None = None
    begun: Begun | None = None
    attempts: int = 0
    flight: Flight | None = None
    leader: Flight | None = None
    approval: str = ""
    place: bytes = b""
    seen: CallOutcome | None = None
    ticket: Ticket | None = None
    refused: ExitReason | None = None

    @property
    def only_reads(self) -> bool:
        return self.tool.policy.effect == "read"

    @property
    def is_on_record(self) -> bool:
        return self.recorded is not None or self.seen is not None

    @property
    def is_to_be_issued(self) -> bool:
        if self.only_reads or self.leader is not None:
            return False
        return self.recorded is None or self.recorded.is_to_be_retried

    @property
    def request(self) -> EffectRequest:
        return EffectRequest(
            tool=self.tool.name,
            args=self.arguments.given,
            args_digest=self.arguments.digest,
            call_id=self.call_id,
            key=self.key,
            limit_seconds=self.tool.policy.limit_seconds,
            approval=self.approval,
        )


def check_key(call: TurnCall, digest: bytes, holder: str) -> None:
    """Raise KeyReused if the tool's own key is used by a call with other arguments already."""
    if callable(call.tool.policy.key) and digest != call.arguments.digest:
        raise KeyReused(
            f"{call.tool.name} was not called: its key {call.key!r} is used by {holder} with other "
            f"arguments (digest {digest.hex()[:16]}, now {call.arguments.digest.hex()[:16]}). Let "
            "key= depend on everything that makes two calls different operations"
        )


def judged(tool: Tool[..., Any], outcome: CallOutcome) -> CallOutcome:
    """An outcome, as an error if the tool says so in its result."""
    is_failure = tool.policy.is_failure
    if is_failure is None or outcome.error is not None or not is_failure(outcome.value):
        return outcome
    again = f"[idempotent replay of {outcome.replay_of}]: " if outcome.replay_of else ""
    return CallOutcome(error=f"{again}{text_of(outcome.value)}")


async def attempt(
    tool: Tool[..., Any], arguments: Arguments, key: str, *, limit_seconds: float
) -> Any:
    """Call a tool within a limit; one that is safe to repeat is tried again as often as it says."""
    retries = 0 if tool.policy.effect == "mutate" else tool.policy.retries
    for tried in range(retries + 1):
        try:
            if tool.is_blocking:
                return await tool.invoke(arguments, key)
            async with asyncio.timeout(limit_seconds):
                return await tool.invoke(arguments, key)
        except (NotDone, *tool.policy.not_done_on):
            raise
        except TimeoutError as error:
            if tried == retries:
                limit = tool.policy.limit_seconds
                raise TimeoutError(str(error) or f"it took over {limit:g} s") from error
        except Exception:
            if tried == retries:
                raise
        await asyncio.sleep(min(5.0, 0.1 * 2**tried))
    raise AssertionError("the last try returns or raises")


async def ask_verify(tool: Tool[..., Any], arguments: Arguments, key: str) -> Answer:
    """Ask the tool's `verify`, within the tool's time limit; None if it has none."""
    limit = tool.policy.limit_seconds
    try:
        async with asyncio.timeout(limit):
            return await tool.verify(arguments, key)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return CannotTell("verify was cancelled")
    except TimeoutError:
        return CannotTell(f"verify did not answer within {limit:g} s")
    except Exception as error:
        may_pass = not isinstance(error, MisuseError)
        return CannotTell(f"verify raised {type(error).__name__}: {error}", may_pass)


def interrupted(tool: Tool[..., Any], cancelled: asyncio.CancelledError) -> Interrupted:
    """What was seen of a call that was cancelled: a thread may have ended it all the same."""
    late = cancelled.__cause__
    if not isinstance(late, EndedLate):
        return Interrupted(cancelled)
    if late.error is None:
        return Interrupted(cancelled, Returned(late.result))
    return Interrupted(cancelled, raised(tool, late.error))


def raised(tool: Tool[..., Any], error: BaseException) -> Raised:
    """What was seen of a call that raised."""
    return Raised(error, error_text(tool, error))


def is_being_cancelled() -> bool:
    """Whether somebody wants the present task to end; else a CancelledError is its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def describe(error: BaseException) -> str:
    """Return an exception as one text, even if its `__str__` raises."""
    try:
        return storable_text(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__


def details_of(error: BaseException) -> dict[str, Any]:
    """Return the `failure_details` of an exception, for the record of the run it ends.

    They are plain data of a moderate size; anything else is left out, for the run must end.
    """
    try:
        details = dict(getattr(error, "failure_details", {}))
        return (
            type_conversion.plain(details) if type_conversion.size(details) <= _LONGEST_TEXT else {}
        )
    except Exception:
        return {}


def error_text(tool: Tool[..., Any], error: BaseException) -> str:
    """Return the text that a model gets for an exception."""
    return f"{tool.name} raised {describe(error)}"


def type_of(error: BaseException) -> str:
    return type(error).__name__[:200]


def storable(tool: str, result: object, *, max_bytes: int) -> tuple[Any, bytes]:
    """Return a result as it comes back from the record, and its bytes; those of None are none.

    A text replaces what cannot be stored: that something happened must be on record, whatever it
    returned.
    """
    if result is None:
        return None, b""
    try:
        data = codec.encode(result, name="result")
        if len(data) <= max_bytes:
            return codec.decode(data), data
        remark = f"{len(data):,} bytes, at most {max_bytes:,} are stored (max_body_bytes)"
    except UnsupportedValue as error:
        remark = str(error)
    log.warning("%s returned what cannot be stored, its text is kept: %s", tool, remark)
    text = storable_text(str(result))
    text = text if len(text) < max_bytes // 4 else f"(a result of {remark})"
    return text, codec.encode(text)


def storable_text(text: str) -> str:
    """A text without what no store takes, and not too long."""
    clean = text.replace("\0", "�").encode("utf-8", "replace").decode()
    return clean if len(clean) <= _LONGEST_TEXT else f"{clean[:_LONGEST_TEXT]} … (cut)"


def usable_id(call_id: str) -> str:
    """A call's id as it can be stored; models may give any string."""
    if call_id and (len(call_id) > names.MAX_LENGTH or not call_id.isprintable()):
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()
    return call_id
