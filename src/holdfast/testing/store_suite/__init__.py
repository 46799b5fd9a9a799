"""What every backend must do, one file per primitive.

A backend supplies a pytest fixture named `backend` (see `Backend`) and subclasses each suite; it
adds nothing and leaves nothing out.
"""

from holdfast.testing.store_suite.backend import Backend, async_test
from holdfast.testing.store_suite.checkpoints import CheckpointsSuite
from holdfast.testing.store_suite.effects import EffectsSuite
from holdfast.testing.store_suite.journal import JournalSuite
from holdfast.testing.store_suite.leases import LeasesSuite
from holdfast.testing.store_suite.marks import MarksSuite
from holdfast.testing.store_suite.records import RecordsSuite
from holdfast.testing.store_suite.runs import RunsSuite
from holdfast.testing.store_suite.signals import SignalsSuite
from holdfast.testing.store_suite.waits import WaitsSuite

__all__ = [
    "Backend",
    "CheckpointsSuite",
    "EffectsSuite",
    "JournalSuite",
    "LeasesSuite",
    "MarksSuite",
    "RecordsSuite",
    "RunsSuite",
    "SignalsSuite",
    "WaitsSuite",
    "async_test",
]
