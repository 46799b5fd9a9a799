"""One pass of an agent over a run that this worker holds: enter, and do what its end asks for.

Whatever happens, the run is left whole: ended, waiting, blocked, given back, or lost to somebody
else; and what a tool is known to have done is on record, even if the run is not held any more.
"""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID
from weakref import ref

import msgspec

from holdfast import clock, faults, names
from holdfast.agents.definitions.agent import Agent, Agents
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy
from holdfast.agents.definitions.session_input import is_session
from holdfast.agents.definitions.versions import DefinitionChange, InFlight, judge
from holdfast.agents.exits.containment import CancelledItself, is_exit, run_apart
from holdfast.agents.exits.exit_reasons import (
    BlockExit,
    DelayExit,
    ExitReason,
    HandBackExit,
    HandedOverExit,
    Suspend,
    WaitExit,
)
from holdfast.agents.exits.unawaited import RunCall, close_unawaited, not_awaited
from holdfast.agents.handoff.protocol import HandoffProtocol
from holdfast.agents.run import Run, leave_if_due
from holdfast.agents.turn.calls import describe, details_of, is_being_cancelled, storable_text
from holdfast.agents.turn.child_starts import CURRENT_TURN
from holdfast.agents.turn.memo import Memo
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.views import UNSET
from holdfast.engine import effects as engine_effects
from holdfast.engine.budgets import budgets as engine_budgets
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.failed_leases import end_failed_lease
from holdfast.engine.maintenance import recoveries, replayed_effects
from holdfast.engine.maintenance.replayed_effects import PreparedPast
from holdfast.engine.reading import turns
from holdfast.engine.reading.proved_budgets import get_account
from holdfast.engine.waits import WaitSpec
from holdfast.engine.writing.outages import retry_while_unavailable
from holdfast.errors import (
    AgentNotFound,
    ConflictError,
    Fenced,
    HoldfastError,
    IntegrityError,
    MisuseError,
    OutcomeUnknown,
    RunEnded,
    TurnDiverged,
    UnavailableError,
    UnsupportedValue,
)
from holdfast.kernel.effects import SETTLED, EffectSettled
from holdfast.kernel.journal import Entry
from holdfast.kernel.recoveries import Failure
from holdfast.kernel.runs import BlockedReason, RunRow, RunStatus
from holdfast.kernel.signals import WAIT_KIND as SIGNAL
from holdfast.kernel.versions import Versions
from holdfast.telemetry import log

CLOSING_SECONDS: Final = 5.0
AFTER_ERROR_SECONDS: Final = 1.0
INTERRUPTED: Final = "the worker was stopped in the middle of a turn"


class Ending(msgspec.Struct, frozen=True):
    """How a pass ended; `error` is what the agent raised, or what took the run from here.

    `run` is the run if it has completed it, and `result` the body of its result.
    """

    is_over: bool
    error: BaseException | None = None
    run: RunRow | None = None
    result: bytes = b""


class Pass:
    """One pass. `hand_back` asks it to end at the next boundary of a turn.

    `given` is the input of a run that is not stored yet, `arguments` are those of the agent's
    function if they are known.
    """

    def __init__(
        self,
        context: Context,
        agents: Agents,
        held: LeasedRun,
        *,
        abandon: Callable[[LeasedRun], None],
        given: Any = UNSET,
        arguments: dict[str, Any] | None = None,
        handoffs: HandoffProtocol | None = None,
    ) -> None:
        self.context = context
        self._handoffs = handoffs
        self._abandon = abandon
        self._agents = agents
        self.held = held
        self._given = given
        self._arguments = arguments
        self._turn: Turn | None = None
        self._in_flight: InFlight | None = None
        self._known_versions: Versions | None = None
        self._continued: PreparedPast | None = None
        self.leased = held.run
        """The run as it was when the pass began."""
        self.began_at = asyncio.get_running_loop().time()
        self._began_with = held.version
        self.stop_note = ""
        self.is_interrupted = False
        """Whether this task is cancelled because the run is not its own any more."""
        self.is_leaving = False
        """Whether the run is being given up: nobody interrupts that, it says what tools did."""

    @property
    def lease_seq(self) -> int:
        """The lease this pass has; 0 when it has ended the run, or left it."""
        return self.held.run.lease_seq

    @property
    def run_id(self) -> str:
        return self.held.run_id

    @property
    def has_progress(self) -> bool:
        """Whether it has stored a new version, or given the run up."""
        return self.held.version > self._began_with or not self.lease_seq

    def hand_back(self, note: str) -> None:
        """Leave the run to another worker as soon as its turn has ended."""
        self.stop_note = note
        if self._turn is not None:
            self._turn.stop_note = note

    async def play(self) -> Ending:
        """Advance the run as far as it goes here."""
        try:
            return await self._play_or_give_up()
        except asyncio.CancelledError:
            self.is_leaving = True
            await _within(self._close(INTERRUPTED), CLOSING_SECONDS)
            task = asyncio.current_task()
            if task is None or not self.is_interrupted or task.uncancel():
                raise
            log.info("run %s was cancelled or taken by others, and is left", self.run_id)
            return Ending(False)
        except BaseException as error:
            self.is_leaving = True
            if isinstance(error, Exception):
                await self._close_failed(error)
            else:
                await self._close(f"its agent broke off: {describe(error)}", error)
            raise

    async def _play_or_give_up(self) -> Ending:
        """Finish giving up even if cancelled meanwhile: it reports what was done."""
        try:
            return await self._play()
        except HoldfastError as error:
            self.is_leaving = True
            giving_up = asyncio.ensure_future(self._give_up(error))
            try:
                return await asyncio.shield(giving_up)
            except asyncio.CancelledError:
                await asyncio.wait([giving_up], timeout=CLOSING_SECONDS)
                raise

    async def _play(self) -> Ending:
        held = self.held
        try:
            agent = self._agents.get(held.run.agent)
        except AgentNotFound as error:
            await held.block(BlockedReason.NO_AGENT, note=str(error))
            return Ending(False, error)
        memo, given = await self._prepare(agent)
        try:
            if self._arguments is None and is_session(given):
                return await self.converse(agent, memo)
            return await self._enter(agent, memo, given)
        except Suspend as suspended:
            await self.leave(suspended.way)
            return Ending(False)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            raised = CancelledItself(f"code of agent {agent.name} or its types was cancelled")
            return await self._broke(agent, raised)
        except BaseException as error:
            if not is_exit(error):
                raise
            return await self._broke(agent, error)

    async def _prepare(self, agent: Agent[..., Any]) -> tuple[Memo, Any]:
        """Read what this turn has recorded, and the input of the run."""
        held = self.held
        entries, held.entries = held.entries, None
        if held.run.handoff and self._handoffs is not None:
            await self._handoffs.take(held)
            entries = None
        if held.is_new:
            memo = Memo()
        else:
            if entries is None:
                entries = await turns.entries_since_checkpoint(self.context, held.run_id)
            memo = await self._read_turn(agent, entries)
        if held.version == 0 and held.run.forked_from:
            self._continued = await replayed_effects.continued(self.context, held.run)
        if agent.rules.budget is not None:
            note = f"what agent {agent.name} gives its runs"
            await held.purse.set_first(agent.rules.budget.limits, note=note)
        given = self._given
        if given is UNSET and self._arguments is None:
            given = await turns.input_of(self.context, held.run_id, entries or ())
        return memo, given

    async def _read_turn(self, agent: Agent[..., Any], entries: Sequence[Entry]) -> Memo:
        """Return the memo of the entries, and settle what earlier leases have left reserved."""
        held = self.held
        self._in_flight = InFlight(entries)
        self._known_versions = self._in_flight.recorded(held)
        memo = Memo(entries)
        held.purse.know_journal(entries)
        has_turn = await held.purse.settle_lost(
            memo.paid, agent=agent.name, version=held.version + 1
        )
        memo.has_turn = memo.has_turn or has_turn
        return memo

    async def converse(self, agent: Agent[..., Any], memo: Memo) -> Ending:
        """Let the agent answer the messages of a session."""
        raise NotImplementedError

    async def _enter(self, agent: Agent[..., Any], memo: Memo, given: object) -> Ending:
        """Let the agent work on its input, and end the run with what it returns."""
        turn, arguments = self.begin(agent, memo), self._arguments
        try:
            if arguments is None:
                about = self.held.run
                from_other_agent = about.contexts > 1 or bool(about.forked_from)
                arguments = agent.arguments_of(given, from_other_agent=from_other_agent)
        except UnsupportedValue as error:
            raised = _raised_by_type(error)
            if raised is None or isinstance(raised, ValueError):
                return await self._fail(error, trace="")
            return await self._broke(agent, raised)
        try:
            result = await run_agent(agent, turn, arguments)
        except Suspend as suspended:
            await self.leave(suspended.way)
            return Ending(False)
        except HoldfastError as error:
            # A commit of unknown outcome is not the agent's fault: it is settled here.
            is_of_store = isinstance(error, OutcomeUnknown) and not self.held.stage.is_settled
            if turn.gate.leaving is error or is_of_store:
                raise
            return await self._broke(agent, error)
        except Exception as error:
            return await self._broke(agent, error)
        turn.check_claimed()
        if turn.leaves_no_trace:
            self.held.discard()
            self.held.stage.drop()
        return await self._end(agent, result)

    async def _end(self, agent: Agent[..., Any], result: object) -> Ending:
        try:
            if self.context.may_wait_for_store:
                await retry_while_unavailable(self.context, lambda: self._complete(result))
            else:
                await self._complete(result)
        except HoldfastError as error:
            if isinstance(error, ConflictError | UnavailableError):
                raise
            if (raised := _raised_by_type(error)) is not None:
                return await self._broke(agent, raised)
            return await self._fail(error)
        return Ending(True, run=self.held.run, result=self.held.result)

    async def _complete(self, result: object) -> None:
        """End the run, unless that is what was stored by a commit nobody saw the answer of."""
        held = self.held
        if not held.is_settled:
            await held.stage.settle()
        if held.run.status is RunStatus.RUNNING:
            await held.complete(result, save=True)

    def begin(self, agent: Agent[..., Any], memo: Memo) -> Turn:
        """Begin a turn of the agent; raises Suspend if a change of the agent forbids it."""
        known, now = self._known_versions, agent.rules.versions
        if known is not None and known != now:
            change = DefinitionChange(agent.name, self.run_id, known, now)
            judge(change, agent.rules.on_change, self._in_flight or InFlight())
        self._known_versions = now
        turn = Turn(
            self.context,
            self.held,
            agent.rules,
            memo,
            known=known,
            continued=self._continued,
            handoffs=self._handoffs,
        )
        turn.stop_note = self.stop_note
        self._turn = turn
        return turn

    async def leave(self, way: ExitReason) -> None:
        """Do what leaving the agent's code asks for; its unsaved changes are forgotten."""
        held = self.held
        if isinstance(way, HandedOverExit):
            return
        if self._turn is not None:
            self._turn.keep_reads()
        await self._forget_edits()
        match way:
            case BlockExit():
                await self._block(way)
            case DelayExit(until, note, specs):
                await self._open(specs)
                seconds = max(0, until - self.context.now()) / clock.MICROSECONDS
                await held.release(delay_seconds=seconds, note=note)
            case HandBackExit(note):
                await held.release(note=note)
            case WaitExit():
                await self._leave_to(way)

    async def _leave_to(self, way: WaitExit) -> None:
        """Suspend the run; one whose wait has ended meanwhile is ready for the next pass."""
        held = self.held
        if self._turn is not None:
            self._turn.stage_before_others()
        if way.groups:
            await self._open(way.specs)
            is_left = await held.suspend(way.groups[0])
        else:
            is_left = await held.inbox.leave_to(way.specs)
        if not is_left:
            await held.release(note="what it was to wait for has come")

    async def _open(self, specs: Sequence[WaitSpec]) -> None:
        """Open waits though the run is left for another reason: answers may come meanwhile."""
        # A signal may have come already: that is looked at when the run comes here again.
        more = [spec for spec in specs if spec.kind != SIGNAL]
        if more:
            if self._turn is not None:
                self._turn.stage_before_others()
            await self.held.open_waits(more)

    async def _forget_edits(self) -> None:
        """Forget changes since the last checkpoint: they are repeated when the run resumes."""
        await self.held.stage.settle()
        self.held.discard()

    async def _block(self, way: BlockExit) -> None:
        """Block the run, unless somebody settles or raises just now what it is blocked for."""
        if await self._is_settled(way):
            await self.held.release(note="what it was to be blocked for is settled")
            return
        await self._open(way.specs)
        await self.held.block(way.reason, note=way.note[: names.MAX_TEXT])
        if await self._is_settled(way):
            await engine_effects.unblock(self.context, self.run_id)
            await engine_budgets.unblock(self.context, self.run_id)

    async def _is_settled(self, way: BlockExit) -> bool:
        return await self._are_settled(way.effect_ids) or await self._are_raised(way.budgets)

    async def _are_raised(self, known: Sequence[tuple[str, int]]) -> bool:
        for run_id, set_seq in known:
            account = await get_account(self.context, run_id)
            if account is not None and account.set_seq != set_seq:
                return True
        return False

    async def _are_settled(self, effect_ids: Sequence[UUID]) -> bool:
        found = [await self.context.store.effects.get(effect_id) for effect_id in effect_ids]
        return bool(found) and all(effect is None or effect.status in SETTLED for effect in found)

    async def _broke(self, agent: Agent[..., Any], error: BaseException) -> Ending:
        """Fail the run because its agent raised, unless its policy lets it be tried again.

        An exit says nothing about the run: it is tried again and then blocked under any policy.
        Without a policy, so is a run whose code met an unknown outcome of something else.
        """
        policy = agent.rules.recovery
        if policy is None and (is_exit(error) or isinstance(error, OutcomeUnknown)):
            policy = RecoveryPolicy()
        cause = None if policy is None else policy.cause_of(error)
        if policy is None or cause is None:
            return await self._fail(error)
        await self._forget_edits()
        before = self.leased.attempts - self.leased.lost
        attempts = 1 if self.held.version > self._began_with else before + 1
        failure = Failure(cause, storable_text(describe(error))[:1000], attempts)
        is_tried_again = await recoveries.give_up(
            self.context,
            self.held,
            failure,
            tries=policy.tries,
            backoff_seconds=policy.backoff_seconds,
        )
        if not is_tried_again:
            log.error("run %s is blocked, its agent fails: %s", self.run_id, failure.note)
        return Ending(False, error)

    async def _fail(self, error: BaseException, *, trace: str | None = None) -> Ending:
        await self._forget_edits()
        trace_text = _format_traceback(error) if trace is None else trace
        details = details_of(error) | {"traceback": trace_text}
        await self.held.fail(describe(error)[: names.MAX_TEXT], details=details)
        return Ending(True, error)

    async def _give_up(self, error: HoldfastError) -> Ending:
        """Leave a run that cannot be advanced here, so that it is not tried again at once."""
        try:
            if isinstance(error, TurnDiverged):
                await self._forget_edits()
                await self.held.block(BlockedReason.BREAKER, note=str(error)[: names.MAX_TEXT])
            elif isinstance(error, IntegrityError):
                await recoveries.mend_or_block(self.context, self.run_id, error)
            elif isinstance(error, MisuseError):
                return await self._fail(error)  # it would be the same again
            else:
                await self._close(describe(error), error)
        except HoldfastError as worse:
            log.warning("run %s could not be left: %s", self.run_id, worse)
            self._abandon(self.held)
        return Ending(False, error)

    async def _close(self, note: str, error: BaseException | None = None) -> None:
        """Give the run back if it is still held, and report what its tools have done."""
        try:
            await self._report_calls()
            is_gone = self.is_interrupted or isinstance(error, Fenced | RunEnded)
            if not is_gone and self.held.run.status is RunStatus.RUNNING:
                await self._forget_edits()
                delay = AFTER_ERROR_SECONDS if error is not None else 0.0
                note = storable_text(note)[: names.MAX_TEXT]
                await self.held.release(delay_seconds=delay, note=note)
        except HoldfastError as worse:
            log.warning("run %s could not be given back yet: %s", self.run_id, worse)
            self._abandon(self.held)

    async def _close_failed(self, error: Exception) -> None:
        """Count an unexpected error, which is not the agent's, as a failure of the run."""
        leased = self.held.run
        try:
            await self._report_calls()
        except Exception as worse:
            log.warning("run %s: what its tools did is not reported: %s", self.run_id, worse)
        try:
            if not self.is_interrupted:
                note = storable_text(f"its pass failed: {describe(error)}")
                await end_failed_lease(self.context, leased, note)
        except Exception as worse:
            log.warning("run %s could not be given back yet: %s", self.run_id, worse)
            self._abandon(self.held)

    async def _report_calls(self) -> None:
        """Report what the tools of this pass have done, as far as that is not stored."""
        drafts = await self.held.stage.close()
        for draft in drafts:
            if isinstance(draft.facts, EffectSettled) and not draft.facts.retry:
                await engine_effects.report(self.context, self.run_id, draft)
        if self._turn is not None:
            called = self._turn.called_effects
            await engine_effects.take_back(self.context, self.held.run, called)


async def run_agent(agent: Agent[..., Any], turn: Turn, arguments: dict[str, Any]) -> Any:
    """Run the agent. Raises what it is left by even if its code swallowed that.

    Its code has a task of its own: if it cancels that, it fails, and its pass goes on. A pass that
    is cancelled cancels it.
    """
    try:
        name = f"holdfast agent of {turn.held.run_id}"
        result = await run_apart(_call, agent, turn, arguments, name=name)
    except CancelledItself:
        if turn.gate.leaving is not None:
            turn.gate.check()
        raise CancelledItself(
            f"agent {agent.name} cancelled its own task, or a task that it started did"
        ) from None
    finally:
        forgotten = close_unawaited(turn.unawaited)
    if inspect.isawaitable(result):
        raise _not_awaited(agent, result)
    if forgotten:
        raise not_awaited(forgotten)
    return result


async def _call(agent: Agent[..., Any], turn: Turn, arguments: dict[str, Any]) -> Any:
    gate = turn.gate
    gate.open()
    CURRENT_TURN.set(ref(turn))
    try:
        run = Run(turn)
        if run.version or turn.held.run.wish or turn.rules.handoff is not None:
            await _resume(run)
        if turn.clock is None:
            result = await agent.function(run, **arguments)
        else:
            async with turn.clock.running():
                result = await agent.function(run, **arguments)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        if gate.leaving is None:
            raise RuntimeError(f"{agent.name} awaited something that was cancelled") from error
    except BaseException:
        if gate.leaving is None:
            raise
    else:
        if gate.leaving is None:
            return result
    finally:
        gate.close()
    gate.check()
    raise AssertionError("a gate that is left raises")


async def _resume(run: Run) -> None:
    """Leave the run to a fresh context if there is a reason, else let this one begin."""
    await leave_if_due(run)
    if run.is_fresh and run.continuation is not None:
        faults.point("handoff.resumed")


def _not_awaited(agent: Agent[..., Any], result: object) -> UnsupportedValue:
    """Return the error for an agent that returned no result because it forgot an `await`."""
    kind = type(result).__name__
    name = getattr(result, "__qualname__", kind)
    if isinstance(result, RunCall):
        kind, name = "coroutine", result.name
    elif inspect.iscoroutine(result):
        result.close()
    return UnsupportedValue(
        f"agent {agent.name} returned a {kind} ({name}) that was never awaited: "
        "write `return await ...`"
    )


def _raised_by_type(error: HoldfastError) -> BaseException | None:
    """Return what code of a value's type raised while the value was converted."""
    return error.__cause__ if isinstance(error, UnsupportedValue) else None


def _format_traceback(error: BaseException) -> str:
    try:
        return storable_text("".join(traceback.format_exception(error))[-20_000:])
    except Exception:
        return "(its traceback cannot be formatted)"


async def _within(closing: Any, seconds: float) -> None:
    """Finish something even though the present task is being cancelled."""
    task = asyncio.ensure_future(closing)
    await asyncio.wait([task], timeout=seconds)
