"""Medians and percentiles of what was measured, and a stopwatch."""

import statistics
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Stopwatch:
    """Collects the milliseconds spent inside each `with` block."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._since = 0.0

    def __enter__(self) -> Self:
        self._since = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.samples.append((time.perf_counter() - self._since) * 1000)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that is not below `percent` of them."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
