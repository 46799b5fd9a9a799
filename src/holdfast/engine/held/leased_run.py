"""A run that this worker holds: the one place from which its journal is advanced.

Edits gather in memory; `checkpoint` stores them as one version. Every method that awaits commits at
most once, and what it returns is on disk.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from holdfast import clock, codec, names
from holdfast.engine.budgets.purse import Purse
from holdfast.engine.context import Context
from holdfast.engine.effects import Begun, EffectRequest, Issuing
from holdfast.engine.handoffs import HeldHandoffs
from holdfast.engine.inbox import Inbox
from holdfast.engine.waits import WaitSpec, opening, results_of
from holdfast.engine.writing.commits import Beginning
from holdfast.engine.writing.head import ConditionFailed, Decide, Head, Plan
from holdfast.engine.writing.outlasting import outlast
from holdfast.engine.writing.saving import About, Saving, Then, check_size
from holdfast.engine.writing.staging import Stage, Staging
from holdfast.errors import (
    HoldfastError,
    IllegalMove,
    MisuseError,
    OutcomeUnknown,
    WaitExists,
    WaitNotFound,
)
from holdfast.kernel import checkpoints, effects, indexes, runs, waits
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.edits import Edits
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.runs import BlockedReason, Run
from holdfast.kernel.state import Parts

T = TypeVar("T")


class LeasedRun:
    """A run and the lease on it. Use it from one task at a time."""

    def __init__(self, context: Context, head: Head, parts: Parts) -> None:
        self._context = context
        self._head = head
        self._parts = parts
        self._max_bytes = context.settings.max_body_bytes
        self._edits = Edits(parts, max_bytes=self._max_bytes)
        self._staging = Staging(parts.recorded)
        self.stage = Stage(self._staging, head, self._encode, self._advance_leased)
        self.inbox = Inbox(
            context, head, save=self._save, advance=self._advance, saving=self._saving
        )
        self.handoffs = HeldHandoffs(context, head, save=self._save, saving=self._saving)
        self.stamp: dict[str, object] = {}
        """Values that every version which is stored has; they alone make no version."""
        self.before_saving: Callable[[], None] = _nothing
        """Makes edits of what was changed without this object being told; until discard()."""
        self.purse = Purse(context, head, stage=self.stage, advance=self._advance)
        self._is_saving = False
        self._issuing: Issuing | None = None
        self._made: tuple[tuple[Any, ...], Any] | None = None

    @property
    def run(self) -> Run:
        """The run's row, as far as this worker knows."""
        return self._head.run

    @property
    def run_id(self) -> str:
        return self._head.run.run_id

    @property
    def is_spooled(self) -> bool:
        """Whether the last commits are on this machine's disk only, until the store is back."""
        return self._head.is_spooled

    @property
    def version(self) -> int:
        """The version of the last checkpoint; 0 before the first."""
        return self._parts.version

    def state(self) -> dict[str, Any]:
        """A copy of the state at the last checkpoint."""
        return self._parts.decode()

    def part(self, name: str, default: Any = None) -> Any:
        """One part of the state at the last checkpoint, a log as a list."""
        return self._parts.decode_part(name, default)

    def append(self, log: str, *items: object) -> None:
        """Add items to the end of a log at the next checkpoint."""
        self._check_settled()
        self._edits.append(log, items)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object] = ()) -> None:
        """Replace `delete` items of a log from `start` on by `items` at the next checkpoint."""
        self._check_settled()
        self._edits.splice(log, start, delete, items)

    def set(self, name: str, value: object) -> None:
        """Give a value part this value at the next checkpoint."""
        self._check_settled()
        self._edits.set(name, value)

    def drop(self, name: str) -> None:
        """Remove a part at the next checkpoint."""
        self._check_settled()
        self._edits.drop(name)

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

        It takes the place of edits that were not saved; if it is refused, they are as they were.
        """
        await self._head.settle()
        edits, staged = Edits(self._parts, max_bytes=self._max_bytes), self._edits
        edits.replace_all(state)
        self._edits = edits
        try:
            return await self.checkpoint(phase=phase, agent=agent, status=status, label=label)
        except OutcomeUnknown:
            raise
        except HoldfastError:
            self._edits = staged
            raise

    async def checkpoint(
        self, *, phase: str = "", agent: str = "", status: str = "", label: str = ""
    ) -> Checkpoint:
        """Store the edits since the last checkpoint as the next version.

        Its `is_spooled` tells whether it is on this machine's disk only, because the store is away.
        After a commit whose outcome was not known, this finds out, and gives back the checkpoint
        that was stored after all if there is nothing else to store.
        """
        about = About(phase, agent, status, label)
        for text in about:
            if text:
                names.check(text, what="phase, agent, status and label")
        if not self._head.is_settled:
            settled = await self._head.settle()
            self.before_saving()
            if settled and settled[-1].kind == Kind.CHECKPOINT_CREATED and self._edits.is_empty:
                return self._row_of(settled[-1])
        created = await self._save(self._saving(about))
        return self._row_of(created[-1])

    def _row_of(self, created: Entry) -> Checkpoint:
        row = checkpoints.row_of(created, indexes.facts_of(created))
        return checkpoints.as_spooled(row) if self.is_spooled else row

    async def record(self, name: str, value: object, *, args: object = None) -> codec.Ref:
        """Put a result on the record.

        Until the next checkpoint the answer can be appended to a log, or set as a value, in place
        of the result: it is then named there and not stored again.
        """
        names.check(name, what="the name of a step")
        body = self._encode(value, name)
        facts = checkpoints.Step(name, codec.canonical_digest(args) if args is not None else b"")
        (entry,) = await self._advance_leased(Draft(Kind.STEP_RECORDED, facts, body))
        self._parts.recorded[entry.seq] = body
        return codec.Ref(entry.seq)

    async def begin_effects(self, requests: Sequence[EffectRequest]) -> list[Begun]:
        """Put the intent of effects on record, all in one commit, before any of them runs.

        Each answer says whether the effect may run now (`fresh`), runs elsewhere (`in_flight`), has
        a result that is given back (`done`), or may have happened (`unknown`).
        """
        # Asked again after a commit nobody saw the answer of, the same intents are meant.
        issuing = self._issuing
        if issuing is None or not issuing.matches(requests):
            issuing = Issuing(self._context, self.run, requests)
        self._issuing = issuing
        while True:
            try:
                entries = await self._advance(issuing.plan)
            except ConditionFailed as failed:
                await issuing.look_up(failed)
                continue
            self._issuing = None
            return issuing.answers(entries)

    async def finish_effect(self, begun: Begun, result: object = None) -> None:
        """Record that an effect happened, and its result."""
        body = self._encode(result, f"result of {begun.effect.tool}")
        await self._settle(begun, effects.Status.COMPLETED, body)

    async def abandon_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that an effect did not happen; its key is free again."""
        await self._settle(begun, effects.Status.NOT_DONE, note=note)

    async def doubt_effect(self, begun: Begun, *, note: str = "") -> None:
        """Record that nobody knows whether an effect happened."""
        await self._settle(begun, effects.Status.UNKNOWN, note=note)

    async def open_waits(
        self, specs: Sequence[WaitSpec], *, mode: str | int = "all", suspend: bool = False
    ) -> str:
        """Open waits as one group, and leave the run to them if `suspend`; the group's id.

        After suspending the run is not held any more: whoever leases it next goes on.
        """
        if suspend:
            self._check_saved()
        asked = ("open_waits", tuple(specs), mode, suspend)
        run, now = self._head.run, self._context.now()
        opened = self._again(
            asked,
            lambda: opening(specs, run_id=run.run_id, owner=run.owner, mode=mode, now=now),
        )
        drafts = [opened.draft]
        if suspend:
            drafts.append(Draft(Kind.RUN_WAITING, runs.Suspended(opened.group_id)))
        try:
            await self._advance_leased(*drafts, begins=opened.begins)
        except ConditionFailed as failed:
            raise WaitExists(
                "a wait with one of these ids exists already; wait ids are used once"
            ) from failed
        return opened.group_id

    async def suspend(self, group_id: str) -> bool:
        """Leave the run to a group of waits; False, and the run stays held, if it is closed."""
        self._check_saved()
        group = await self._context.store.waits.group(self.run_id, group_id)
        if group is None:
            raise WaitNotFound(f"run {self.run_id} has no group of waits {group_id!r}")

        def decide(run: Run, seq: int) -> Plan:
            runs.check_leased(run)
            is_closed = group_id in self._head.closed_groups
            draft = None if is_closed else waits.suspend(run, group)
            return Plan(() if draft is None else (draft,))

        return bool(await self._advance(decide))

    async def results(self, group_id: str) -> list[waits.Result]:
        """How each wait of a group ended, in the order of their ids; open ones are left out."""
        return await results_of(self._context, self.run_id, group_id)

    async def release(self, *, delay_seconds: float = 0.0, note: str = "") -> None:
        """Give the run back, ready for any worker, at the earliest after the delay."""
        delay = clock.seconds(delay_seconds)
        note = names.check_text(note, what="note")
        released = self._again(
            ("release", delay, note), lambda: runs.Released(self._context.now() + delay, note)
        )
        await self._end_lease(Draft(Kind.RUN_RELEASED, released))

    async def complete(self, result: object = None, *, save: bool = False) -> None:
        """End the run with a result; with `save`, the edits are its last checkpoint."""
        ended = Draft(Kind.RUN_COMPLETED, runs.Ended(), self._encode(result, "result"))
        await self._end_lease(ended, save=save)

    async def fail(self, error: str, *, details: object = None) -> None:
        """End the run as failed."""
        facts = runs.Ended(names.check_text(error, what="error"))
        body = self._encode(details, "details")
        await self._end_lease(Draft(Kind.RUN_FAILED, facts, body))

    async def block(self, reason: BlockedReason | str, *, note: str = "") -> None:
        """Hand the run to an operator."""
        facts = runs.Blocked(runs.reason_of(reason), names.check_text(note, what="note"))
        await self._end_lease(Draft(Kind.RUN_BLOCKED, facts))

    def _again(self, asked: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What was made for the same request before, as long as its outcome is not known.

        Asked again after a commit nobody saw the answer of, the same is meant.
        """
        if self._head.is_settled or self._made is None or self._made[0] != asked:
            self._made = (asked, make())
        return self._made[1]

    def _check_saved(self) -> None:
        if not self._edits.is_empty:
            raise MisuseError(
                f"run {self.run_id} has edits that no checkpoint has stored; "
                "call checkpoint() first, or discard() them"
            )

    def _check_settled(self) -> None:
        self._is_saving = self._is_saving and not self._head.is_settled
        if self._is_saving:
            raise OutcomeUnknown(
                f"it is not known whether the last commit of run {self.run_id} is stored; await "
                "checkpoint() to find out before changing the state"
            )

    async def _advance_leased(
        self, *drafts: Draft, begins: Sequence[Beginning] = ()
    ) -> Sequence[Entry]:
        def decide(run: Run, seq: int) -> Plan:
            runs.check_leased(run)
            return Plan(drafts, begins=begins)

        return await self._advance(decide)

    async def _advance(self, decide: Decide) -> Sequence[Entry]:
        """The same, however long the store is away, if the settings say so."""
        return await outlast(self._context, lambda: self._advance_once(decide))

    async def _advance_once(self, decide: Decide) -> Sequence[Entry]:
        """Commit what `decide` asks for, and what is staged before it; the entries it asked for."""
        both = self._staging.before(decide)
        return both.own(await self._head.advance(both))

    async def _save(self, saving: Saving) -> Sequence[Entry]:
        """Commit edits. Until it is known that they are stored, nothing is added to them."""
        self._is_saving = True
        try:
            created = await self._advance_once(saving.plan)
        except (OutcomeUnknown, asyncio.CancelledError):
            raise
        except BaseException:
            self._is_saving = False
            raise
        self._is_saving = False
        return created

    def _saving(
        self,
        about: About,
        then: Sequence[Draft] | Then = (),
        checkpoint_id: UUID | None = None,
    ) -> Saving:
        self.before_saving()
        for name, value in self.stamp.items():
            self._edits.set(name, value)
        return Saving(
            self._parts,
            self._edits,
            about,
            staging=self._staging,
            max_bytes=self._max_bytes,
            then=then,
            checkpoint_id=checkpoint_id,
        )

    async def _end_lease(self, ended: Draft, *, save: bool = False) -> None:
        if save:
            self.before_saving()
        if save and not self._edits.is_empty:
            await self._save(self._saving(About(), then=(ended,)))
            return
        self._check_saved()

        def decide(run: Run, seq: int) -> Plan:
            runs.check_leased(run)
            runs.check_move(run, ended.kind)
            return Plan((ended,))

        await self._advance(decide)

    def discard(self) -> None:
        """Forget the edits since the last checkpoint."""
        self._check_settled()
        self._edits.clear()
        self.before_saving = _nothing

    async def _settle(
        self, begun: Begun, status: effects.Status, body: bytes = b"", note: str = ""
    ) -> None:
        note = names.check_text(note, what="note")
        draft = effects.settle(begun.effect, status, body=body, note=note)
        try:
            await self._advance_leased(draft)
        except ConditionFailed as failed:
            raise IllegalMove(
                f"effect {begun.effect.key} was settled meanwhile; its outcome stays"
            ) from failed

    def _encode(self, value: object, name: str) -> bytes:
        data = codec.encode(value, name=name)
        check_size(data, name, self._max_bytes)
        return data


def state_of(held: LeasedRun) -> Parts:
    """The state of a run at its last checkpoint. Only `held` changes it, as long as it is used."""
    return held._parts  # pyright: ignore[reportPrivateUsage] - its own module


def _nothing() -> None:
    pass
