"""Drafts into entries of a chain, with what they do to the indexes: the same for every writer."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast import ids
from holdfast.kernel import indexes, journal, peers, proofs, runs
from holdfast.kernel.indexes import Change
from holdfast.kernel.journal import Draft, Entry, Origin, Position
from holdfast.kernel.runs import RunRow


class SealedEntries(NamedTuple):
    """Entries that continue a chain, and the run and the indexes after them."""

    entries: list[Entry]
    changes: list[Change]
    run: RunRow | None
    position: Position


def seal_all(
    run: RunRow | None, after: Position, drafts: Sequence[Draft], origin: Origin
) -> SealedEntries:
    """Seal drafts one after another; `run` is as it was at `after`, None before its first entry."""
    entries: list[Entry] = []
    changes: list[Change] = []
    for draft, nonce in zip(drafts, ids.nonces(len(drafts)), strict=True):
        kind, facts, before, proof = draft.kind, draft.facts, run, None
        # Most entries leave the run as it is, prove nothing, and make it owe nothing.
        if run is None or kind in runs.CHANGING or run.schema < journal.SCHEMA:
            run = indexes.fold_run(run, journal.next_header(after, draft, origin), facts)
        if run is not before or kind in proofs.PROVING:
            proof = proofs.proof_of(origin.run_id, facts, None if run is before else run)
        entry = journal.seal(after, draft, origin, nonce, proof)
        if (find := indexes.CHANGES.get(type(facts))) is not None:
            changes += find(entry, facts)
        if before is not None and (before.reply_to or kind in peers.OWING):
            changes += peers.owed(before, entry, facts)
        entries.append(entry)
        after = Position(entry.seq, entry.link)
    return SealedEntries(entries, changes, run, after)
