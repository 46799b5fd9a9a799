"""What the database itself says, read with psycopg alone: nothing of Holdfast is used here.

An oracle looks again and again, and reads only what is new; what it has seen once must stay.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import psycopg
import zstandard
from psycopg.rows import namedtuple_row

from holdfast import codec

NEW_ENTRIES = """
SELECT j.tenant, j.run_id, j.seq, j.kind, j.at, j.actor, j.schema, j.encoding, j.key_id, j.facts,
       j.nonce, j.body, j.link, j.proof
FROM journal j LEFT JOIN unnest(%s::text[], %s::bigint[]) AS known (run_id, seq)
     ON known.run_id = j.run_id
WHERE j.seq >= coalesce(known.seq, 0)
ORDER BY j.run_id, j.seq
"""
HEADER = ["tenant", "run_id", "seq", "kind", "at", "actor", "schema", "encoding", "key_id", "facts"]
SETTLED_WAIT = {"WAIT_RESOLVED": "resolved", "WAIT_EXPIRED": "expired"}
SETTLED_EFFECT = {"EFFECT_COMPLETED": "completed", "EFFECT_NOT_DONE": "not_done"}


class Head(NamedTuple):
    """Where a journal ended at the last look."""

    seq: int
    link: bytes


class Oracle:
    """All that is stored, and everything in it that cannot be right, in words."""

    def __init__(self, url: str) -> None:
        self.problems: list[str] = []
        self.entries = 0
        self.markers: dict[str, Counter[str]] = defaultdict(Counter)
        self.settlers: dict[str, str] = {}
        self._url = url
        self._heads: dict[str, Head] = {}
        self._checkpoints: Counter[str] = Counter()
        self._waits: set[str] = set()
        self._wait_ends: dict[str, tuple[str, int]] = {}
        self._effects: dict[str, str] = {}
        self._effect_ends: dict[str, str] = {}

    def look(self) -> list[str]:
        """Read what is new, all of it at one moment; every problem found since the beginning."""
        with psycopg.connect(self._url, connect_timeout=10, row_factory=namedtuple_row) as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            known = [list(self._heads), [head.seq for head in self._heads.values()]]
            found = _by_run(session.execute(NEW_ENTRIES, known))
            self.problems += [
                f"the end of {run_id} is gone" for run_id in self._heads.keys() - found.keys()
            ]
            for run_id, entries in found.items():
                self._read_on(run_id, entries)
            self._compare_rows(session)
        return self.problems

    def missing(self, told: Mapping[str, Iterable[str]]) -> list[str]:
        """The markers that somebody was told are stored in a run's log, and that are not."""
        return [
            f"{marker!r} was acknowledged, and is not in {run_id}"
            for run_id, markers in told.items()
            for marker in markers
            if marker not in self.markers[run_id]
        ]

    def completed_keys(self) -> set[str]:
        """The keys of effects that have happened."""
        ended = self._effect_ends.items()
        return {self._effects[effect_id] for effect_id, end in ended if end == "completed"}

    def _read_on(self, run_id: str, entries: list[Any]) -> None:
        head = self._heads.get(run_id)
        if head is not None:
            first = entries.pop(0)
            if (first.seq, first.link) != head:
                self.problems.append(f"{run_id}: entry {head.seq} was there, and is another now")
        head = head or Head(0, bytes(32))
        for entry in entries:
            if entry.seq != head.seq + 1:
                self.problems.append(f"{run_id}: entry {entry.seq} follows {head.seq}")
            if _link(head.link, entry) != entry.link:
                self.problems.append(f"{run_id}: the link of entry {entry.seq} does not fit")
            self._take(entry)
            head = Head(entry.seq, entry.link)
        self._heads[run_id] = head
        self.entries += len(entries)

    def _take(self, entry: Any) -> None:
        facts = msgspec.msgpack.decode(entry.facts)
        if entry.kind == "CHECKPOINT_CREATED":
            self._checkpoints[entry.run_id] += 1
            for marker in _appended(_body(entry)):
                self.markers[entry.run_id][marker] += 1
                if self.markers[entry.run_id][marker] > 1:
                    self.problems.append(f"{marker!r} is stored twice in {entry.run_id}")
        elif entry.kind == "WAITS_OPENED":
            self._waits |= {wait_id for wait_id, *_ in facts[2]}
        elif entry.kind in (*SETTLED_WAIT, "WAIT_CANCELLED"):
            self._settle_wait(facts[0], SETTLED_WAIT.get(entry.kind, "cancelled"), entry)
        elif entry.kind == "EFFECT_ISSUED":
            self._effects[facts[0].hex()] = facts[1]
        elif entry.kind in SETTLED_EFFECT:
            self._settle_effect(facts[0].hex(), SETTLED_EFFECT[entry.kind], entry)

    def _settle_wait(self, wait_id: str, status: str, entry: Any) -> None:
        if wait_id in self._wait_ends:
            self.problems.append(f"wait {wait_id} was settled twice, again by entry {entry.seq}")
        self._wait_ends[wait_id] = (status, entry.seq)
        self.settlers[wait_id] = entry.actor

    def _settle_effect(self, effect_id: str, status: str, entry: Any) -> None:
        if effect_id in self._effect_ends:
            self.problems.append(f"effect {effect_id} got two outcomes, one by entry {entry.seq}")
        self._effect_ends[effect_id] = status

    def _compare_rows(self, session: psycopg.Connection[Any]) -> None:
        """The indexes against the entries read: the same things, in the same state."""
        rows = session.execute("SELECT run_id, count(*) FROM checkpoints GROUP BY 1").fetchall()
        self._expect("checkpoints", dict(self._checkpoints), dict(rows))
        rows = session.execute("SELECT wait_id, status, result_seq FROM waits").fetchall()
        self._expect("waits", self._waits, {row.wait_id for row in rows})
        ended = {row.wait_id: (row.status, row.result_seq) for row in rows}
        self._expect("ends of waits", self._wait_ends, {w: ended.get(w) for w in self._wait_ends})
        rows = session.execute("SELECT effect_id, key, status FROM effects").fetchall()
        self._expect("effects", self._effects, {row.effect_id.hex: row.key for row in rows})
        taken = Counter(row.key for row in rows if row.status != "not_done")
        self.problems += [f"key {key} is taken {n} times" for key, n in taken.items() if n > 1]
        ended = {row.effect_id.hex: row.status for row in rows if row.status in _ENDS}
        self._expect("ends of effects", self._effect_ends, ended)

    def _expect(self, what: str, journaled: Any, stored: Any) -> None:
        if journaled != stored:
            self.problems.append(f"{what}: {_difference(journaled, stored)}")


_ENDS = frozenset(SETTLED_EFFECT.values())


def _by_run(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.run_id].append(row)
    return found


def _link(previous: bytes, entry: Any) -> bytes:
    names = HEADER if entry.proof is None else [*HEADER, "proof"]
    header = msgspec.msgpack.encode([getattr(entry, name) for name in names])
    digest = hashlib.sha256(entry.nonce + entry.body).digest()
    return hashlib.sha256(previous + header + digest).digest()


def _body(entry: Any) -> Any:
    data = entry.body
    if entry.encoding == "zstd1":
        words = zstandard.ZstdCompressionDict(codec.WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        data = zstandard.ZstdDecompressor(dict_data=words).decompress(data)
    if entry.encoding == "zstd":
        data = zstandard.ZstdDecompressor().decompress(data)
    return msgspec.msgpack.decode(data)


def _appended(delta: list[Any]) -> Iterator[str]:
    """The items that a checkpoint appends to logs; the tests here do nothing else to them."""
    for splices in delta[0].values():
        for _, deleted, items in splices:
            assert deleted == 0, "the tests only append"
            yield from items


def _difference(journaled: Any, stored: Any) -> str:
    """What two sets or dicts tell otherwise, a little of it."""
    is_set = isinstance(journaled, set)
    ours = {(key, None) for key in journaled} if is_set else set(journaled.items())
    theirs = {(key, None) for key in stored} if is_set else set(stored.items())
    only_journal, only_rows = sorted(ours - theirs)[:3], sorted(theirs - ours, key=str)[:3]
    return f"the journal says {only_journal}, the rows say {only_rows}"
