"""A few states of waiting runs, kept in memory: a run that resumes here need not read its state.

It is only a cache. The store decides whether a run may resume, and with which answers; a state is
used only if its version is still the newest.
"""

from collections import OrderedDict
from typing import Final

from holdfast.kernel.state import Parts

_RUNS: Final = 32
_BYTES: Final = 1024 * 1024


class WarmStates:
    """The states of the runs that were released last."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, Parts] = OrderedDict()

    def keep(self, run_id: str, parts: Parts) -> None:
        """Keep the state of a released run; its holder does not use it any more."""
        if parts.version and parts.live_bytes <= _BYTES:
            parts.recorded.clear()
            self._states[run_id] = parts
            self._states.move_to_end(run_id)
            while len(self._states) > _RUNS:
                self._states.popitem(last=False)

    def take(self, run_id: str, version: int) -> Parts | None:
        """Return the state of a run, once, if it has this version."""
        parts = self._states.pop(run_id, None)
        return parts if parts is not None and parts.version == version else None
