"""Deciding for outside writers of one run, one after another, on one snapshot of its rows."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.kernel import runs
from holdfast.kernel.indexes import Change, CountGroup
from holdfast.kernel.journal import Entry, Origin
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import (
    ClaimWait,
    ExtendWait,
    Late,
    LostWorker,
    RunHead,
    Snapshot,
    Touch,
)
from holdfast.stores.entry_sealer import seal_all


class Deciding:
    """Collects what late-bound decisions ask for; each sees what the ones before it did."""

    def __init__(self, snapshot: Snapshot, run_id: str) -> None:
        self._snapshot = snapshot
        self._run_id = run_id
        self._run_before = snapshot.indexes.run
        self._changes: list[Change] = []
        self.entries: list[Entry] = []
        self.touches: list[Touch] = []
        self.lost: LostWorker | None = None

    def decide(self, late: Late) -> Any:
        """The answer to one write; an error of the domain is an answer too."""
        snapshot = self._snapshot
        before = snapshot.indexes.run
        try:
            if before is not None:
                runs.check_understood(before)
            decision = late.decide(snapshot)
        except HoldfastError as error:
            return error
        origin = Origin(late.tenant, self._run_id, late.actor, snapshot.now)
        sealed = seal_all(before, snapshot.position, decision.drafts, origin)
        snapshot.indexes.run = sealed.run
        snapshot.indexes.apply(sealed.changes)
        snapshot.position = sealed.position
        self.entries += sealed.entries
        self._changes += sealed.changes
        self.touches += decision.touches
        self.lost = self.lost or decision.if_unmoved
        for touch in decision.touches:
            self._show(touch)
        if not decision.answers_head:
            return decision.answer
        assert sealed.run is not None, "a run without entries has no head"
        return RunHead(sealed.run, sealed.position, snapshot.newest, tuple(sealed.entries))

    def _show(self, touch: Touch) -> None:
        """Let the decisions that follow see what a touch does to a wait."""
        waits = self._snapshot.indexes.waits
        match touch:
            case ClaimWait(wait_id, by, until):
                shown = {"claimed_by": by, "claimed_until": until}
            case ExtendWait(wait_id, deadline, at, progress):
                said = progress or waits[wait_id].progress
                shown = {"deadline": deadline, "progress_at": at, "progress": said}
            case _:
                return
        waits[wait_id] = msgspec.structs.replace(waits[wait_id], **shown)

    @property
    def changed_run(self) -> RunRow | None:
        run = self._snapshot.indexes.run
        return None if run == self._run_before else run

    def changes(self) -> Sequence[Change]:
        """The changes in order, the counts of each group added up into one."""
        counts: dict[str, CountGroup] = {}
        others: list[Change] = []
        for change in self._changes:
            if isinstance(change, CountGroup):
                before = counts.get(change.group_id, CountGroup(change.group_id, 0, 0))
                counts[change.group_id] = CountGroup(
                    change.group_id,
                    before.resolved + change.resolved,
                    before.failed + change.failed,
                )
            else:
                others.append(change)
        return [*counts.values(), *others]
