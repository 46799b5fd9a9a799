"""The memo of a turn: what the run did since its last checkpoint, to be given back, not repeated.

A step is matched by its name, the digest of its arguments and its place (`call_positions`), an
effect by its key, a wait and a signal by their place. The code of an agent is free otherwise, as
long as it makes the same calls again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec

from holdfast import codec
from holdfast.errors import TurnDiverged
from holdfast.kernel import budgets, checkpoints, effects, indexes, journal, signals, waits
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Entry
from holdfast.kernel.waits import WaitStatus


class RecordedStep(NamedTuple):
    """A result on the record: the seq of its entry, and its bytes."""

    seq: int
    body: bytes


class RecordedCall(msgspec.Struct):
    """An effect as the record shows it: the newest attempt at it, and its outcome."""

    effect: Effect
    attempts: int = 1
    is_to_be_retried: bool = False
    result: Any = None


class RecordedWait(msgspec.Struct):
    """A wait as the record shows it; `payload` is what was asked, `value` the answer."""

    wait_id: str
    group_id: str
    kind: str
    name: str
    payload: dict[str, Any]
    status: WaitStatus = WaitStatus.OPEN
    value: Any = None
    settled_by: str = ""
    settled_at: int = 0
    replay_of: str = ""
    """The run whose reply is given back, because it was called before this run went back."""


class Memo:
    """What a turn has on record and its code has not asked for yet."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._steps: dict[tuple[str, bytes], deque[RecordedStep]] = {}
        self._calls: dict[str, deque[RecordedCall]] = {}
        self._by_effect: dict[Any, RecordedCall] = {}
        self._waits: dict[bytes, deque[RecordedWait]] = {}
        self._by_wait: dict[str, RecordedWait] = {}
        self._taken: dict[bytes, str] = {}
        self.answered = False
        """Whether the turn begins with the answer to a message."""
        self.passed = 0
        """How many ends of turns were passed over before the last of what is on record."""
        self.is_blank = True
        """Whether nothing is on record but that the run was taken, and given back or lost."""
        self.has_turn = False
        self.paid: dict[str, budgets.Recorded] = {}
        for entry in entries:
            self.is_blank &= entry.kind.startswith(("RUN_", "LEASE_", "RECOVERY_"))
            if not entry.kind.startswith("RUN_"):
                self._read(entry)
        self.is_untouched = not (
            self._steps or self._calls or self._waits or self._taken or self.paid
        )
        """Whether the code of the agent had done nothing yet in this turn."""

    def step(self, name: str, digest: bytes) -> RecordedStep | None:
        """The result of the next such step, if it is on record."""
        return _next(self._steps, (name, digest))

    def call(self, key: str) -> RecordedCall | None:
        """What is known of the next call with this key, if its intent is on record."""
        return _next(self._calls, key)

    def give_back(self, key: str, call: RecordedCall) -> None:
        """Release a claimed call that is not made: the next with this key can claim it."""
        self._calls.setdefault(key, deque()).appendleft(call)

    def wait(self, place: bytes) -> RecordedWait | None:
        """The next wait that was opened at this place, if it is on record."""
        return _next(self._waits, place)

    def taken(self, place: bytes) -> str | None:
        """The id of the signal that was taken at this place."""
        return self._taken.pop(place, None)

    @property
    def has_claims(self) -> bool:
        """Whether an effect or a wait is on record that no call has asked for yet."""
        return bool(self._calls or self._waits)

    def check_claimed(self, *, run_id: str) -> None:
        """Raise TurnDiverged if an effect or a wait is on record that no call has asked for."""
        calls = [call.effect for calls in self._calls.values() for call in calls]
        left = [f"{e.tool} (effect {e.effect_id}, {e.status})" for e in calls]
        left += [
            f"{wait.kind} {wait.name} (wait {wait.wait_id}, {wait.status})"
            for opened in self._waits.values()
            for wait in opened
        ]
        if not left:
            return
        named = ", ".join(left)
        raise TurnDiverged(
            f"run {run_id} did this before and its code does not ask for it again: {named}. Its "
            "code was changed, or decided by something that is not recorded (wrap it in "
            "run.step). Put the old code back and unblock the run, or let it begin the turn anew: "
            f"`holdfast runs rewind {run_id}`"
        )

    def _read(self, entry: Entry) -> None:
        facts = indexes.facts_of(entry)
        match facts:
            case checkpoints.Step(name, digest, passed):
                self.passed = max(self.passed, passed)
                step = RecordedStep(entry.seq, journal.body_of(entry))
                self._steps.setdefault((name, digest), deque()).append(step)
            case effects.Issued():
                self._issue(entry, facts)
            case effects.EffectSettled(effect_id):
                call = self._by_effect.get(effect_id)
                if call is not None:  # else it belongs to an earlier turn
                    _settle(call, entry, facts)
            case waits.WaitsOpened():
                self._open_waits(entry, facts)
            case waits.WaitSettled() | waits.Closed():
                self._end_waits(entry, facts)
            case signals.SignalTaken(signal_id):
                place = _place_of(entry)
                self.answered |= place is None
                if place is not None:
                    self._taken[place] = signal_id
            case budgets.Recorded() if facts.spender == entry.run_id:
                self.paid[facts.reservation_id] = facts
                self.has_turn = self.has_turn or facts.amounts.turns > 0
            case _:
                pass

    def _open_waits(self, entry: Entry, facts: waits.WaitsOpened) -> None:
        body = journal.body_of(entry)
        payloads: dict[str, Any] = codec.decode(body) if body else {}
        for opened in facts.waits:
            payload = payloads.get(opened.wait_id)
            if not isinstance(payload, dict) or not cast("dict[str, Any]", payload).get("place"):
                continue  # not opened by the agent's code
            wait = RecordedWait(
                opened.wait_id,
                facts.group_id,
                opened.kind,
                opened.name,
                cast("dict[str, Any]", payload),
            )
            self._by_wait[wait.wait_id] = wait
            self._waits.setdefault(wait.payload["place"], deque()).append(wait)

    def _end_waits(self, entry: Entry, facts: waits.WaitSettled | waits.Closed) -> None:
        if isinstance(facts, waits.Closed):
            for wait in self._by_wait.values():
                if (wait.group_id, wait.status) == (facts.group_id, WaitStatus.OPEN):
                    _end(wait, WaitStatus.CANCELLED, entry)
            return
        wait = self._by_wait.get(facts.wait_id)
        if wait is not None:
            _end(wait, waits.STATUS_OF[journal.Kind(entry.kind)], entry)
            body = journal.body_of(entry)
            wait.value = codec.decode(body) if body else None

    def _issue(self, entry: Entry, facts: effects.Issued) -> None:
        (change,) = indexes.changes_of(entry, facts)
        assert isinstance(change, indexes.AddEffect), "an intent makes an effect"
        calls = self._calls.setdefault(facts.key, deque())
        if calls and calls[-1].is_to_be_retried:
            call = calls[-1]
            call.effect, call.attempts = change.effect, call.attempts + 1
            call.is_to_be_retried, call.result = False, None
        else:
            call = RecordedCall(change.effect)
            calls.append(call)
        self._by_effect[facts.effect_id] = call


def _settle(call: RecordedCall, entry: Entry, facts: effects.EffectSettled) -> None:
    status: EffectStatus = effects.STATUS_OF[journal.Kind(entry.kind)]
    call.effect = msgspec.structs.replace(
        call.effect, status=status, result_seq=entry.seq, settled_at=entry.at
    )
    call.is_to_be_retried = facts.retry
    body = journal.body_of(entry)
    call.result = codec.decode(body) if body else None


def _end(wait: RecordedWait, status: WaitStatus, entry: Entry) -> None:
    wait.status, wait.settled_by, wait.settled_at = status, entry.actor, entry.at


def _place_of(entry: Entry) -> bytes | None:
    """Where in its turn the agent took a signal; None for a message of a session."""
    body = journal.body_of(entry)
    decoded = codec.decode(body) if body else None
    return cast("dict[str, Any]", decoded).get("place") if isinstance(decoded, dict) else None


def _next(queues: dict[Any, deque[Any]], key: Any) -> Any:
    queue = queues.get(key)
    if not queue:
        return None
    found = queue.popleft()
    if not queue:
        del queues[key]
    return found
