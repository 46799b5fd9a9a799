"""For tests of Holdfast and of what is built on it: clocks, faults, histories, the store suite."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.faults import Armed, arm, armed
from holdfast.testing.histories import Operation, contradictions

__all__ = ["Armed", "ManualClock", "Operation", "arm", "armed", "contradictions"]
