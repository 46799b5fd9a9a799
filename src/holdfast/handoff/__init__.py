"""Handoff: one context of a run ends and another goes on, with what it must know."""

from holdfast.handoff.continuation import Continuation, Pending, continuation_of
from holdfast.handoff.policy import HandoffPolicy

__all__ = ["Continuation", "HandoffPolicy", "Pending", "continuation_of"]
