"""Holdfast: durable state for AI agents."""

from holdfast import errors
from holdfast.app import Holdfast, open
from holdfast.codec import Ref
from holdfast.engine.checkpoints import State
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.leased_run import LeasedRun
from holdfast.engine.waits import WaitSpec
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.effects import Status as EffectStatus
from holdfast.kernel.journal import Entry, Problem
from holdfast.kernel.leases import Worker
from holdfast.kernel.runs import BlockedReason, Run
from holdfast.kernel.runs import Status as RunStatus
from holdfast.kernel.state import LogDiff, StateDiff
from holdfast.kernel.waits import Answer, Result, Wait, WaitStatus
from holdfast.settings import Settings
from holdfast.stores.contract import StoreInfo

__all__ = [
    "Answer",
    "Begun",
    "BlockedReason",
    "Checkpoint",
    "Effect",
    "EffectRequest",
    "EffectStatus",
    "Entry",
    "Holdfast",
    "LeasedRun",
    "LogDiff",
    "Problem",
    "Ref",
    "Result",
    "Run",
    "RunStatus",
    "Settings",
    "State",
    "StateDiff",
    "StoreInfo",
    "Wait",
    "WaitSpec",
    "WaitStatus",
    "Worker",
    "errors",
    "open",
]
