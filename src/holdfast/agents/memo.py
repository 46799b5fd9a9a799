"""The memo of a turn: what the run did since its last checkpoint, to be given back, not repeated.

A step is matched by its name, the digest of its arguments and its place (`places`), an effect by
its key. The code of an agent may do what it likes, as long as it makes the same calls again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast import codec
from holdfast.errors import TurnDiverged
from holdfast.kernel import checkpoints, effects, indexes, journal, signals
from holdfast.kernel.effects import Effect, Status
from holdfast.kernel.journal import Entry


class RecordedStep(NamedTuple):
    """A result on the record: the seq of its entry, and its bytes."""

    seq: int
    body: bytes


class RecordedCall(msgspec.Struct):
    """An effect as far as the record tells: the newest attempt at it, and what came of that."""

    effect: Effect
    attempts: int = 1
    is_to_be_retried: bool = False
    result: Any = None


class Memo:
    """What a turn has on record and its code has not asked for yet."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._steps: dict[tuple[str, bytes], deque[RecordedStep]] = {}
        self._calls: dict[str, deque[RecordedCall]] = {}
        self._by_effect: dict[Any, RecordedCall] = {}
        self.answered = False
        for entry in entries:
            self._read(entry)

    @classmethod
    def after_answer(cls) -> "Memo":
        """The memo of a turn that begins with the answer to a message."""
        memo = cls()
        memo.answered = True
        return memo

    def step(self, name: str, digest: bytes) -> RecordedStep | None:
        """The result of the next such step, if it is on record."""
        return _next(self._steps, (name, digest))

    def call(self, key: str) -> RecordedCall | None:
        """What is known of the next call with this key, if its intent is on record."""
        return _next(self._calls, key)

    @property
    def has_calls(self) -> bool:
        """Whether an effect is on record that no call has asked for yet."""
        return bool(self._calls)

    def check_claimed(self, *, run_id: str) -> None:
        """Raise TurnDiverged if an effect is on record that no call has asked for."""
        left = [call.effect for calls in self._calls.values() for call in calls]
        if not left:
            return
        named = ", ".join(f"{e.tool} (effect {e.effect_id}, {e.status})" for e in left)
        raise TurnDiverged(
            f"run {run_id} did this before and its code does not ask for it again: {named}. Its "
            "code was changed, or decided by something that is not recorded (wrap it in "
            "run.step). Put the old code back and unblock the run, or let it begin the turn anew: "
            f"`holdfast runs rewind {run_id}`"
        )

    def _read(self, entry: Entry) -> None:
        facts = indexes.facts_of(entry)
        match facts:
            case checkpoints.Step(name, digest):
                step = RecordedStep(entry.seq, journal.body_of(entry))
                self._steps.setdefault((name, digest), deque()).append(step)
            case effects.Issued():
                self._issue(entry, facts)
            case effects.Settled(effect_id):
                call = self._by_effect.get(effect_id)
                if call is not None:  # else it belongs to an earlier turn
                    _settle(call, entry, facts)
            case signals.Taken():
                self.answered = True
            case _:
                pass

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


def _settle(call: RecordedCall, entry: Entry, facts: effects.Settled) -> None:
    status: Status = effects.STATUS_OF[journal.Kind(entry.kind)]
    call.effect = msgspec.structs.replace(
        call.effect, status=status, result_seq=entry.seq, settled_at=entry.at
    )
    call.is_to_be_retried = facts.retry
    body = journal.body_of(entry)
    call.result = codec.decode(body) if body else None


def _next(queues: dict[Any, deque[Any]], key: Any) -> Any:
    queue = queues.get(key)
    if not queue:
        return None
    found = queue.popleft()
    if not queue:
        del queues[key]
    return found
