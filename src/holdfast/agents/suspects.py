"""Suspects: runs that may be what their workers died of. In one process, each is tried alone.

If the process dies of one, nothing else was there to be blamed: a run that uses up the memory is
found, and those that were beside it are not held responsible. Waiting for that has an end, so that
long runs, or runs that start others, never keep a suspect from being tried at all.
"""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from holdfast.kernel import leases
from holdfast.kernel.runs import Run

LONGEST_SECONDS: Final = 60.0
"""How long a suspect waits to be alone, and how long it is left alone."""


class Trial(Protocol):
    """A pass over a run."""

    @property
    def run_id(self) -> str: ...
    @property
    def has_progress(self) -> bool:
        """Whether it has come further than the passes before it, or has ended."""
        ...


class SuspectLane:
    """Decides which runs may begin in this process, beside those that are under way."""

    def __init__(self, under_way: Collection[Trial]) -> None:
        self._under_way = under_way
        self._trial: Trial | None = None
        self._tried_since = 0.0
        self._waiting_since: dict[str, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    @property
    def is_closed(self) -> bool:
        """Whether a suspect is being tried, so that no other run may begin."""
        trial = self._trial
        if trial is None:
            return False
        is_over = trial.has_progress or trial not in self._under_way
        if is_over or _now() - self._tried_since > LONGEST_SECONDS:
            self._trial = None
        return self._trial is not None

    def may_begin(self, run: Run) -> bool:
        """Whether a run may begin now; a suspect that was refused for long enough may."""
        if not leases.is_suspect(run):
            return not self.is_closed
        since = self._waiting_since.setdefault(run.run_id, _now())
        if not self.is_empty and _now() - since <= LONGEST_SECONDS:
            return False
        del self._waiting_since[run.run_id]
        return True

    def began(self, working: Trial, run: Run) -> None:
        """A pass over a run begins."""
        if leases.is_suspect(run):
            self._trial, self._tried_since = working, _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
