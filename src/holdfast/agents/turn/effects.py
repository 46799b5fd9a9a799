"""Calls with consequences: store the intent before the call, and the outcome after it.

`effect_flow` decides the next step of a call; this module carries the steps out. It never guesses
an unknown outcome. One commit stores all intents of a batch, with the reply that asked for them.
Outcomes are staged as they arrive. The next commit stores them, or a separate commit in the next
iteration of the event loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from holdfast import clock, codec, faults
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tools import CallPosition, text_of
from holdfast.agents.effects import doubt
from holdfast.agents.effects import effect_flow as flow
from holdfast.agents.effects.running_calls import is_under_way, under_way
from holdfast.agents.exits.containment import carried, first_error
from holdfast.agents.exits.exit_reasons import (
    BlockExit,
    DelayExit,
    Suspend,
    end_all,
    exit_reasons_of,
    first_exit,
)
from holdfast.agents.exits.interruptions import StillRunning, finish_first
from holdfast.agents.turn.call_budget import CallBudget
from holdfast.agents.turn.calls import (
    CallOutcome,
    Flight,
    TurnCall,
    ask_verify,
    attempt,
    check_key,
    error_text,
    interrupted,
    is_being_cancelled,
    judged,
    raised,
    storable,
    type_of,
)
from holdfast.agents.turn.child_starts import not_placing_starts
from holdfast.agents.turn.memo import RecordedCall
from holdfast.agents.turn.reads import Reads
from holdfast.agents.turn.turn import Turn
from holdfast.engine import effects as engine_effects
from holdfast.engine.effects import Begun
from holdfast.errors import HoldfastError, KeyReused, NotDone
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Kind
from holdfast.kernel.runs import BlockedReason
from holdfast.telemetry import log

_ANSWERS: Final[dict[EffectStatus, Any]] = {
    EffectStatus.ISSUED: "in_flight",
    EffectStatus.UNKNOWN: "unknown",
}
_MOST_LATE: Final = 3
_LATE_PAUSE: Final = clock.MICROSECONDS
_VERIFY: Final = "holdfast.verify"
_UNKNOWN: Final = "(whether it happened is not known)"


class TurnEffects:
    """Makes the calls of one pass over a run."""

    def __init__(self, turn: Turn, spending: CallBudget) -> None:
        self._turn = turn
        self._context = turn.context
        self._held = turn.held
        self._gate = turn.gate
        self._past = turn.past
        self._spending = spending
        self._max_bytes = turn.context.settings.max_body_bytes
        self._reads = Reads(turn)
        self._flights: dict[str, Flight] = {}

    def place(self, call: TurnCall, beside: Sequence[TurnCall] = ()) -> None:
        """Give a call its key, and the recorded effect of that key, if there is one.

        If an earlier call of the batch (`beside`) has the same key, that call keeps the effect.
        Raises MisuseError for an invalid key.
        """
        if call.only_reads:
            self._reads.place(call)
            return
        past, number = (
            self._past,
            self._turn.places.number("call", call.tool.name, call.arguments.digest),
        )
        turn = self._held.version if past.is_blank else past.turn
        where = CallPosition(self._held.run.root_id, turn, call.call_id, number)
        call.key = call.tool.key_for(call.arguments, where)
        if not past.is_blank:
            call.key = past.key_for(call.tool.name, call.arguments.digest, call.key)
        if not self._turn.is_replayed or any(other.key == call.key for other in beside):
            return
        call.recorded = self._turn.memo.call(call.key)
        if call.recorded is not None:
            call.attempts = call.recorded.attempts
            call.begun = _begun_of(call.recorded)

    def displace(self, call: TurnCall) -> None:
        """Undo `place()`: release its recorded effect so that another call can claim it."""
        self._past.give_up(call.key)
        if call.recorded is not None:
            self._turn.memo.give_back(call.key, call.recorded)
            call.recorded = call.begun = None

    async def make(self, call: TurnCall) -> CallOutcome:
        """Make a placed call of the agent's own code. Returns its outcome."""
        (outcome,) = await self.carry_out([call])
        if self._turn.is_counted:
            self._turn.context_usage.count_call(is_error=outcome.error is not None)
        return outcome

    async def carry_out(self, calls: Sequence[TurnCall]) -> list[CallOutcome]:
        """Make the calls that have no recorded outcome. Returns all outcomes in order.

        Leaves the agent's code if an outcome has to be waited for, or the store fails.
        """
        if not self._past.is_blank:
            for call in calls:
                self._past.use(call.key)
        self._take_off(calls)
        try:
            try:
                with self._held.stage.joining():
                    await finish_first(self._begin(calls), undo=lambda _: self._withdraw(calls))
            except BaseException as error:
                for call in calls:
                    self._land(call, error)
                raise
            if len(calls) == 1:
                outcomes = [await self._finish(calls[0])]
            else:
                outcomes = await self._finish_all(calls)
        except Suspend as error:
            self._gate.suspend(error.way)
        except HoldfastError as error:
            self._gate.leave(error)
        return [judged(call.tool, made) for call, made in zip(calls, outcomes, strict=True)]

    async def _begin(self, calls: Sequence[TurnCall]) -> None:
        """Reserve the budget of new calls, and record the intents of those with consequences."""
        to_issue = [call for call in calls if call.is_to_be_issued]
        if self._turn.is_replayed and self._turn.memo.has_claims and not self._gate.is_concurrent:
            to_issue = await self._not_done_before(to_issue)
        reading = [call for call in calls if call.only_reads and call.seen is None]
        await self._reserve([*to_issue, *reading])
        await self._issue(to_issue)

    async def _reserve(self, calls: Sequence[TurnCall]) -> None:
        """Reserve the budget of calls that cost something."""
        priced = [call for call in calls if call.tool.policy.cost is not None]
        if priced:
            await self._spending.begin_calls(priced)

    async def _withdraw(self, calls: Sequence[TurnCall]) -> None:
        """Record that calls did not happen: they were cancelled before their tools were called."""
        for call in calls:
            begun = call.begun
            if begun is not None and call.recorded is None and begun.answer == "fresh":
                note = "it was cancelled before it was made"
                await self._settle(
                    call, flow.Settle(begun, EffectStatus.NOT_DONE, note=note, retry=True)
                )
            await self._spending.end_call(call, is_free=True)

    async def _not_done_before(self, calls: Sequence[TurnCall]) -> list[TurnCall]:
        """Return the calls whose keys are free. The others get the effect that holds their key.

        A key of an earlier turn is not in this turn's journal, so each key is looked up. Raises
        TurnDiverged if a key is free while that journal has calls that were not repeated.
        """
        new: list[TurnCall] = []
        for call in calls:
            found = await engine_effects.find(self._context, call.key)
            if found is None:
                new.append(call)
            else:
                call.begun, call.recorded = found, None
        if new:
            self._turn.check_claimed()
        return new

    def _take_off(self, calls: Sequence[TurnCall]) -> None:
        """Make each call lead its operation, or follow a call that already makes the same one."""
        for call in calls:
            if call.only_reads:
                continue
            if call.recorded is None and call.key in self._flights:
                call.leader = self._flights[call.key]
            else:
                call.flight = self._flights[call.key] = Flight(call.call_id, call.arguments.digest)

    def _land(self, call: TurnCall, error: BaseException | None = None) -> None:
        flight = call.flight
        if flight is None:
            return
        flight.end(error)
        if self._flights.get(call.key) is flight:
            del self._flights[call.key]

    async def _issue(self, calls: Sequence[TurnCall]) -> None:
        """Record the intents of the calls that the budget has room for."""
        await self._reserve([call for call in calls if call.refused is None])
        calls = [call for call in calls if call.refused is None]
        if not calls:
            return
        if any(draft.kind is Kind.EFFECT_NOT_DONE for draft in self._held.stage.drafts):
            await self._held.stage.flush()  # a key must be free before it is taken again
        self._turn.stage_before_others()
        begun = await self._held.begin_effects([call.request for call in calls])
        for call, answer in zip(calls, begun, strict=True):
            call.begun = answer
            call.recorded = None
            call.attempts += answer.answer == "fresh"
            if answer.answer != "fresh":
                await self._spending.end_call(call, is_free=True)

    async def _issue_one(self, call: TurnCall) -> None:
        with self._held.stage.joining():
            await finish_first(self._issue([call]), undo=lambda _: self._withdraw([call]))
        if call.refused is not None:
            raise Suspend(call.refused)

    async def _finish_all(self, calls: Sequence[TurnCall]) -> list[CallOutcome]:
        tasks = [asyncio.create_task(carried(self._finish(call))) for call in calls]
        errors = await end_all(tasks)
        if broken := [error for error in errors if not isinstance(error, Suspend)]:
            raise first_error(broken)
        if errors:
            raise Suspend(first_exit(exit_reasons_of(errors)))
        return [task.result() for task in tasks]

    async def _finish(self, call: TurnCall) -> CallOutcome:
        """Return the outcome of a call; an error if another operation has its key."""
        try:
            return await self._outcome_of(call)
        except KeyReused as error:
            return CallOutcome(error=str(error), cause=error)

    async def _outcome_of(self, call: TurnCall) -> CallOutcome:
        if call.refused is not None:
            refused = Suspend(call.refused)
            self._land(call, refused)
            raise refused
        if call.only_reads:
            return await self._read(call)
        if call.leader is not None:
            check_key(call, call.leader.args_digest, f"call {call.leader.call_id or 'beside it'}")
            outcome = await call.leader.follow()
            if outcome is not None:
                return outcome
            await self._lead(call)
        try:
            outcome = await self._carry_out_one(call)
            if call.flight is not None:
                call.flight.outcome = outcome
        except BaseException as error:
            self._land(call, error)
            if isinstance(error, Suspend):
                await self._spending.end_call(call, is_free=True)
            raise
        self._land(call)
        return outcome

    async def _lead(self, call: TurnCall) -> None:
        """Record this call's own intent, because the call it followed was cancelled."""
        call.leader = None
        call.flight = self._flights[call.key] = Flight(call.call_id, call.arguments.digest)
        try:
            await self._issue_one(call)
        except BaseException as error:
            self._land(call, error)
            raise

    async def _carry_out_one(self, call: TurnCall) -> CallOutcome:
        """Carry out the steps of `EffectFlow` for a call, and return its outcome."""
        begun, recorded = self._begun(call), call.recorded
        error = None
        if recorded is not None and recorded.effect.status is EffectStatus.UNKNOWN:
            error = text_of(recorded.result) or None
        is_recorded = recorded is not None
        steps = flow.EffectFlow(call.tool.policy).steps(begun, error=error, is_recorded=is_recorded)
        try:
            step = next(steps)
            while True:
                if isinstance(step, flow.CallTool):
                    answer = await self._call(call, step.begun.effect)
                elif isinstance(step, flow.Settle):
                    answer = await self._settle(call, step)
                else:
                    answer = await self._answer(call, step)
                step = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _answer(self, call: TurnCall, step: flow.EffectStep) -> Any:
        """Carry out a step that neither calls the tool nor settles. Returns the answer to it."""
        match step:
            case flow.BeginEffect():
                await self._issue_one(call)
                return self._begun(call)
            case flow.WaitForTwin(begun):
                return await self._wait_for_twin(call, begun)
            case flow.AskVerify():
                return await self._ask_verify(call, step)
            case flow.AskVerifyLater(begun, reason, error):
                seen = "; ".join(filter(None, (error, reason)))
                return self._ask_again_at(call, begun.effect, seen)
            case flow.Postpone(begun, note, until):
                until = until or doubt.over_at(begun.effect, now=self._context.now())
                raise Suspend(DelayExit(until, note))
            case flow.AskPerson(begun, error, reason):
                raise Suspend(_question(begun.effect, error, reason))
            case flow.ReplayOutcome(begun):
                return _recorded_outcome(begun, call.recorded)
            case flow.ReportUnknown(_, error):
                return CallOutcome(
                    error=f"{error or f'{call.tool.name} was interrupted'} {_UNKNOWN}"
                )
            case _:
                raise AssertionError(f"{step} is carried out elsewhere")

    def _begun(self, call: TurnCall) -> Begun:
        """Return what is known of a call. Raises KeyReused if another operation has its key."""
        begun = call.begun
        assert begun is not None, "a call was issued or is on record"
        effect = begun.effect
        if effect.args_digest != call.arguments.digest:
            check_key(call, effect.args_digest, f"effect {effect.effect_id} of run {effect.run_id}")
        return begun

    async def _read(self, call: TurnCall) -> CallOutcome:
        return call.seen or self._reads.keep(call, await self._look(call))

    async def _look(self, call: TurnCall) -> CallOutcome:
        tool = call.tool
        limit = tool.policy.limit_seconds
        key = Key(call.key, run_id=self._held.run_id, call_id=call.call_id)
        try:
            with not_placing_starts():
                result = await attempt(tool, call.arguments, key, limit_seconds=limit)
        except asyncio.CancelledError as error:
            self._spending.lose_call(call)
            if is_being_cancelled():
                raise
            return CallOutcome(error=error_text(tool, error), cause=error)
        except Exception as error:
            await self._spending.end_call(call)
            return CallOutcome(error=error_text(tool, error), cause=error)
        await self._spending.end_call(call, result=result)
        value, _ = storable(tool.name, result, max_bytes=self._max_bytes)
        return CallOutcome(value)

    async def _call(self, call: TurnCall, effect: Effect) -> flow.CallAnswer:
        """Call the tool, and return how it ended; TooLate if too little time remains to call it."""
        tool, now = call.tool, self._context.now()
        half = (effect.limit_at - effect.issued_at) // 2
        if tool.policy.effect == "mutate" and now > effect.issued_at + half:
            return self._too_late(call, now)
        if tool.policy.cost is not None:
            await self._spending.begin_calls([call])
            if call.refused is not None:
                raise Suspend(call.refused)
        try:
            return flow.Returned(await self._invoke(call, effect))
        except asyncio.CancelledError as error:
            if not is_being_cancelled():
                return raised(tool, error)  # the tool raised it itself
            if isinstance(error, StillRunning):
                raise  # its thread still runs: its outcome is open until its time limit is over
            return interrupted(tool, error)
        except (Exception, *tool.policy.not_done_on) as error:
            return raised(tool, error)

    def _too_late(self, call: TurnCall, now: int) -> flow.TooLate:
        if call.attempts > _MOST_LATE:
            note = f"there is never time enough to begin {call.tool.name}: raise its limit_seconds"
            return flow.TooLate(note, now + _LATE_PAUSE)
        return flow.TooLate("the worker stood still too long before the call, and did not make it")

    async def _invoke(self, call: TurnCall, effect: Effect) -> Any:
        tool = call.tool
        key = Key(effect.key, run_id=self._held.run_id, call_id=call.call_id)
        left = (effect.limit_at - self._context.now()) / clock.MICROSECONDS
        if tool.policy.effect == "idempotent":
            left = tool.policy.limit_seconds
        self._turn.called_effects.add(effect.effect_id)
        faults.point("tool.before_call")
        try:
            with under_way(effect.effect_id), not_placing_starts():
                result = await attempt(tool, call.arguments, key, limit_seconds=left)
        except Exception as error:
            is_free = isinstance(error, (NotDone, *tool.policy.not_done_on))
            await self._spending.end_call(call, is_free=is_free)
            raise
        faults.point("tool.after_call")
        return result

    async def _wait_for_twin(self, call: TurnCall, begun: Begun) -> Begun | None:
        """Wait for the same operation, begun before. Returns None if its key is free."""
        if begun.answer != "in_flight":
            return begun
        found = await self._twin(call, begun.effect)
        if found is None:
            return None
        if found.answer == "in_flight":
            return begun
        call.begun = found
        return self._begun(call)

    async def _twin(self, call: TurnCall, effect: Effect) -> Begun | None:
        """Look up the same operation, begun before. If another run makes it, wait for its end."""
        if effect.run_id == self._held.run_id:
            await self._held.stage.flush()  # its outcome may be staged, and not stored yet
            return await engine_effects.find(self._context, call.key)
        async for _ in self._context.changes(f"run:{effect.run_id}"):
            found = await engine_effects.find(self._context, call.key)
            if found is None or found.answer != "in_flight":
                return found
        return None

    async def _ask_verify(
        self, call: TurnCall, asked: flow.AskVerify
    ) -> flow.VerifyAnswer | flow.Interrupted:
        effect, is_over = asked.begun.effect, asked.error is not None or asked.begun.is_over
        faults.point("tool.before_verify")
        try:
            verdict = await ask_verify(call.tool, call.arguments, effect.key)
        except asyncio.CancelledError as error:
            return flow.Interrupted(error)
        is_over = is_over or effect.limit_at <= self._context.now()
        is_over = is_over and not is_under_way(effect.effect_id)
        follows = doubt.judge(
            verdict, call.tool.policy, error=asked.error, is_over=is_over, attempts=call.attempts
        )
        if asked.cause is not None and not isinstance(follows, doubt.AskAgain):
            # Else one line says that, and all that a person needs.
            log.warning("%s raised, and may have happened", call.tool.name, exc_info=asked.cause)
        return flow.VerifyAnswer(verdict, is_over, call.attempts)

    def _ask_again_at(self, call: TurnCall, effect: Effect, reason: str) -> int | None:
        """Return when to ask `verify` again; None if its `verify_seconds` have passed.

        The time of its first failure is recorded, so that a crash does not restart the period.
        """
        now, seconds = self._context.now(), call.tool.policy.verify_seconds
        recorded = self._turn.memo.step(_VERIFY, effect.effect_id.bytes)
        if recorded is None:
            self._turn.stage_step(_VERIFY, now, args_digest=effect.effect_id.bytes)
            then = f"verify is asked again for {seconds:g} s"
            doubt.log_cannot_tell(self._held.run_id, effect, reason, then=then)
        since: int = now if recorded is None else codec.decode(recorded.body)
        return doubt.ask_again_at(call.tool.policy, since=since, now=now)

    async def _settle(self, call: TurnCall, step: flow.Settle) -> CallOutcome:
        """Record an outcome with this run's next commit, or in the other run that made the call."""
        effect, result, note, body = step.begun.effect, step.result, step.note, b""
        is_completed = step.status is EffectStatus.COMPLETED
        if is_completed:
            result, body = storable(effect.tool, result, max_bytes=self._max_bytes)
        elif result is not None:
            name = f"result of {effect.tool}"
            body = codec.encode(result, name=name, limit=self._max_bytes)
        if step.error is not None:
            note = type_of(step.error)
        if effect.run_id == self._held.run_id:
            self._held.stage.outcome(effect, step.status, body=body, note=note, retry=step.retry)
        else:
            await engine_effects.Effects(self._context).settle(
                effect.effect_id, step.status, result=result, note=note, retry=step.retry
            )
        if not is_completed:
            return CallOutcome(error=result, cause=step.error)
        if call.ticket is not None and not step.is_interrupted:
            await self._spending.end_call(call, result=step.result)
        return CallOutcome(result)


def _begun_of(recorded: RecordedCall) -> Begun:
    answer = _ANSWERS.get(recorded.effect.status, "done")
    return Begun(answer, recorded.effect, recorded.result)


def _recorded_outcome(begun: Begun, recorded: RecordedCall | None) -> CallOutcome:
    if recorded is None:
        return CallOutcome(begun.result, replay_of=begun.effect.call_id)
    if recorded.effect.status is EffectStatus.COMPLETED:
        return CallOutcome(recorded.result)
    return CallOutcome(error=text_of(recorded.result) or f"{recorded.effect.tool} did not happen")


def _question(effect: Effect, error: str | None, reason: str) -> BlockExit:
    """Return an exit that blocks the run until a person reports the outcome of an effect."""
    seen = "; ".join(filter(None, (error or "its worker was lost", reason)))
    note = (
        f"{seen}: nobody knows whether {effect.tool} happened. Find out, then "
        f"{doubt.command_for(effect)}"
    )
    return BlockExit(BlockedReason.UNKNOWN_EFFECT, note, (effect.effect_id,))
