"""Entries that wait for the next commit of their run, and go in front of it.

A model's reply is stored together with the intents that follow from it, a tool's result together
with the checkpoint: what belongs together costs one commit. Until then an entry is named by a
token, a `Ref` with a negative seq.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, NamedTuple, Protocol

from holdfast import names
from holdfast.codec import Ref
from holdfast.engine.writing.head import Decide, Head, Plan
from holdfast.errors import HoldfastError
from holdfast.kernel import checkpoints, effects
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.runs import Run
from holdfast.kernel.versions import Versions

_KEPT: Final = frozenset(
    {Kind.COST_RECORDED, Kind.RUN_CREATED, Kind.RUN_LEASED, Kind.RECOVERY_COMPLETED}
)
_JOIN_SECONDS: Final = 0.05


class Staged(NamedTuple):
    """An entry without a place yet."""

    token: int
    draft: Draft


class Staging:
    """The staged entries of one run. `recorded` are the bodies that may be named in its state."""

    def __init__(self, recorded: dict[int, bytes]) -> None:
        self._waiting: list[Staged] = []
        self._planned: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        self._count = 0
        self.recorded = recorded

    @property
    def drafts(self) -> list[Draft]:
        """What is not stored yet."""
        return [staged.draft for staged in self._waiting]

    def add(self, draft: Draft) -> Ref:
        self._count += 1
        self._waiting.append(Staged(-self._count, draft))
        return Ref(-self._count)

    def seq_of(self, token: int) -> int:
        """Where an entry lies, or will lie if the plan that is being made is stored."""
        return self._stored.get(token) or self._planned[token]

    def before(self, decide: Decide) -> "Both":
        """A decision that asks for what is staged, and then for what `decide` asks for."""
        return Both(self, decide)

    def forget_stored(self) -> None:
        """Nothing names what is stored by its token any more."""
        self._stored.clear()

    def take(self) -> list[Draft]:
        """What is not stored yet, and is not to be stored any more."""
        drafts, self._waiting = self.drafts, []
        return drafts

    def plan(self, seq: int) -> list[Staged]:
        """What waits now, to be stored from `seq` on."""
        self._planned = {item.token: seq + at for at, item in enumerate(self._waiting)}
        return list(self._waiting)

    def settle(self, staged: Sequence[Staged], entries: Sequence[Entry]) -> None:
        """The first of these entries are those that were staged."""
        self._waiting = self._waiting[len(staged) :]
        for item, entry in zip(staged, entries, strict=False):
            self._stored[item.token] = entry.seq
            if item.token in self.recorded:
                self.recorded[entry.seq] = self.recorded[item.token]


class Both:
    """A decision with what is staged in front of it."""

    def __init__(self, staging: Staging, decide: Decide) -> None:
        self._staging = staging
        self._decide = decide
        self._in_front = 0

    def __call__(self, run: Run, seq: int) -> Plan:
        staged = self._staging.plan(seq)
        self._in_front = len(staged)
        plan = self._decide(run, seq + len(staged))
        if not staged:
            return plan

        def applied(entries: Sequence[Entry], drafts: Sequence[Draft]) -> None:
            self._staging.settle(staged, entries)
            if plan.on_applied is not None:
                plan.on_applied(entries[len(staged) :], drafts[len(staged) :])

        return Plan([*(item.draft for item in staged), *plan.drafts], applied, plan.begins)

    def own(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those of a commit that the decision itself asked for."""
        return entries[self._in_front :]


class _Encode(Protocol):
    def __call__(self, value: object, name: str) -> bytes: ...


class Stage:
    """What is to be stored with the next commit of a run, whatever that is."""

    def __init__(
        self,
        staging: Staging,
        head: Head,
        encode: _Encode,
        commit: Callable[[], Awaitable[object]],
    ) -> None:
        self._staging = staging
        self._head = head
        self._encode = encode
        self._commit = commit
        self._is_flush_due = False
        self._joining = 0
        self._held_up: asyncio.TimerHandle | None = None
        self._flushing: set[asyncio.Task[None]] = set()
        self.is_patient = False
        """Whether results wait for the next commit however long; outcomes of effects never do."""

    @property
    def drafts(self) -> Sequence[Draft]:
        """What is not stored yet."""
        return self._staging.drafts

    @property
    def is_first(self) -> bool:
        """Whether nothing is stored yet under this lease."""
        return self._head.is_settled and self._head.position.seq <= self._head.run.lease_seq

    def step(self, name: str, value: object, *, args_digest: bytes = b"", passed: int = 0) -> Ref:
        """Put a result on the record; the answer may be named in the state in its place."""
        body = self._encode(value, name)
        facts = checkpoints.Step(names.check(name, what="the name of a step"), args_digest, passed)
        ref = self._add(Draft(Kind.STEP_RECORDED, facts, body), can_wait=True)
        self._staging.recorded[ref.seq] = body
        return ref

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Let the first commit of the run begin with these."""
        for draft in drafts:
            self._staging.add(draft)

    def versions(self, versions: Versions) -> None:
        """Put on record what the agent is made of."""
        self._add(Draft(Kind.VERSIONS_RECORDED, versions), can_wait=True)

    def drop(self) -> None:
        """Forget what is not stored yet, but for what was paid and the run's beginning."""
        for draft in self._staging.take():
            if draft.kind in _KEPT:
                self._staging.add(draft)

    def recall(self, seq: int, body: bytes) -> Ref:
        """Let a result that was recorded in this turn by an earlier lease be named."""
        self._staging.recorded[seq] = body
        return Ref(seq)

    def body_of(self, ref: Ref) -> bytes:
        """The bytes of a result that was recorded in this turn."""
        return self._staging.recorded[ref.seq]

    def can_name(self, ref: Ref) -> bool:
        """Whether a recorded result may still be named in place of a value."""
        return ref.seq in self._staging.recorded

    def seq_of(self, ref: Ref) -> int:
        """Where what was staged since the last checkpoint lies, once it is stored."""
        return self._staging.seq_of(ref.seq)

    def add(self, draft: Draft) -> None:
        """Put on record what has no result that may be named."""
        self._add(draft, can_wait=True)

    def outcome(
        self,
        effect: effects.Effect,
        status: effects.Status,
        *,
        result: object = None,
        note: str = "",
        retry: bool = False,
    ) -> None:
        """Record what became of an effect; `result` may be the text of an error."""
        body = b"" if result is None else self._encode(result, f"result of {effect.tool}")
        note = names.check_text(note, what="note")
        self._add(effects.settle(effect, status, body=body, note=note, retry=retry))

    @contextlib.contextmanager
    def joining(self) -> Generator[None]:
        """Let what is staged wait a moment for a commit that another task is about to make.

        It does not wait for a store that is away: then it goes into the spool by itself.
        """
        self._joining += 1
        try:
            yield
        finally:
            self._joining -= 1
            if self._held_up is not None and not self._joining:
                self._held_up.cancel()
                self._held_up = None
                asyncio.get_running_loop().call_soon(self._flush_now)

    async def flush(self) -> None:
        """Commit what is staged, by itself."""
        await self._commit()

    async def settle(self) -> None:
        """Find out what became of a commit whose answer nobody saw, if there is one."""
        if not self._head.is_settled:
            await self._commit()

    async def close(self) -> list[Draft]:
        """Stage no more; what could not be stored."""
        self._is_flush_due = True
        if self._flushing:
            await asyncio.wait(self._flushing)
        with contextlib.suppress(HoldfastError):
            await self._commit()
        return self._staging.take()

    def _add(self, draft: Draft, *, can_wait: bool = False) -> Ref:
        """Stage an entry; it is stored at the loop's next turn if no commit takes it along."""
        if not (can_wait and self.is_patient):
            self._flush_soon()
        return self._staging.add(draft)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._begin_flush)

    def _begin_flush(self) -> None:
        if self._joining:
            loop = asyncio.get_running_loop()
            self._held_up = loop.call_later(_JOIN_SECONDS, self._flush_now)
        else:
            self._flush_now()

    def _flush_now(self) -> None:
        self._is_flush_due, self._held_up = False, None
        if self._staging.drafts:
            task = asyncio.create_task(self._flush_quietly())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    async def _flush_quietly(self) -> None:
        # What keeps it from being stored is met again, and raised, by the next call of the run.
        with contextlib.suppress(HoldfastError):
            await self._commit()
