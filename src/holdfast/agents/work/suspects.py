"""Suspects: runs that may be what their workers died of. Each is tried beside proven runs only.

If the process dies meanwhile, it is known of which run: one that uses up the memory is found, and
those beside it are not held responsible. A run has proven itself here when it has come further than
the pass before it, or has lived for a lease. A suspect must live twice as long after each further
loss: else a run that kills its process late would always have proven itself before.
"""

import asyncio
from collections.abc import Collection

from holdfast.agents.work.executor import Pass
from holdfast.engine.leases.trials import Trials
from holdfast.kernel import leases
from holdfast.kernel.runs import RunRow


class SuspectLane:
    """Decides which runs may begin in this process, beside those that are under way."""

    def __init__(
        self, under_way: Collection[Pass], *, trial_seconds: float, trials: Trials
    ) -> None:
        self._under_way = under_way
        self._trials = trials
        self._trial_seconds = trial_seconds
        self.trial: Pass | None = None
        """The last pass over a suspect."""
        self.is_reserved = False
        """Whether a suspect is just being taken: nothing else begins meanwhile."""

    @property
    def is_clear(self) -> bool:
        """Whether every run under way has proven itself, so that a suspect may begin."""
        return all(map(self._is_proven, self._under_way))

    @property
    def is_closed(self) -> bool:
        """Whether a suspect is being tried, so that no other run may begin."""
        trial = self.trial
        is_tried = trial is not None and trial in self._under_way and not self._is_proven(trial)
        return (
            self.is_reserved or is_tried or bool(self._trials.suspect and self._trials.is_of_next)
        )

    def may_begin(self, run: RunRow) -> bool:
        """Whether a run may begin now."""
        return not self.is_closed and (not leases.is_suspect(run) or self.is_clear)

    def _is_proven(self, working: Pass) -> bool:
        if working.has_progress:
            return True
        age = asyncio.get_running_loop().time() - working.began_at
        return age >= leases.trial_seconds(working.leased, self._trial_seconds)
