"""Calls with consequences: intent on record before, outcome after, doubt never decided by guessing.

    issued ─▶ the tool runs ─▶ completed | not_done | unknown ─▶ verify ─▶ ask | fail | retry

All intents of one batch are one commit, together with the reply that asked for them; outcomes are
staged as they come, and stored with the next commit or at the next turn of the event loop.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import clock, faults, names
from holdfast.agents import doubt, shapes
from holdfast.agents.doubt import Adopt, DidNot, TooEarly, TryAgain, Undecided
from holdfast.agents.leaving import Block, Delay, Gate, Suspend, end_all, first_of, ways_of
from holdfast.agents.memo import Memo, RecordedCall
from holdfast.agents.tools import Arguments, Place, Tool, text_of
from holdfast.engine import effects as engine_effects
from holdfast.engine.context import Context
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.leased_run import LeasedRun
from holdfast.errors import NotDone, UnsupportedValue
from holdfast.kernel.effects import Effect, Status
from holdfast.kernel.runs import BlockedReason
from holdfast.telemetry import log

_STATUS_ANSWER: dict[Status, Any] = {Status.ISSUED: "in_flight", Status.UNKNOWN: "unknown"}


class Outcome(msgspec.Struct, frozen=True):
    """What a call came to: a value, or the text of an error; `replay_of` names an earlier call."""

    value: Any = None
    error: str | None = None
    replay_of: str | None = None
    cause: BaseException | None = None


class Flight:
    """An operation under way in this pass, for calls of the same operation to follow."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.ended = asyncio.Event()
        self.outcome = Outcome()
        self.error: BaseException | None = None

    async def follow(self) -> Outcome:
        """What came of it, as a replay."""
        await self.ended.wait()
        if isinstance(self.error, Suspend):
            raise Suspend(self.error.way)
        if self.error is not None:
            raise self.error
        if self.outcome.error is not None:
            return self.outcome
        return msgspec.structs.replace(
            self.outcome, replay_of=self.outcome.replay_of or self.call_id
        )


class Call(msgspec.Struct):
    """One call of a tool, wherever it stands."""

    tool: Tool[..., Any]
    arguments: Arguments
    call_id: str = ""
    nth: int = 0
    key: str = ""
    recorded: RecordedCall | None = None
    begun: Begun | None = None
    attempts: int = 0
    flight: Flight | None = None
    leader: Flight | None = None

    @property
    def request(self) -> EffectRequest:
        return EffectRequest(
            tool=self.tool.name,
            args=self.arguments.values,
            call_id=self.call_id,
            key=self.key,
            limit_seconds=self.tool.policy.limit_seconds,
        )


class Effects:
    """The calls of one pass over a run."""

    def __init__(self, context: Context, held: LeasedRun, gate: Gate) -> None:
        self._context = context
        self._held = held
        self._gate = gate
        self._counts: Counter[tuple[str, bytes]] = Counter()
        self._flights: dict[str, Flight] = {}
        self.memo = Memo()

    def begin_turn(self, memo: Memo) -> None:
        self.memo = memo
        self._counts.clear()

    async def carry_out(self, calls: Sequence[Call]) -> list[Outcome]:
        """Make the calls, those with another outcome on record not again; in their order."""
        for call in calls:
            if call.tool.policy.effect != "read":
                self._place(call)
        to_issue = [call for call in calls if call.leader is None and _is_to_be_issued(call)]
        if to_issue and not self._gate.is_concurrent:
            self.memo.check_claimed(run_id=self._held.run_id)
        await self._issue(to_issue)
        if len(calls) > 1:
            return await self._finish_all(calls)
        return [await self._finish(call) for call in calls]

    def _place(self, call: Call) -> None:
        name = (call.tool.name, call.arguments.digest)
        call.nth = self._counts[name]
        self._counts[name] += 1
        run = self._held.run
        place = Place(run.root_id, run.run_id, self._held.version, call.call_id, call.nth)
        call.key = call.tool.key_for(call.arguments, place)
        call.recorded = self.memo.call(*name)
        if call.recorded is not None:
            call.attempts = call.recorded.attempts
            call.begun = _begun_of(call.recorded)
        elif call.key in self._flights:
            call.leader = self._flights[call.key]
            return
        call.flight = self._flights[call.key] = Flight(call.call_id)

    async def _issue(self, calls: Sequence[Call]) -> None:
        if not calls:
            return
        begun = await self._held.begin_effects([call.request for call in calls])
        for call, answer in zip(calls, begun, strict=True):
            call.begun = answer
            call.recorded = None
            call.attempts += answer.answer == "fresh"

    async def _finish_all(self, calls: Sequence[Call]) -> list[Outcome]:
        tasks = [asyncio.create_task(self._finish(call)) for call in calls]
        errors = await end_all(tasks)
        for error in errors:
            if not isinstance(error, Suspend):
                raise error
        if errors:
            raise Suspend(first_of(ways_of(errors)))
        return [task.result() for task in tasks]

    async def _finish(self, call: Call) -> Outcome:
        """Take a call from whatever is known of it to its outcome."""
        if call.tool.policy.effect == "read":
            return await self._read(call)
        if call.leader is not None:
            return await call.leader.follow()
        flight = call.flight
        assert flight is not None, "a call leads, follows, or only reads"
        try:
            flight.outcome = await self._carry_out_one(call)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            flight.ended.set()
            if self._flights.get(call.key) is flight:
                del self._flights[call.key]
        return flight.outcome

    async def _carry_out_one(self, call: Call) -> Outcome:
        while True:
            begun = call.begun
            assert begun is not None, "a call was issued or is on record"
            if call.recorded is None and begun.answer == "done":
                return Outcome(begun.result, replay_of=begun.effect.call_id)
            if call.recorded is None and begun.answer == "fresh":
                outcome = await self._execute(call, begun)
            elif call.recorded is not None and begun.effect.status in _SETTLED:
                return _recorded_outcome(call.recorded)
            elif self._is_safe_to_repeat(call, begun):
                outcome = await self._execute(call, begun)
            elif call.recorded is None and begun.answer == "in_flight":
                outcome = await self._await_twin(call, begun.effect)
            else:
                outcome = await self._resolve_doubt(call, begun)
            if outcome is not None:
                return outcome

    async def _read(self, call: Call) -> Outcome:
        tool = call.tool
        limit = tool.policy.limit_seconds
        try:
            result = await attempt(tool, call.arguments, call.key, limit_seconds=limit)
        except Exception as error:
            return Outcome(error=error_text(tool, error), cause=error)
        return Outcome(_storable(tool.name, result))

    def _is_safe_to_repeat(self, call: Call, begun: Begun) -> bool:
        is_own = begun.effect.run_id == self._held.run_id and call.recorded is not None
        return is_own and call.tool.policy.effect == "idempotent"

    async def _execute(self, call: Call, begun: Begun) -> Outcome | None:
        """Run the tool; None if the call has to be looked at anew."""
        tool, effect = call.tool, begun.effect
        is_mutating = tool.policy.effect == "mutate"
        if is_mutating and _is_late(effect, self._context.now()):
            note = "the worker stood still too long before the call, and did not make it"
            return await self._again(call, begun, note=note)
        try:
            result = await self._invoke(call, effect)
        except (NotDone, *tool.policy.not_done_on) as error:
            return self._not_done(call, begun, error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                return await self._broken(call, begun, error)  # the tool did this to itself
            if is_mutating:
                self._held.stage.outcome(begun, Status.UNKNOWN, note="the call was cancelled")
            raise
        except Exception as error:
            return await self._broken(call, begun, error)
        return Outcome(self._complete(begun, result))

    async def _broken(self, call: Call, begun: Begun, error: BaseException) -> Outcome | None:
        if call.tool.policy.effect != "mutate":
            return self._not_done(call, begun, error)
        log.warning("%s raised, and may have happened", call.tool.name, exc_info=error)
        return await self._resolve_doubt(call, begun, error=error_text(call.tool, error))

    async def _invoke(self, call: Call, effect: Effect) -> Any:
        tool, key = call.tool, effect.key
        left = (effect.limit_at - self._context.now()) / clock.MICROSECONDS
        if tool.policy.effect == "idempotent":
            left = tool.policy.limit_seconds
        faults.point("tool.before_call")
        result = await attempt(tool, call.arguments, key, limit_seconds=left)
        faults.point("tool.after_call")
        return result

    def _complete(self, begun: Begun, result: object) -> Any:
        """Record a result; the value as it will be given back from the record."""
        plain = _storable(begun.effect.tool, result)
        self._held.stage.outcome(begun, Status.COMPLETED, result=plain)
        return plain

    def _not_done(self, call: Call, begun: Begun, error: BaseException) -> Outcome:
        text = error_text(call.tool, error)
        self._held.stage.outcome(begun, Status.NOT_DONE, result=text, note=_type_of(error))
        return Outcome(error=text, cause=error)

    async def _await_twin(self, call: Call, effect: Effect) -> Outcome | None:
        """Wait for the same operation that somebody else has begun."""
        async for _ in self._context.changes(f"run:{effect.run_id}"):
            found = await engine_effects.find(self._context, call.key)
            if found is None:
                await self._issue([call])
                return None
            if found.answer != "in_flight":
                call.begun = found
                return None
        return None

    async def _resolve_doubt(
        self, call: Call, begun: Begun, *, error: str | None = None
    ) -> Outcome | None:
        """Find out what became of an effect that nobody saw the end of; None to look anew."""
        effect = begun.effect
        faults.point("tool.before_verify")
        verdict = await doubt.ask(call.tool, call.arguments, effect)
        is_over = error is not None or effect.status is Status.UNKNOWN
        judgement = doubt.judge(
            verdict,
            call.tool.policy,
            error=error,
            is_over=is_over or effect.limit_at <= self._context.now(),
            attempts=call.attempts,
        )
        match judgement:
            case Adopt(result):
                await self._settle(begun, Status.COMPLETED, result=result, note="verified")
                return Outcome(shapes.plain(result))
            case TooEarly():
                raise Suspend(Delay(effect.limit_at, f"{effect.tool} may still be running"))
            case DidNot(text):
                await self._settle(begun, Status.NOT_DONE, result=text, note="verified")
                return Outcome(error=text)
            case TryAgain(note):
                return await self._again(call, begun, note=note)
            case Undecided(reason):
                return await self._leave_unknown(call, begun, error, reason)

    async def _leave_unknown(
        self, call: Call, begun: Begun, error: str | None, reason: str
    ) -> Outcome:
        """What the tool's policy says when nobody can tell."""
        effect = begun.effect
        if effect.status is Status.ISSUED:
            note = "it raised" if error else "its worker was lost"
            await self._settle(begun, Status.UNKNOWN, result=error, note=note)
        if call.tool.policy.in_doubt == "fail":
            told = error or f"{call.tool.name} was interrupted"
            return Outcome(error=f"{told} (whether it happened is not known)")
        seen = "; ".join(filter(None, (error or "its worker was lost", reason)))
        note = (
            f"{seen}: nobody knows whether {effect.tool} happened. Find out, then "
            f"`holdfast effects resolve {effect.effect_id}` with --happened RESULT, --did-not-happen or --retry"
        )
        raise Suspend(Block(BlockedReason.UNKNOWN_EFFECT, note))

    async def _again(self, call: Call, begun: Begun, *, note: str) -> None:
        await self._settle(begun, Status.NOT_DONE, note=note, retry=True)
        await self._held.stage.flush()  # its key must be free before it is taken again
        await self._issue([call])

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
            self._held.stage.outcome(begun, status, result=result, note=note, retry=retry)
            return
        await engine_effects.Effects(self._context).settle(
            begun.effect.effect_id, status, result=result, note=note, retry=retry
        )


_SETTLED = frozenset({Status.COMPLETED, Status.NOT_DONE})


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


def _storable(tool: str, result: object) -> Any:
    """A result as it comes back from the record; what cannot be stored as its text."""
    try:
        return shapes.plain(result)
    except UnsupportedValue as error:
        log.warning("%s returned what cannot be stored, its text is kept: %s", tool, error)
        return str(result)


def error_text(tool: Tool[..., Any], error: BaseException) -> str:
    """What a model is told of an exception."""
    return f"{tool.name} raised {_type_of(error)}: {error}"


def _type_of(error: BaseException) -> str:
    return type(error).__name__[:200]


def usable_id(call_id: str) -> str:
    """A call's id as it can be stored; models may give any string."""
    if call_id and (len(call_id) > names.MAX_LENGTH or not call_id.isprintable()):
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()
    return call_id


def _is_to_be_issued(call: Call) -> bool:
    if call.tool.policy.effect == "read":
        return False
    return call.recorded is None or call.recorded.is_to_be_retried


def _is_late(effect: Effect, now: int) -> bool:
    """Whether less than half of an effect's time is left: too little to begin its call."""
    return now > effect.issued_at + (effect.limit_at - effect.issued_at) // 2


def _begun_of(recorded: RecordedCall) -> Begun:
    answer = _STATUS_ANSWER.get(recorded.effect.status, "done")
    return Begun(answer, recorded.effect, recorded.result)


def _recorded_outcome(recorded: RecordedCall) -> Outcome:
    if recorded.effect.status is Status.COMPLETED:
        return Outcome(recorded.result)
    return Outcome(error=text_of(recorded.result) or f"{recorded.effect.tool} did not happen")
