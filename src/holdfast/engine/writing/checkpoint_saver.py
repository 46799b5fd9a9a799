"""Checkpoints on their way: edits that gather, and the version they become.

`CheckpointSaver` is the one place that stores the edits of a held run. `CheckpointPlan` says which
entries a version is, and what follows once they are stored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec import Raw

from holdfast import codec, ids
from holdfast.engine.writing.run_writer import RunWriter, WritePlan
from holdfast.engine.writing.staged_entries import StagedEntries
from holdfast.errors import HoldfastError, MisuseError, OutcomeUnknown
from holdfast.kernel import checkpoints, runs
from holdfast.kernel.checkpoints import Delta
from holdfast.kernel.edits import Edits
from holdfast.kernel.journal import Draft, Entry, Kind, NoFacts
from holdfast.kernel.marks import Mark
from holdfast.kernel.records import RecordSummary
from holdfast.kernel.runs import RunRow
from holdfast.kernel.state import Parts


class About(NamedTuple):
    """The fields by which a checkpoint can be found."""

    phase: str = ""
    agent: str = ""
    status: str = ""
    label: str = ""
    mark: Mark | None = None
    record: RecordSummary | None = None


Then = Callable[[RunRow, checkpoints.CheckpointCreated], Sequence[Draft]]
"""Returns what follows a checkpoint in the same commit, given the run before it and its facts."""


class CheckpointPlan:
    """The edits of a run as its next version. `plan` may be called several times.

    `then` is what follows the checkpoint in the same commit; `check` raises unless the run may be
    advanced. `checkpoint_id` is the id it gets, if its body contains that id.
    """

    __slots__ = (
        "_about",
        "_base_body",
        "_check",
        "_checkpoint_id",
        "_created",
        "_delta",
        "_edits",
        "_following",
        "_max_bytes",
        "_parts",
        "_staged",
        "_then",
        "_values_body",
    )

    def __init__(
        self,
        parts: Parts,
        edits: Edits,
        about: About,
        *,
        staged: StagedEntries,
        max_bytes: int,
        then: Sequence[Draft] | Then = (),
        check: Callable[[RunRow], None] = runs.check_leased,
        checkpoint_id: UUID | None = None,
    ) -> None:
        self._check = check
        self._checkpoint_id = checkpoint_id
        self._then = then
        self._following = 0
        self._parts = parts
        self._staged = staged
        self._edits = edits
        self._about = about
        self._max_bytes = max_bytes
        self._base_body = b""
        self._values_body = b""
        self._delta = Delta({}, {}, [])

    def plan(self, run: RunRow, seq: int) -> WritePlan:
        """Return the entries that store the version, the first of them at `seq`."""
        self._check(run)
        parts, base_seq = self._parts, self._parts.base_seq
        drafts: list[Draft] = []
        base = parts.worthwhile_base()
        self._base_body = b"" if base is None else checkpoints.encode_body(base)
        if base is not None:
            base_seq = seq
            facts = checkpoints.BaseFacts(parts.version)
            drafts.append(Draft(Kind.STATE_BASE, facts, self._base_body))
        self._delta, self._values_body = self._edits.split(seq + len(drafts), self._staged.seq_of)
        if self._values_body:
            drafts.append(Draft(Kind.STATE_VALUES, NoFacts(), self._values_body))
        body = checkpoints.encode_body(self._delta)
        codec.check_size(body, "this checkpoint", self._max_bytes)
        created = checkpoints.CheckpointCreated(
            self._checkpoint_id or ids.uuid7(),
            parts.version + 1,
            parts.version,
            base_seq,
            *self._about,
        )
        self._created = created
        drafts.append(Draft(Kind.CHECKPOINT_CREATED, created, body))
        then = self._then(run, created) if callable(self._then) else self._then
        self._following = len(then)
        return WritePlan([*drafts, *then], self._stored)

    def _stored(self, entries: Sequence[Entry], drafts: Sequence[Draft]) -> None:
        own = len(entries) - self._following
        entries, drafts = entries[:own], drafts[:own]
        parts, last = self._parts, entries[-1]
        if self._base_body:
            parts.begin_at_base(entries[0].seq, len(self._base_body))
        if self._values_body:
            parts.bodies[entries[-2].seq] = self._values_body
        size = len(drafts[-1].body)
        parts.apply(self._delta, at=last.position, version=parts.version + 1, size=size)
        self._edits.clear()
        self._staged.forget_stored()


class CheckpointSaver:
    """The edits of a run since its last checkpoint, and storing them as the next version.

    `stamp` are encoded values that every version has; they alone make no version.
    `before_saving` turns changes made outside this object into edits, until `discard`.
    """

    def __init__(self, writer: RunWriter, parts: Parts, *, max_bytes: int) -> None:
        self.parts = parts
        """The state at the last checkpoint; only this object changes it."""
        self.stamp: dict[str, Raw] = {}
        self.before_saving: Callable[[], None] = _do_nothing
        self._writer = writer
        self._max_bytes = max_bytes
        self._edits = Edits(parts, max_bytes=max_bytes)
        self._is_saving = False

    @property
    def has_edits(self) -> bool:
        return not self._edits.is_empty

    def append(self, log: str, items: Iterable[object]) -> None:
        self._check_settled()
        self._edits.append(log, items)

    def append_encoded(self, log: str, data: bytes) -> None:
        """Add an item to the end of a log that is encoded already."""
        self._check_settled()
        self._edits.append_encoded(log, data)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object]) -> None:
        self._check_settled()
        self._edits.splice(log, start, delete, items)

    def set(self, name: str, value: object) -> None:
        self._check_settled()
        self._edits.set(name, value)

    def drop(self, name: str) -> None:
        self._check_settled()
        self._edits.drop(name)

    def discard(self) -> None:
        """Forget the edits since the last checkpoint."""
        self._check_settled()
        self._edits.clear()
        self.before_saving = _do_nothing

    def check_saved(self) -> None:
        """Raise MisuseError if there are edits that no checkpoint has stored."""
        if self.has_edits:
            raise MisuseError(
                f"run {self._writer.run.run_id} has edits that no checkpoint has stored; "
                "call checkpoint() first, or discard() them"
            )

    def checkpoint(self, about: About) -> Awaitable[Sequence[Entry]]:
        """Store the edits as the next version. Returns its entries, the last of which names it.

        After a commit with an unknown outcome, this finds out, and returns the checkpoint that was
        stored after all if nothing else is to be stored.
        """
        return self.save(about) if self._writer.is_settled else self._save_unless_stored(about)

    async def _save_unless_stored(self, about: About) -> Sequence[Entry]:
        settled = await self._writer.settle()
        self.before_saving()
        if settled and settled[-1].kind == Kind.CHECKPOINT_CREATED and not self.has_edits:
            return settled
        return await self.save(about)

    async def checkpoint_whole(self, state: Mapping[str, object], about: About) -> Sequence[Entry]:
        """Store a whole state as the next version; only what differs is written.

        It replaces edits that were not saved; if it is refused, they are kept.
        """
        await self._writer.settle()
        edits, kept = Edits(self.parts, max_bytes=self._max_bytes), self._edits
        edits.replace_all(state)
        self._edits = edits
        try:
            return await self.checkpoint(about)
        except OutcomeUnknown:
            raise
        except HoldfastError:
            self._edits = kept
            raise

    async def save(
        self,
        about: About,
        then: Sequence[Draft] | Then = (),
        *,
        checkpoint_id: UUID | None = None,
        is_patient: bool = False,
    ) -> Sequence[Entry]:
        """Commit the edits as a version, and what follows it. Returns the entries.

        Until it is known that they are stored, nothing is added to the edits. With `is_patient` it
        waits for a store that is away, if the settings say so.
        """
        self.before_saving()
        for name, value in self.stamp.items():
            self._edits.put(name, value)
        plan = CheckpointPlan(
            self.parts,
            self._edits,
            about,
            staged=self._writer.staged,
            max_bytes=self._max_bytes,
            then=then,
            checkpoint_id=checkpoint_id,
        )
        advance = self._writer.advance_patiently if is_patient else self._writer.advance
        self._is_saving = True
        try:
            created = await advance(plan.plan)
        except (OutcomeUnknown, asyncio.CancelledError):
            raise
        except BaseException:
            self._is_saving = False
            raise
        self._is_saving = False
        return created

    def _check_settled(self) -> None:
        self._is_saving = self._is_saving and not self._writer.is_settled
        if self._is_saving:
            raise OutcomeUnknown(
                f"it is not known whether the last commit of run {self._writer.run.run_id} is "
                "stored; await checkpoint() to find out before changing the state"
            )


def _do_nothing() -> None:
    pass
