"""The public names are pinned, and importing them costs nothing that a user did not ask for."""

import subprocess
import sys

import pytest

import holdfast

PUBLIC = [
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

HEAVY = [
    "click",
    "httpx",
    "jinja2",
    "langgraph",
    "mcp",
    "nats",
    "psycopg",
    "pydantic",
    "rich",
    "yaml",
]


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after one statement."""
    code = f"import sys; {statement}; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_public_names_are_pinned() -> None:
    assert sorted(holdfast.__all__) == PUBLIC


def test_public_names_are_listed_in_order() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_can_be_imported(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_every_error_is_reachable_as_holdfast_errors() -> None:
    family = [e for e in vars(holdfast.errors).values() if isinstance(e, type)]
    assert len(family) > 20
    assert all(issubclass(error, holdfast.errors.HoldfastError) for error in family)


@pytest.mark.mission("S1-008")
def test_import_loads_nothing_heavy() -> None:
    assert modules_after("import holdfast") & set(HEAVY) == set()


def test_import_does_not_load_a_backend_before_it_is_named() -> None:
    loaded = modules_after("import holdfast")
    assert not any(name.startswith("holdfast.stores.sqlite") for name in loaded)
    assert "apsw" not in loaded
