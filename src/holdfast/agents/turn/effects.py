"""Calls with consequences: intent on record before, outcome after, doubt never decided by guessing.

    issued ─▶ the tool runs ─▶ completed | not_done | unknown ─▶ verify ─▶ ask | fail | retry

All intents of one batch are one commit, together with the reply that asked for them; outcomes are
staged as they come, and stored with the next commit or at the next turn of the event loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from holdfast import clock, codec, faults
from holdfast.agents.definitions.takes import Key
from holdfast.agents.definitions.tools import Place, text_of
from holdfast.agents.exits.containing import carried, first_error
from holdfast.agents.exits.interruptions import EndedLate, StillRunning, finish_first
from holdfast.agents.exits.leaving import Block, Delay, Suspend, end_all, first_of, ways_of
from holdfast.agents.turn import doubt
from holdfast.agents.turn.calls import (
    Call,
    Flight,
    Outcome,
    ask_verify,
    attempt,
    check_key,
    error_text,
    is_being_cancelled,
    storable,
    type_of,
)
from holdfast.agents.turn.doubt import Adopt, AskAgain, DidNot, TooEarly, TryAgain, Undecided
from holdfast.agents.turn.memo import RecordedCall
from holdfast.agents.turn.reads import Reads
from holdfast.agents.turn.spending import Spending
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.under_way import is_under_way, under_way
from holdfast.engine import effects as engine_effects
from holdfast.engine.effects import Begun
from holdfast.errors import KeyReused, NotDone
from holdfast.kernel.effects import SETTLED, Effect, Status
from holdfast.kernel.journal import Kind
from holdfast.kernel.runs import BlockedReason
from holdfast.telemetry import log

_ANSWERS: Final[dict[Status, Any]] = {Status.ISSUED: "in_flight", Status.UNKNOWN: "unknown"}
_MOST_LATE: Final = 3
_LATE_PAUSE: Final = clock.MICROSECONDS
_VERIFY: Final = "holdfast.verify"
_UNKNOWN: Final = "(whether it happened is not known)"


class Effects:
    """The calls of one pass over a run."""

    def __init__(self, turn: Turn, spending: Spending) -> None:
        self._turn = turn
        self._context = turn.context
        self._held = turn.held
        self._gate = turn.gate
        self._past = turn.past
        self._spending = spending
        self._reads = Reads(turn)
        self._flights: dict[str, Flight] = {}

    def place(self, call: Call, beside: Sequence[Call] = ()) -> None:
        """Give a call its key, and what is on record of it; raises MisuseError for a bad key.

        Of the calls beside it in a batch, the first with a key stands for all.
        """
        if call.only_reads:
            self._reads.place(call)
            return
        number = self._turn.places.number("call", call.tool.name, call.arguments.digest)
        where = Place(self._held.run.root_id, self._past.turn, call.call_id, number)
        own_key = call.tool.key_for(call.arguments, where)
        call.key = self._past.key_for(call.tool.name, call.arguments.digest, own_key)
        if any(other.key == call.key for other in beside):
            return
        call.recorded = self._turn.memo.call(call.key)
        if call.recorded is not None:
            call.attempts = call.recorded.attempts
            call.begun = _begun_of(call.recorded)

    def displace(self, call: Call) -> None:
        """A call that was placed is not made: what is on record of it may be another's."""
        self._past.give_up(call.key)
        if call.recorded is not None:
            self._turn.memo.give_back(call.key, call.recorded)
            call.recorded = call.begun = None

    async def carry_out(self, calls: Sequence[Call]) -> list[Outcome]:
        """Make the calls, those with an outcome on record not again; in their order."""
        for call in calls:
            self._past.use(call.key)
        self._take_off(calls)
        try:
            with self._held.stage.joining():
                await finish_first(self._begin(calls), undo=lambda _: self._withdraw(calls))
        except BaseException as error:
            for call in calls:
                self._land(call, error)
            raise
        if len(calls) > 1:
            return await self._finish_all(calls)
        return [await self._finish(call) for call in calls]

    async def _begin(self, calls: Sequence[Call]) -> None:
        """Pay for the calls that are new, and put their intents on record."""
        to_issue = [call for call in calls if call.is_to_be_issued]
        if self._turn.memo.has_claims and not self._gate.is_concurrent:
            to_issue = await self._not_done_before(to_issue)
        reading = [call for call in calls if call.only_reads and call.seen is None]
        await self._spending.begin_calls([*to_issue, *reading])
        await self._issue(to_issue)

    async def _withdraw(self, calls: Sequence[Call]) -> None:
        """Record of calls that were cancelled before their tools were called: nothing happened."""
        for call in calls:
            begun = call.begun
            if begun is not None and call.recorded is None and begun.answer == "fresh":
                note = "it was cancelled before it was made"
                await self._settle(begun, Status.NOT_DONE, note=note, retry=True)
            await self._spending.end_call(call, is_free=True)

    async def _not_done_before(self, calls: Sequence[Call]) -> list[Call]:
        """Those that are new; raises TurnDiverged if one comes before what is on record.

        What is known from before this turn is not on its record, and was not when it first came.
        """
        new: list[Call] = []
        for call in calls:
            found = await engine_effects.find(self._context, call.key)
            if found is None:
                new.append(call)
            else:
                call.begun, call.recorded = found, None
        if new:
            self._turn.check_claimed()
        return new

    def _take_off(self, calls: Sequence[Call]) -> None:
        """Each operation is led by one call; others that are under way are followed."""
        for call in calls:
            if call.only_reads:
                continue
            if call.recorded is None and call.key in self._flights:
                call.leader = self._flights[call.key]
            else:
                call.flight = self._flights[call.key] = Flight(call.call_id, call.arguments.digest)

    def _land(self, call: Call, error: BaseException | None = None) -> None:
        flight = call.flight
        if flight is None:
            return
        flight.end(error)
        if self._flights.get(call.key) is flight:
            del self._flights[call.key]

    async def _issue(self, calls: Sequence[Call]) -> None:
        """Put the intents on record of those that can be paid for."""
        await self._spending.begin_calls([call for call in calls if call.refused is None])
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

    async def _issue_one(self, call: Call) -> None:
        with self._held.stage.joining():
            await finish_first(self._issue([call]), undo=lambda _: self._withdraw([call]))
        if call.refused is not None:
            raise Suspend(call.refused)

    async def _finish_all(self, calls: Sequence[Call]) -> list[Outcome]:
        tasks = [asyncio.create_task(carried(self._finish(call))) for call in calls]
        errors = await end_all(tasks)
        if broken := [error for error in errors if not isinstance(error, Suspend)]:
            raise first_error(broken)
        if errors:
            raise Suspend(first_of(ways_of(errors)))
        return [task.result() for task in tasks]

    async def _finish(self, call: Call) -> Outcome:
        """Take a call from whatever is known of it to its outcome; a key in use is an error."""
        try:
            return await self._outcome_of(call)
        except KeyReused as error:
            return Outcome(error=str(error), cause=error)

    async def _outcome_of(self, call: Call) -> Outcome:
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

    async def _lead(self, call: Call) -> None:
        """Do what the call that was followed has given up."""
        call.leader = None
        call.flight = self._flights[call.key] = Flight(call.call_id, call.arguments.digest)
        try:
            await self._issue_one(call)
        except BaseException as error:
            self._land(call, error)
            raise

    async def _carry_out_one(self, call: Call) -> Outcome:
        while True:
            outcome = await self._take_a_step(call)
            if outcome is not None:
                return outcome

    async def _take_a_step(self, call: Call) -> Outcome | None:
        """What is to be done about a call by what is known of it; None to look again."""
        begun, recorded = call.begun, call.recorded
        assert begun is not None, "a call was issued or is on record"
        effect, policy = begun.effect, call.tool.policy
        holder = f"effect {effect.effect_id} of run {effect.run_id}"
        check_key(call, effect.args_digest, holder)
        if recorded is not None and begun.effect.status in SETTLED:
            return _recorded_outcome(recorded)
        if recorded is not None and policy.effect == "idempotent":
            return await self._execute(call, begun)
        if recorded is not None and begun.answer == "unknown" and policy.in_doubt == "fail":
            told = text_of(recorded.result) or f"{call.tool.name} was interrupted"
            return Outcome(error=f"{told} {_UNKNOWN}")
        if recorded is None and begun.answer == "done":
            return Outcome(begun.result, replay_of=begun.effect.call_id)
        if recorded is None and begun.answer == "fresh":
            return await self._execute(call, begun)
        if recorded is None and begun.answer == "in_flight":
            found = await self._twin(call, effect)
            if found is None or found.answer != "in_flight":
                return await self._look_anew(call, found)
        if policy.effect == "idempotent":
            return await self._again(call, begun, note="it is safe to repeat")
        error = "" if recorded is None else text_of(recorded.result)
        return await self._resolve_doubt(call, begun, error=error or None)

    async def _read(self, call: Call) -> Outcome:
        return call.seen or self._reads.keep(call, await self._look(call))

    async def _look(self, call: Call) -> Outcome:
        tool = call.tool
        limit = tool.policy.limit_seconds
        key = self._key_of(call, call.key)
        try:
            result = await attempt(tool, call.arguments, key, limit_seconds=limit)
        except asyncio.CancelledError as error:
            self._spending.lose_call(call)
            if is_being_cancelled():
                raise
            return Outcome(error=error_text(tool, error), cause=error)
        except Exception as error:
            await self._spending.end_call(call)
            return Outcome(error=error_text(tool, error), cause=error)
        await self._spending.end_call(call, result=result)
        return Outcome(self._storable(tool.name, result))

    async def _execute(self, call: Call, begun: Begun) -> Outcome | None:
        """Run the tool; None if the call has to be looked at anew."""
        tool, effect = call.tool, begun.effect
        if tool.policy.effect == "mutate" and _is_late(effect, self._context.now()):
            return await self._come_late(call, begun)
        await self._spending.begin_calls([call])
        if call.refused is not None:
            raise Suspend(call.refused)
        try:
            result = await self._invoke(call, effect)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                self._record_cancelled(call, begun, error)
                raise
            if isinstance(error, tool.policy.not_done_on):
                return self._not_done(call, begun, error)
            return await self._broken(call, begun, error)  # the tool did this to itself
        except (NotDone, *tool.policy.not_done_on) as error:
            return self._not_done(call, begun, error)
        except Exception as error:
            return await self._broken(call, begun, error)
        completed = Outcome(self._complete(begun, result))
        await self._spending.end_call(call, result=result)
        return completed

    async def _come_late(self, call: Call, begun: Begun) -> None:
        if call.attempts > _MOST_LATE:
            note = f"there is never time enough to begin {call.tool.name}: raise its limit_seconds"
            self._held.stage.outcome(begun.effect, Status.NOT_DONE, note=note, retry=True)
            raise Suspend(Delay(self._context.now() + _LATE_PAUSE, note))
        note = "the worker stood still too long before the call, and did not make it"
        await self._again(call, begun, note=note)

    def _record_cancelled(
        self, call: Call, begun: Begun, cancelled: asyncio.CancelledError
    ) -> None:
        """A call was cut off: record what is known of it."""
        if isinstance(cancelled.__cause__, EndedLate):
            return self._record_end(call, begun, cancelled.__cause__)
        if isinstance(cancelled, StillRunning):
            return None  # it may happen yet: nobody judges it before its time limit is over
        is_not_done = isinstance(cancelled, call.tool.policy.not_done_on)
        is_unknown = call.tool.policy.effect == "mutate" and not is_not_done
        status = Status.UNKNOWN if is_unknown else Status.NOT_DONE
        self._held.stage.outcome(begun.effect, status, note="the call was cancelled")
        return None

    def _record_end(self, call: Call, begun: Begun, late: EndedLate) -> None:
        """A thread ended while its call was being cancelled: how it ended is known all the same."""
        if late.error is None:
            self._complete(begun, late.result)
        elif isinstance(late.error, (NotDone, *call.tool.policy.not_done_on)):
            self._not_done(call, begun, late.error)
        elif call.tool.policy.effect == "mutate":
            text = error_text(call.tool, late.error)
            self._held.stage.outcome(begun.effect, Status.UNKNOWN, result=text, note="it raised")

    async def _broken(self, call: Call, begun: Begun, error: BaseException) -> Outcome | None:
        if call.tool.policy.effect != "mutate":
            return self._not_done(call, begun, error)
        log.warning("%s raised, and may have happened", call.tool.name, exc_info=error)
        return await self._resolve_doubt(call, begun, error=error_text(call.tool, error))

    async def _invoke(self, call: Call, effect: Effect) -> Any:
        tool, key = call.tool, self._key_of(call, effect.key)
        left = (effect.limit_at - self._context.now()) / clock.MICROSECONDS
        if tool.policy.effect == "idempotent":
            left = tool.policy.limit_seconds
        self._turn.called_effects.add(effect.effect_id)
        faults.point("tool.before_call")
        try:
            with under_way(effect.effect_id):
                result = await attempt(tool, call.arguments, key, limit_seconds=left)
        except Exception as error:
            is_free = isinstance(error, (NotDone, *tool.policy.not_done_on))
            await self._spending.end_call(call, is_free=is_free)
            raise
        faults.point("tool.after_call")
        return result

    def _key_of(self, call: Call, key: str) -> Key:
        return Key(key, run_id=self._held.run_id, call_id=call.call_id)

    def _storable(self, tool: str, result: object) -> Any:
        return storable(tool, result, max_bytes=self._context.settings.max_body_bytes)

    def _complete(self, begun: Begun, result: object) -> Any:
        """Record a result; the value as it will be given back from the record."""
        plain = self._storable(begun.effect.tool, result)
        self._held.stage.outcome(begun.effect, Status.COMPLETED, result=plain)
        return plain

    def _not_done(self, call: Call, begun: Begun, error: BaseException) -> Outcome:
        text = error_text(call.tool, error)
        self._held.stage.outcome(begun.effect, Status.NOT_DONE, result=text, note=type_of(error))
        return Outcome(error=text, cause=error)

    async def _twin(self, call: Call, effect: Effect) -> Begun | None:
        """What became of the same operation that was begun before; of another run's, its end."""
        if effect.run_id == self._held.run_id:
            await self._held.stage.flush()  # its outcome may be on the way to the store
            return await engine_effects.find(self._context, call.key)
        async for _ in self._context.changes(f"run:{effect.run_id}"):
            found = await engine_effects.find(self._context, call.key)
            if found is None or found.answer != "in_flight":
                return found
        return None

    async def _look_anew(self, call: Call, found: Begun | None) -> None:
        if found is None:
            await self._issue_one(call)
        else:
            call.begun = found

    async def _resolve_doubt(
        self, call: Call, begun: Begun, *, error: str | None = None
    ) -> Outcome | None:
        """Find out what became of an effect that nobody saw the end of; None to look anew."""
        effect = begun.effect
        faults.point("tool.before_verify")
        try:
            verdict = await ask_verify(call.tool, call.arguments, effect.key)
        except asyncio.CancelledError:
            if error is not None:
                await self._record_doubt(begun, error)
            raise
        now = self._context.now()
        is_over = error is not None or begun.is_over or effect.limit_at <= now
        judgement = doubt.judge(
            verdict,
            call.tool.policy,
            error=error,
            is_over=is_over and not is_under_way(effect.effect_id),
            attempts=call.attempts,
        )
        match judgement:
            case Adopt(result):
                plain = self._storable(effect.tool, result)
                await self._settle(begun, Status.COMPLETED, result=plain, note="verified")
                return Outcome(plain)
            case TooEarly():
                note = f"{effect.tool} may still be running; then it is found out what became of it"
                raise Suspend(Delay(doubt.over_at(effect, now=now), note))
            case DidNot(text):
                await self._settle(begun, Status.NOT_DONE, result=text, note="verified")
                return Outcome(error=text)
            case TryAgain(note):
                return await self._again(call, begun, note=note)
            case AskAgain(reason):
                at = self._ask_again_at(call, effect, reason)
                if at is None:
                    return await self._leave_unknown(call, begun, error, reason)
                await self._record_doubt(begun, error)
                raise Suspend(Delay(at, f"{reason}; it is asked again about {effect.tool}"))
            case Undecided(reason):
                return await self._leave_unknown(call, begun, error, reason)

    def _ask_again_at(self, call: Call, effect: Effect, reason: str) -> int | None:
        """When to ask a `verify` again that could not tell; None if it was asked long enough.

        The moment of its first failure is recorded: a crash does not begin the time anew.
        """
        now, seconds = self._context.now(), call.tool.policy.verify_seconds
        recorded = self._turn.memo.step(_VERIFY, effect.effect_id.bytes)
        if recorded is None:
            self._turn.stage_step(_VERIFY, now, args_digest=effect.effect_id.bytes)
            then = f"verify is asked again for {seconds:g} s"
            doubt.log_cannot_tell(self._held.run_id, effect, reason, then=then)
        since: int = now if recorded is None else codec.decode(recorded.body)
        return doubt.ask_again_at(call.tool.policy, since=since, now=now)

    async def _record_doubt(self, begun: Begun, error: str | None) -> None:
        if begun.effect.status is Status.ISSUED:
            note = "it raised" if error else "its worker was lost"
            await self._settle(begun, Status.UNKNOWN, result=error, note=note)

    async def _leave_unknown(
        self, call: Call, begun: Begun, error: str | None, reason: str
    ) -> Outcome:
        """What the tool's policy says when nobody can tell."""
        effect = begun.effect
        await self._record_doubt(begun, error)
        if call.tool.policy.in_doubt == "fail":
            return Outcome(error=f"{error or f'{call.tool.name} was interrupted'} {_UNKNOWN}")
        seen = "; ".join(filter(None, (error or "its worker was lost", reason)))
        note = (
            f"{seen}: nobody knows whether {effect.tool} happened. Find out, then "
            f"{doubt.command_for(effect)}"
        )
        raise Suspend(Block(BlockedReason.UNKNOWN_EFFECT, note, (effect.effect_id,)))

    async def _again(self, call: Call, begun: Begun, *, note: str) -> None:
        await self._settle(begun, Status.NOT_DONE, note=note, retry=True)
        await self._issue_one(call)

    async def _settle(
        self,
        begun: Begun,
        status: Status,
        *,
        result: object = None,
        note: str = "",
        retry: bool = False,
    ) -> None:
        """Record an outcome where the effect is: with this run's next commit, or in another run."""
        if begun.effect.run_id == self._held.run_id:
            self._held.stage.outcome(begun.effect, status, result=result, note=note, retry=retry)
            return
        await engine_effects.Effects(self._context).settle(
            begun.effect.effect_id, status, result=result, note=note, retry=retry
        )


def _is_late(effect: Effect, now: int) -> bool:
    """Whether less than half of an effect's time is left: too little to begin its call."""
    return now > effect.issued_at + (effect.limit_at - effect.issued_at) // 2


def _begun_of(recorded: RecordedCall) -> Begun:
    answer = _ANSWERS.get(recorded.effect.status, "done")
    return Begun(answer, recorded.effect, recorded.result)


def _recorded_outcome(recorded: RecordedCall) -> Outcome:
    if recorded.effect.status is Status.COMPLETED:
        return Outcome(recorded.result)
    return Outcome(error=text_of(recorded.result) or f"{recorded.effect.tool} did not happen")
