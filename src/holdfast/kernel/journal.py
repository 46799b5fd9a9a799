"""The journal's rules: entries, their digests and links, and what a whole chain looks like.

    digest = SHA-256(nonce ‖ stored body)
    link   = SHA-256(previous link ‖ header ‖ digest)

The header is every other column as a MessagePack array in fixed order; it ends with `proof` if the
entry has one. Both are over stored bytes, so a chain verifies without keys; a digest is stored only
in place of a body that was erased on the record, so it verifies without that body as well.
"""

import hashlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from holdfast import codec
from holdfast.errors import BodyErased, JournalCorrupted, SchemaMismatch

SCHEMA: Final = 1
"""The newest form of entries that this version writes and understands."""
GENESIS: Final = bytes(32)


class Kind(StrEnum):
    """What an entry says happened."""

    RUN_CREATED = "RUN_CREATED"
    RUN_LEASED = "RUN_LEASED"  # a worker may advance the run; fences every earlier lease
    RUN_RELEASED = "RUN_RELEASED"  # the worker gave it back, ready for another
    RUN_WAITING = "RUN_WAITING"  # the worker left; a group of waits will end it
    RUN_BLOCKED = "RUN_BLOCKED"  # an operator must act
    RUN_UNBLOCKED = "RUN_UNBLOCKED"
    RUN_COMPLETED = "RUN_COMPLETED"
    RUN_FAILED = "RUN_FAILED"
    RUN_CANCELLED = "RUN_CANCELLED"
    RUN_REWOUND = "RUN_REWOUND"  # it resumes from an earlier version; fences every earlier lease
    LEASE_EXPIRED = "LEASE_EXPIRED"  # the worker did not beat in time
    CHECKPOINT_CREATED = "CHECKPOINT_CREATED"
    CHECKPOINT_CORRUPTED = "CHECKPOINT_CORRUPTED"  # a read found damage and reported it
    CHECKPOINT_DELETED = "CHECKPOINT_DELETED"  # a version is not to be loaded any more
    CHECKPOINT_UPDATED = "CHECKPOINT_UPDATED"  # its record has a new revision
    CHECKPOINT_FINALIZED = "CHECKPOINT_FINALIZED"  # it is not to be changed any more
    CHECKPOINT_LINKED = "CHECKPOINT_LINKED"  # it continues another one
    CHECKPOINTS_PRUNED = "CHECKPOINTS_PRUNED"  # the same for many versions at once
    WRITES_RECORDED = "WRITES_RECORDED"  # what a framework's task wrote between two checkpoints
    STATE_VALUES = "STATE_VALUES"  # values too large to sit beside log items
    STATE_BASE = "STATE_BASE"  # a shorter way to load the state of the checkpoint before it
    STEP_RECORDED = "STEP_RECORDED"  # a result that must not be computed or paid for twice
    VERSIONS_RECORDED = "VERSIONS_RECORDED"  # what the agent is made of, from here on
    EFFECT_ISSUED = "EFFECT_ISSUED"
    EFFECT_COMPLETED = "EFFECT_COMPLETED"
    EFFECT_NOT_DONE = "EFFECT_NOT_DONE"
    EFFECT_UNKNOWN = "EFFECT_UNKNOWN"
    WAITS_OPENED = "WAITS_OPENED"
    WAIT_RESOLVED = "WAIT_RESOLVED"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    WAIT_CANCELLED = "WAIT_CANCELLED"
    GROUP_CLOSED = "GROUP_CLOSED"  # fixes the result set of waits that were opened together
    SIGNAL_RECEIVED = "SIGNAL_RECEIVED"  # somebody outside sent the run a named value
    SIGNAL_TAKEN = "SIGNAL_TAKEN"  # the run has dealt with it, and maybe answered
    BUDGET_SET = "BUDGET_SET"  # what the run, and those that descend from it, may cost from now on
    BUDGET_RESERVED = "BUDGET_RESERVED"  # a call that is paid for begins
    BUDGET_WARNED = "BUDGET_WARNED"  # a limit is nearly reached
    COST_RECORDED = "COST_RECORDED"  # what a call cost
    HANDOFF_REQUESTED = "HANDOFF_REQUESTED"  # it is to be handed over at the end of its turn
    AGENT_HANDOFF = "AGENT_HANDOFF"  # a context ends here; fences every earlier lease
    HANDOFF_RECEIVED = "HANDOFF_RECEIVED"  # the orchestrator has the handoff
    HANDOFF_VERIFIED = "HANDOFF_VERIFIED"  # its checkpoint is what the giver stored
    HANDOFF_SELECTED = "HANDOFF_SELECTED"  # which agent continues, and why
    HANDOFF_ASSIGNED = "HANDOFF_ASSIGNED"  # the run belongs to the chosen agent
    HANDOFF_ACKNOWLEDGED = "HANDOFF_ACKNOWLEDGED"  # the receiver has read the checkpoint
    HANDOFF_REVERTED = "HANDOFF_REVERTED"  # not acknowledged; fences every earlier lease
    RECOVERY_INITIATED = "RECOVERY_INITIATED"  # it was lost or broke; it resumes from a checkpoint
    RECOVERY_COMPLETED = "RECOVERY_COMPLETED"  # a worker resumed from that checkpoint
    RECOVERY_FAILED = "RECOVERY_FAILED"  # an operator must act
    BODIES_ERASED = "BODIES_ERASED"  # content that is gone for good; the chain stays whole


class Position(NamedTuple):
    """Where a run's journal ends: the seq and link of its last entry."""

    seq: int
    link: bytes


ORIGIN: Final = Position(0, GENESIS)


class NoFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of an entry that has none."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An entry as a decision asks for it, before it has a place in the chain.

    `facts` is what the indexes need, kept in the clear; `body` is content (MessagePack).
    """

    kind: Kind
    facts: msgspec.Struct
    body: bytes = b""


class Header(msgspec.Struct, frozen=True, gc=False):
    """An entry without its body."""

    tenant: str
    run_id: str
    seq: int
    kind: str
    at: int
    actor: str
    schema: int
    encoding: str
    key_id: str
    facts: bytes


class Entry(Header, frozen=True, gc=False):
    """One row of the journal, never changed once stored.

    `proof` is a digest that index rows are compared with; see `kernel.proofs`.
    """

    nonce: bytes
    body: bytes | None
    erased_digest: bytes | None
    link: bytes
    proof: bytes | None = None

    @property
    def digest(self) -> bytes | None:
        """The digest of the body; of an erased one, what it was; None if it is missing."""
        return self.erased_digest if self.body is None else digest_of(self.nonce, self.body)

    @property
    def position(self) -> Position:
        return Position(self.seq, self.link)


_header: Final = msgspec.msgpack.Encoder(uuid_format="bytes")


def header_of(entry: Entry) -> bytes:
    header = (
        entry.tenant,
        entry.run_id,
        entry.seq,
        entry.kind,
        entry.at,
        entry.actor,
        entry.schema,
        entry.encoding,
        entry.key_id,
        entry.facts,
    )
    return _header.encode(header if entry.proof is None else (*header, entry.proof))


def digest_of(nonce: bytes, body: bytes) -> bytes:
    return hashlib.sha256(nonce + body).digest()


def link_of(previous: bytes, header: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(previous + header + digest).digest()


class Origin(NamedTuple):
    """Whose entries they are, who writes them, and when."""

    tenant: str
    run_id: str
    actor: str
    at: int


def seal(
    after: Position, draft: Draft, origin: Origin, nonce: bytes, proof: bytes | None = None
) -> Entry:
    """The entry that continues the chain at `after`."""
    encoding, body = codec.pack(draft.body)
    digest = digest_of(nonce, body)
    header = (
        origin.tenant,
        origin.run_id,
        after.seq + 1,
        draft.kind.value,
        origin.at,
        origin.actor,
        SCHEMA,
        encoding,
        "",
        _header.encode(draft.facts),
    )
    hashed = header if proof is None else (*header, proof)
    link = link_of(after.link, _header.encode(hashed), digest)
    return Entry(*header, nonce, body, None, link, proof)


def next_header(after: Position, draft: Draft, origin: Origin) -> Header:
    """Return what is known of the entry that continues the chain at `after`, before it is sealed.

    Facts and encoding are left empty.
    """
    kind = draft.kind.value
    return Header(
        origin.tenant,
        origin.run_id,
        after.seq + 1,
        kind,
        origin.at,
        origin.actor,
        SCHEMA,
        "",
        "",
        b"",
    )


class Flaw(StrEnum):
    """What kind of thing is wrong; decisions go by this."""

    MISSING = "missing"  # entries before this one are not there: the chain is broken
    CHANGED = "changed"  # it, or the one before it, is not what was written
    EMPTY = "empty"  # its body is gone, and no erasure is on the record
    SENSELESS = "senseless"  # it does not follow from those before it, or cannot be read
    WRONG_ROW = "wrong_row"  # an index row says something else


class Problem(msgspec.Struct, frozen=True, gc=False):
    """One thing that is wrong with a stored run: its kind, and in words."""

    run_id: str
    seq: int
    flaw: Flaw
    what: str


def verify(
    entries: Iterable[Entry], *, after: Position = ORIGIN, erased: frozenset[int] = frozenset()
) -> Iterator[Problem]:
    """Everything that is wrong with a stretch of a journal that begins after `after`.

    A gap is named once; the chain is then taken up again from the stored link, so that one damaged
    entry does not hide the next.
    """
    for entry in entries:
        if entry.seq != after.seq + 1:
            what = f"follows entry {after.seq}: entries are missing"
            yield Problem(entry.run_id, entry.seq, Flaw.MISSING, what)
        if entry.body is None and entry.seq not in erased:
            what = "has no body, and no erasure is on the record"
            yield Problem(entry.run_id, entry.seq, Flaw.EMPTY, what)
        elif not is_intact(entry, after.link):
            what = "does not fit the chain: it or the one before was changed"
            yield Problem(entry.run_id, entry.seq, Flaw.CHANGED, what)
        after = entry.position


def is_intact(entry: Entry, previous_link: bytes) -> bool:
    """Whether an entry is what its link says: its body too, unless that was erased."""
    try:
        digest = entry.digest
        return digest is not None and link_of(previous_link, header_of(entry), digest) == entry.link
    except TypeError:
        return False  # a column holds something that was never written there


def corrupted(problem: Problem) -> JournalCorrupted:
    """Return the error for a problem."""
    return JournalCorrupted(
        f"entry {problem.seq} of run {problem.run_id} {problem.what}; "
        "`holdfast audit verify` names every damaged entry"
    )


def check_understood(entry: Header) -> None:
    """Raise SchemaMismatch for an entry of a newer Holdfast."""
    if entry.schema > SCHEMA:
        raise SchemaMismatch(
            f"entry {entry.seq} of run {entry.run_id} has schema {entry.schema}, and this version "
            f"of Holdfast knows {SCHEMA}: a newer one wrote it. Upgrade Holdfast here"
        )


def body_of(entry: Entry) -> bytes:
    """The body as it was before it was packed for storage; raises BodyErased if it is gone."""
    check_understood(entry)
    if entry.body is None:
        raise BodyErased(
            f"what entry {entry.seq} of run {entry.run_id} held was erased; `holdfast journal show "
            f"{entry.run_id}` tells by whom, and `holdfast audit verify` whether that is on record"
        )
    return codec.unpack(entry.encoding, entry.body)
