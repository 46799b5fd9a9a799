"""A run that this worker holds: the one place from which its journal is advanced.

Edits gather in memory; `checkpoint` stores them as one version. Every method that awaits commits at
most once, and what it returns is on disk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from holdfast import clock, codec, names
from holdfast.engine.budgets.purse import Purse
from holdfast.engine.context import Context
from holdfast.engine.effect_intents import EffectIntents
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.handoffs import HeldHandoffs
from holdfast.engine.held.inbox import Inbox
from holdfast.engine.waits import WaitSpec, opening, results_of
from holdfast.engine.writing.checkpoint_saver import About, CheckpointSaver
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter, WritePlan
from holdfast.engine.writing.stage import Stage
from holdfast.errors import (
    IllegalMove,
    WaitExists,
    WaitNotFound,
)
from holdfast.kernel import checkpoints, effects, indexes, runs, waits
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.runs import BlockedReason, RunRow
from holdfast.kernel.state import Parts

T = TypeVar("T")


class HeldRun:
    """What Holdfast itself works with on a run that is held here, made when it is first used."""

    def __init__(
        self,
        context: Context,
        writer: RunWriter,
        parts: Parts,
        *,
        entries: Sequence[Entry] | None = None,
        is_new: bool = False,
    ) -> None:
        self._context = context
        self._writer = writer
        self.result = b""
        """The body of the result that `complete` was given."""
        self._max_bytes = context.settings.max_body_bytes
        self.saver = CheckpointSaver(writer, parts, max_bytes=self._max_bytes)
        self.entries = entries
        """The entries since the last checkpoint, if they were read when the run was leased."""
        self.is_new = is_new
        """Whether the run was created with this lease, and nothing else was recorded then."""
        if is_new:
            writer.is_unbudgeted = not (writer.run.parent_id or writer.run.forked_from)
        self._issuing: EffectIntents | None = None
        self._made: tuple[tuple[Any, ...], Any] | None = None

    @cached_property
    def stage(self) -> Stage:
        """What is to be stored with the next commit."""
        return Stage(self._writer, max_bytes=self._max_bytes)

    @cached_property
    def inbox(self) -> Inbox:
        """Its signals."""
        return Inbox(self._context, self._writer, self.saver)

    @cached_property
    def handoffs(self) -> HeldHandoffs:
        """Handing it over, and taking it over."""
        return HeldHandoffs(self._context, self._writer, self.saver)

    @cached_property
    def purse(self) -> Purse:
        """The budgets that it draws on."""
        return Purse(self._context, self._writer, self.stage, is_new=self.is_new)

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every commit of the run is known."""
        return self._writer.is_settled


class LeasedRun(HeldRun):
    """A run and the lease on it. Use it from one task at a time."""

    @property
    def run(self) -> RunRow:
        """The run's row, as far as this worker knows."""
        return self._writer.run

    @property
    def run_id(self) -> str:
        return self._writer.run.run_id

    @property
    def is_spooled(self) -> bool:
        """Whether the last commits are on this machine's disk only, until the store is back."""
        return self._writer.is_spooled

    @property
    def version(self) -> int:
        """The version of the last checkpoint; 0 before the first."""
        return self.saver.parts.version

    def state(self) -> dict[str, Any]:
        """A copy of the state at the last checkpoint."""
        return self.saver.parts.decode()

    def part(self, name: str, default: Any = None) -> Any:
        """One part of the state at the last checkpoint, a log as a list."""
        return self.saver.parts.decode_part(name, default)

    def append(self, log: str, *items: object) -> None:
        """Add items to the end of a log at the next checkpoint."""
        self.saver.append(log, items)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object] = ()) -> None:
        """Replace `delete` items of a log from `start` on by `items` at the next checkpoint."""
        self.saver.splice(log, start, delete, items)

    def set(self, name: str, value: object) -> None:
        """Give a value part this value at the next checkpoint."""
        self.saver.set(name, value)

    def drop(self, name: str) -> None:
        """Remove a part at the next checkpoint."""
        self.saver.drop(name)

    async def save(
        self,
        state: Mapping[str, object],
        *,
        phase: str = "",
        agent: str = "",
        status: str = "",
        label: str = "",
    ) -> Checkpoint:
        """Store a whole state as a checkpoint; only what differs from the last one is written.

        It replaces edits that were not saved; if it is refused, they are kept.
        """
        about = _about(phase, agent, status, label)
        return self._row_of((await self.saver.checkpoint_whole(state, about))[-1])

    async def checkpoint(
        self, *, phase: str = "", agent: str = "", status: str = "", label: str = ""
    ) -> Checkpoint:
        """Store the edits since the last checkpoint as the next version.

        Its `is_spooled` says whether it is on this machine's disk only, because the store is away.
        After a commit with an unknown outcome, this finds out, and returns the checkpoint that was
        stored after all if nothing else is to be stored.
        """
        about = _about(phase, agent, status, label)
        return self._row_of((await self.saver.checkpoint(about))[-1])

    def _row_of(self, created: Entry) -> Checkpoint:
        row = checkpoints.row_of(created, indexes.facts_of(created))
        return checkpoints.as_spooled(row) if self._writer.is_spooled else row

    async def record(self, name: str, value: object, *, args: object = None) -> codec.Ref:
        """Record a result.

        Until the next checkpoint the returned reference can be appended to a log, or set as a
        value, in place of the result: it is then named there and not stored again.
        """
        names.check(name, what="the name of a step")
        body = codec.encode(value, name=name, limit=self._max_bytes)
        facts = checkpoints.Step(name, codec.canonical_digest(args) if args is not None else b"")
        (entry,) = await self._writer.append(Draft(Kind.STEP_RECORDED, facts, body))
        self._writer.staged.recorded[entry.seq] = body
        return codec.Ref(entry.seq)

    async def begin_effects(self, requests: Sequence[EffectRequest]) -> list[Begun]:
        """Record the intents of effects, all in one commit, before any of them runs.

        Each answer says whether the effect may run now (`fresh`), runs elsewhere (`in_flight`), has
        a result that is given back (`done`), or may have happened (`unknown`).
        """
        # A call after a commit whose answer was lost means the same intents.
        issuing = self._issuing
        if issuing is None or not issuing.matches(requests):
            issuing = EffectIntents(self._context, self.run, requests)
        self._issuing = issuing
        while True:
            try:
                entries = await self._writer.advance_patiently(issuing.plan)
            except ConditionFailed as failed:
                await issuing.look_up(failed)
                continue
            self._issuing = None
            return issuing.answers(entries)

    async def finish_effect(self, begun: Begun, result: object = None) -> None:
        """Record that an effect happened, and its result."""
        body = codec.encode(result, name=f"result of {begun.effect.tool}", limit=self._max_bytes)
        await self._settle(begun, effects.EffectStatus.COMPLETED, body)

    async def abandon_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that an effect did not happen; its key is free again."""
        await self._settle(begun, effects.EffectStatus.NOT_DONE, note=note)

    async def doubt_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that nobody knows whether an effect happened."""
        await self._settle(begun, effects.EffectStatus.UNKNOWN, note=note)

    async def open_waits(
        self, specs: Sequence[WaitSpec], *, mode: str | int = "all", suspend: bool = False
    ) -> str:
        """Open waits as one group, and suspend the run for them if `suspend`. Returns its id.

        Suspending releases the run: the next worker to lease it resumes it.
        """
        if suspend:
            self.saver.check_saved()
        asked = ("open_waits", tuple(specs), mode, suspend)
        run, now = self._writer.run, self._context.now()
        opened = self._again(
            asked,
            lambda: opening(specs, run_id=run.run_id, owner=run.owner, mode=mode, now=now),
        )
        drafts = [opened.draft]
        if suspend:
            drafts.append(Draft(Kind.RUN_WAITING, runs.Suspended(opened.group_id)))
        try:
            await self._writer.append(*drafts, begins=opened.begins)
        except ConditionFailed as failed:
            raise WaitExists(
                "a wait with one of these ids exists already; wait ids are used once"
            ) from failed
        return opened.group_id

    async def suspend(self, group_id: str) -> bool:
        """Suspend the run for a group of waits; False, and the run stays held, if it is closed."""
        self.saver.check_saved()
        group = await self._context.store.waits.group(self.run_id, group_id)
        if group is None:
            raise WaitNotFound(f"run {self.run_id} has no group of waits {group_id!r}")

        def decide(run: RunRow, seq: int) -> WritePlan:
            runs.check_leased(run)
            is_closed = group_id in self._writer.closed_groups
            draft = None if is_closed else waits.suspend(run, group)
            return WritePlan(() if draft is None else (draft,))

        return bool(await self._writer.advance_patiently(decide))

    async def results(self, group_id: str) -> list[waits.Result]:
        """Return how each wait of a group ended, in order of their ids; open ones are left out."""
        return await results_of(self._context, self.run_id, group_id)

    async def release(self, *, delay_seconds: float = 0.0, note: str = "") -> None:
        """Release the run, ready for any worker, at the earliest after the delay."""
        delay = clock.seconds(delay_seconds)
        note = names.check_text(note, what="note")
        released = self._again(
            ("release", delay, note), lambda: runs.Released(self._context.now() + delay, note)
        )
        await self._end_lease(Draft(Kind.RUN_RELEASED, released))

    async def complete(self, result: object = None, *, save: bool = False) -> None:
        """End the run with a result; with `save`, the edits are its last checkpoint."""
        body = codec.encode(result, name="result", limit=self._max_bytes)
        self.result = body
        await self._end_lease(Draft(Kind.RUN_COMPLETED, runs.RunFinished(), body), save=save)

    async def fail(self, error: str, *, details: object = None) -> None:
        """End the run as failed."""
        facts = runs.RunFinished(names.check_text(error, what="error"))
        body = codec.encode(details, name="details", limit=self._max_bytes)
        await self._end_lease(Draft(Kind.RUN_FAILED, facts, body))

    async def block(self, reason: BlockedReason | str, *, note: str = "") -> None:
        """Block the run for an operator."""
        facts = runs.Blocked(runs.reason_of(reason), names.check_text(note, what="note"))
        await self._end_lease(Draft(Kind.RUN_BLOCKED, facts))

    def _again(self, asked: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what was made for the same request before, while its outcome is not known.

        A call after a commit whose answer was lost means the same request.
        """
        if self._writer.is_settled or self._made is None or self._made[0] != asked:
            self._made = (asked, make())
        return self._made[1]

    async def _end_lease(self, ended: Draft, *, save: bool = False) -> None:
        if save:
            self.saver.before_saving()
            if self.saver.has_edits:
                await self.saver.save(About(), then=(ended,))
                return
        else:
            self.saver.check_saved()

        def decide(run: RunRow, seq: int) -> WritePlan:
            runs.check_leased(run)
            runs.check_move(run, ended.kind)
            return WritePlan((ended,))

        await self._writer.advance_patiently(decide)

    def discard(self) -> None:
        """Forget the edits since the last checkpoint."""
        self.saver.discard()

    async def _settle(
        self, begun: Begun, status: effects.EffectStatus, body: bytes = b"", note: str = ""
    ) -> None:
        note = names.check_text(note, what="note")
        draft = effects.settle(begun.effect, status, body=body, note=note)
        try:
            await self._writer.append(draft)
        except ConditionFailed as failed:
            raise IllegalMove(
                f"effect {begun.effect.key} was settled meanwhile; its outcome stays"
            ) from failed


def _about(phase: str, agent: str, status: str, label: str) -> About:
    for text in (phase, agent, status, label):
        if text:
            names.check(text, what="phase, agent, status and label")
    return About(phase, agent, status, label)
