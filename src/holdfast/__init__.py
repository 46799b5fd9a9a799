"""Holdfast: durable state for AI agents."""

from holdfast import errors
from holdfast.agents.definitions.agent import Agent, agent
from holdfast.agents.definitions.cadence import Every, every
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.messages import (
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.agents.definitions.peer_tools import Peer
from holdfast.agents.definitions.people import ask_person
from holdfast.agents.definitions.progress_tools import hand_over, progress_tools
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tool_policy import Approval
from holdfast.agents.definitions.tools import Happened, Tool, tool
from holdfast.agents.loop import AgentLoop
from holdfast.agents.run import Run
from holdfast.agents.turn.progress import Progress
from holdfast.agents.turn.views import Log, Value
from holdfast.agents.work.approvals import Asked
from holdfast.agents.work.handles import Handle, PeerUpdate
from holdfast.agents.work.schedules import Schedule
from holdfast.agents.work.sessions import Session
from holdfast.agents.work.worker import Worker
from holdfast.app import Holdfast, open
from holdfast.codec import Ref
from holdfast.engine.budgets.costs import Budget, Cost, Costs
from holdfast.engine.checkpoints import State
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.handoffs import HandoffView
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.maintenance.recoveries import RecoveryPoint
from holdfast.engine.maintenance.travel import PlannedCall, PlannedEffect, TravelPlan, Unclaimed
from holdfast.engine.messages.outbox_messages import OutboxMessage
from holdfast.engine.messages.replies import PeerReply
from holdfast.engine.waits import WaitSpec
from holdfast.errors import NotDone
from holdfast.kernel.budgets import Account, Amounts, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.effects import EffectStatus as EffectStatus
from holdfast.kernel.events import Event
from holdfast.kernel.journal import Entry, Problem
from holdfast.kernel.leases import WorkerRow as WorkerRow
from holdfast.kernel.records import Phase
from holdfast.kernel.runs import BlockedReason
from holdfast.kernel.runs import RunRow as RunRow
from holdfast.kernel.runs import RunStatus as RunStatus
from holdfast.kernel.segments import Effort, Segment
from holdfast.kernel.signals import Receipt, Signal
from holdfast.kernel.state import LogDiff, StateDiff
from holdfast.kernel.versions import Versions
from holdfast.kernel.waits import Answer, Result, Wait, WaitStatus
from holdfast.settings import Settings
from holdfast.stores.contract import StoreInfo
from holdfast.subscribers.webhook_signatures import verify_webhook
from holdfast.subscribers.webhooks import Webhook

__all__ = [
    "Account",
    "Agent",
    "AgentLoop",
    "Amounts",
    "Answer",
    "Approval",
    "Asked",
    "Begun",
    "BlockedReason",
    "Budget",
    "Checkpoint",
    "Cost",
    "Costs",
    "Effect",
    "EffectRequest",
    "EffectStatus",
    "Effort",
    "Entry",
    "Event",
    "Every",
    "Handle",
    "HandoffPolicy",
    "HandoffView",
    "Happened",
    "Holdfast",
    "Key",
    "LeasedRun",
    "Log",
    "LogDiff",
    "Message",
    "NotDone",
    "OutboxMessage",
    "Peer",
    "PeerReply",
    "PeerUpdate",
    "Phase",
    "PlannedCall",
    "PlannedEffect",
    "Problem",
    "Progress",
    "Reasoning",
    "Receipt",
    "RecoveryPoint",
    "RecoveryPolicy",
    "Ref",
    "Reservation",
    "Result",
    "Run",
    "RunRow",
    "RunStatus",
    "Schedule",
    "Segment",
    "Session",
    "Settings",
    "Signal",
    "State",
    "StateDiff",
    "StoreInfo",
    "Text",
    "Tool",
    "ToolCall",
    "ToolResult",
    "TravelPlan",
    "Unclaimed",
    "Usage",
    "Value",
    "Versions",
    "Wait",
    "WaitSpec",
    "WaitStatus",
    "Webhook",
    "Worker",
    "WorkerRow",
    "agent",
    "ask_person",
    "errors",
    "every",
    "hand_over",
    "open",
    "progress_tools",
    "tool",
    "verify_webhook",
]

__version__ = "0.1.0"
