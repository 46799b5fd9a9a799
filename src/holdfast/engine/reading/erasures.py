"""Which bodies were erased on the record: without such an entry a missing body is damage."""

from collections.abc import Sequence

from holdfast.errors import JournalCorrupted
from holdfast.kernel import indexes, journal
from holdfast.kernel.journal import Entry
from holdfast.stores.contract import Store
from holdfast.stores.reads import Linked


async def erased_ranges(store: Store, run_id: str) -> list[tuple[int, int]]:
    """Return the ranges of seqs, from and to, whose bodies are erased by entries of the journal.

    An entry that does not fit the chain is ignored, and so is a range after the entry itself.
    """
    seqs = [entry.seq for entry in await store.journal.erasures(run_id)]
    found = await store.journal.named(run_id, seqs) if seqs else []
    return [erased for linked in found for erased in _erased_by(linked)]


async def erased_among(store: Store, run_id: str, page: Sequence[Entry]) -> frozenset[int]:
    """Return the seqs of those entries of a page whose bodies are missing and were erased."""
    missing = [entry.seq for entry in page if entry.body is None]
    if not missing:
        return frozenset()
    # Read after the page: an erasure and its entry are stored in one commit.
    ranges = await erased_ranges(store, run_id)
    return frozenset(seq for seq in missing if is_among(seq, ranges))


def is_among(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= seq <= last for first, last in ranges)


def _erased_by(linked: Linked) -> list[tuple[int, int]]:
    entry = linked.entry
    if not journal.is_intact(entry, linked.previous or b""):
        return []
    try:
        facts = indexes.facts_of(entry)
    except JournalCorrupted:
        return []
    return [(first, min(last, entry.seq - 1)) for first, last in facts.seqs]
