"""Drafts into entries of a chain, with what they do to the indexes: the same for every writer."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast import ids
from holdfast.kernel import indexes, journal, peers, proofs
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
    for draft in drafts:
        by = origin._replace(actor=draft.actor) if draft.actor else origin
        changed = indexes.fold_run(run, journal.next_header(after, draft, by), draft.facts)
        proof = proofs.proof_of(origin.run_id, draft.facts, None if changed is run else changed)
        entry = journal.seal(after, draft, by, ids.nonce(), proof)
        owed = peers.owed(run, entry, draft.facts)
        run = changed
        changes += [*indexes.changes_of(entry, draft.facts), *owed]
        entries.append(entry)
        after = entry.position
    return SealedEntries(entries, changes, run, after)
