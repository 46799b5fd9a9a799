"""What every transport must do.

A transport supplies a pytest fixture named `carrier` (see `Carrier`) and subclasses each suite; it
adds nothing and leaves nothing out.
"""

from holdfast.testing.transport_suite.carrier import Carrier, Consumer, opened
from holdfast.testing.transport_suite.deliveries import DeliveringSuite
from holdfast.testing.transport_suite.publications import PublishingSuite
from holdfast.testing.transport_suite.survival import SurvivingSuite

__all__ = [
    "Carrier",
    "Consumer",
    "DeliveringSuite",
    "PublishingSuite",
    "SurvivingSuite",
    "opened",
]
