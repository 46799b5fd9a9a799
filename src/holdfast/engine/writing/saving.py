"""One checkpoint on its way: what it will store, and what follows once it is stored."""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast import ids
from holdfast.engine.writing.head import Plan
from holdfast.engine.writing.staging import Staging
from holdfast.errors import ValueTooLarge
from holdfast.kernel import checkpoints, runs
from holdfast.kernel.checkpoints import Delta
from holdfast.kernel.edits import Edits
from holdfast.kernel.journal import Draft, Entry, Kind, NoFacts
from holdfast.kernel.marks import Mark
from holdfast.kernel.records import Told
from holdfast.kernel.runs import Run
from holdfast.kernel.state import Parts


class About(NamedTuple):
    """What is said about a checkpoint, to find it by."""

    phase: str = ""
    agent: str = ""
    status: str = ""
    label: str = ""
    mark: Mark | None = None
    record: Told | None = None


def check_size(data: bytes, name: str, limit: int) -> None:
    """Raise ValueTooLarge if `data` is more than is stored."""
    if len(data) > limit:
        raise ValueTooLarge(
            f"{name} has {len(data):,} bytes; at most {limit:,} are stored "
            "(setting max_body_bytes). Keep it elsewhere and store where it is"
        )


Then = Callable[[Run, checkpoints.Created], Sequence[Draft]]
"""What follows a checkpoint in the same commit, by the run before it and what is said of it."""


class Saving:
    """The edits of a run as its next version. `plan` may be asked for several times.

    `then` is what follows the checkpoint in the same commit; `check` raises unless the run may be
    advanced. `checkpoint_id` is the id it gets, if that is told in what it stores.
    """

    __slots__ = (
        "_about",
        "_base_body",
        "_check",
        "_checkpoint_id",
        "_delta",
        "_edits",
        "_following",
        "_max_bytes",
        "_parts",
        "_staging",
        "_then",
        "_values_body",
    )

    def __init__(
        self,
        parts: Parts,
        edits: Edits,
        about: About,
        *,
        staging: Staging,
        max_bytes: int,
        then: Sequence[Draft] | Then = (),
        check: Callable[[Run], None] = runs.check_leased,
        checkpoint_id: UUID | None = None,
    ) -> None:
        self._check = check
        self._checkpoint_id = checkpoint_id
        self._then = then
        self._following = 0
        self._parts = parts
        self._staging = staging
        self._edits = edits
        self._about = about
        self._max_bytes = max_bytes
        self._base_body = b""
        self._values_body = b""
        self._delta = Delta({}, {}, [])

    def plan(self, run: Run, seq: int) -> Plan:
        """The entries that store the version, the first of them at `seq`."""
        self._check(run)
        parts, base_seq = self._parts, self._parts.base_seq
        drafts: list[Draft] = []
        base = parts.worthwhile_base()
        self._base_body = b"" if base is None else checkpoints.encode_body(base)
        if base is not None:
            base_seq = seq
            facts = checkpoints.BaseFacts(parts.version)
            drafts.append(Draft(Kind.STATE_BASE, facts, self._base_body))
        self._delta, self._values_body = self._edits.split(seq + len(drafts), self._staging.seq_of)
        if self._values_body:
            drafts.append(Draft(Kind.STATE_VALUES, NoFacts(), self._values_body))
        body = checkpoints.encode_body(self._delta)
        check_size(body, "this checkpoint", self._max_bytes)
        created = checkpoints.Created(
            self._checkpoint_id or ids.uuid7(),
            parts.version + 1,
            parts.version,
            base_seq,
            *self._about,
        )
        drafts.append(Draft(Kind.CHECKPOINT_CREATED, created, body))
        then = self._then(run, created) if callable(self._then) else self._then
        self._following = len(then)
        return Plan([*drafts, *then], self._stored)

    def _stored(self, entries: Sequence[Entry], drafts: Sequence[Draft]) -> None:
        own = len(entries) - self._following
        entries, drafts = entries[:own], drafts[:own]
        parts, last = self._parts, entries[-1]
        if self._base_body:
            parts.begin_at_base(entries[0].seq, len(self._base_body))
        if self._values_body:
            parts.bodies[entries[-2].seq] = self._values_body
        size = len(drafts[-1].body)
        parts.apply(self._delta, seq=last.seq, version=parts.version + 1, size=size)
        self._edits.clear()
        self._staging.forget_stored()
