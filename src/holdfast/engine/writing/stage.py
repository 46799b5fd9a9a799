"""What is to be stored with the next commit of a run, and when it is stored without one."""

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Final

from holdfast import codec, names
from holdfast.codec import Ref
from holdfast.engine.writing.run_writer import RunWriter
from holdfast.errors import HoldfastError
from holdfast.kernel import checkpoints, effects
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.versions import Versions

_KEPT: Final = frozenset(
    {Kind.COST_RECORDED, Kind.RUN_CREATED, Kind.RUN_LEASED, Kind.RECOVERY_COMPLETED}
)
_JOIN_SECONDS: Final = 0.05


class Stage:
    """What is to be stored with the next commit of a run, whatever that is."""

    def __init__(self, writer: RunWriter, *, max_bytes: int) -> None:
        self._writer = writer
        self._staged = writer.staged
        self._max_bytes = max_bytes
        self._is_flush_due = False
        self._joining = 0
        self._held_up: asyncio.TimerHandle | None = None
        self._flushing: set[asyncio.Task[None]] = set()
        self.recorded = writer.staged.recorded
        """The bytes of the results of this turn that may be named in the state, by their seq."""
        self.is_patient = False
        """Whether results wait for the next commit without limit; outcomes of effects never do."""

    @property
    def drafts(self) -> Sequence[Draft]:
        """What is not stored yet."""
        return self._staged.drafts

    @property
    def is_unbudgeted(self) -> bool:
        """Whether it is known that no budget applies to the run: nothing is staged for one."""
        return self._writer.is_unbudgeted

    @property
    def is_first(self) -> bool:
        """Whether nothing is stored yet under this lease."""
        return self._writer.is_settled and self._writer.position.seq <= self._writer.run.lease_seq

    def step(self, name: str, value: object, *, args_digest: bytes = b"", passed: int = 0) -> Ref:
        """Record a result. The returned reference may be named in the state in its place."""
        body = codec.encode(value, name=name, limit=self._max_bytes)
        facts = checkpoints.Step(names.check(name, what="the name of a step"), args_digest, passed)
        ref = self.add(Draft(Kind.STEP_RECORDED, facts, body))
        self.recorded[ref.seq] = body
        return ref

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Let the first commit of the run begin with these."""
        for draft in drafts:
            self._staged.add(draft)

    def versions(self, versions: Versions) -> None:
        """Record the versions that the agent is made of."""
        self.add(Draft(Kind.VERSIONS_RECORDED, versions))

    def drop(self) -> None:
        """Forget what is not stored yet, but for what was paid and the run's beginning."""
        for draft in self._staged.take():
            if draft.kind in _KEPT:
                self._staged.add(draft)

    def recall(self, seq: int, body: bytes) -> Ref:
        """Let a result that was recorded in this turn by an earlier lease be named."""
        self.recorded[seq] = body
        return Ref(seq)

    def seq_of(self, ref: Ref) -> int:
        """Where what was staged since the last checkpoint lies, once it is stored."""
        return self._staged.seq_of(ref.seq)

    def outcome(
        self,
        effect: effects.Effect,
        status: effects.EffectStatus,
        *,
        body: bytes = b"",
        note: str = "",
        retry: bool = False,
    ) -> None:
        """Record the outcome of an effect; the body may be the text of an error."""
        note = names.check_text(note, what="note")
        self.add(effects.settle(effect, status, body=body, note=note, retry=retry), can_wait=False)

    @contextlib.contextmanager
    def joining(self) -> Generator[None]:
        """Let what is staged wait a moment for a commit that another task is about to make.

        It does not wait for a store that is away: then it is spooled alone.
        """
        self._joining += 1
        try:
            yield
        finally:
            self._joining -= 1
            if self._held_up is not None and not self._joining:
                self._held_up.cancel()
                self._held_up = None
                self._is_flush_due = False
                if self._staged.is_waiting:
                    self._flush_soon()

    async def flush(self) -> None:
        """Commit what is staged, by itself."""
        await self._writer.append()

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every commit of this run is known."""
        return self._writer.is_settled

    async def settle(self) -> None:
        """Settle a commit whose answer was lost, if there is one."""
        if not self._writer.is_settled:
            await self._writer.append()

    async def close(self) -> list[Draft]:
        """Stop staging. Returns what could not be stored."""
        self._is_flush_due = True
        if self._flushing:
            await asyncio.wait(self._flushing)
        with contextlib.suppress(HoldfastError):
            await self._writer.append()
        return self._staged.take()

    def add(self, draft: Draft, *, can_wait: bool = True) -> Ref:
        """Stage an entry; it is stored at the loop's next turn if no commit takes it along."""
        if not (can_wait and self.is_patient):
            self._flush_soon()
        return self._staged.add(draft)

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
        if self._staged.is_waiting:
            task = asyncio.create_task(self._flush_quietly())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    async def _flush_quietly(self) -> None:
        # What keeps it from being stored is met again, and raised, by the next call of the run.
        with contextlib.suppress(HoldfastError):
            await self._writer.append()
