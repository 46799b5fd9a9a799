"""Named places where a test may break the process: each commit and each call outside has some.

`point` costs one comparison while nothing is armed. What happens at an armed point (raise, hang,
SIGKILL) is decided by `holdfast.testing.faults`; the list below drives the crash tests.
"""

from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "batch.before_begin",
    "batch.after_begin",
    "batch.after_decide",
    "commit.after_first_entry",
    "commit.after_entries",
    "commit.after_changes",
    "batch.before_commit",
    "batch.after_commit",
    "batch.before_acknowledge",
    "migration.before_commit",
    "migration.after_commit",
    "reindex.before_commit",
    "budget.after_reserve",
    "budget.before_settle",
    "leases.after_look",
    "model.after_call",
    "tool.before_call",
    "tool.after_call",
    "tool.before_verify",
    "outbox.before_take",
    "outbox.after_take",
    "outbox.after_delivery",
    "outbox.after_ack",
    "outbox.before_reply",
    "outbox.after_reply",
    "relay.before_publish",
    "relay.after_publish",
    "receiver.before_commit",
    "receiver.after_commit",
    "handoff.detected",
    "handoff.prompted",
    "handoff.given",
    "handoff.received",
    "handoff.verified",
    "handoff.selected",
    "handoff.assigned",
    "handoff.read",
    "handoff.acknowledged",
    "handoff.resumed",
    "handoff.continued",
    "webhook.before_post",
    "webhook.after_post",
    "webhook.after_commit",
    "spool.before_write",
    "spool.after_write",
    "spool.after_sync",
    "spool.before_submit",
    "spool.after_submit",
    "spool.after_evidence",
    "spool.before_cut",
    "spool.after_cut",
)

_trigger: Callable[[str], None] | None = None


def point(name: str) -> None:
    if _trigger is not None:
        _trigger(name)


def install(trigger: Callable[[str], None] | None) -> None:
    """Let `trigger` decide what happens at each point; None disarms all."""
    global _trigger
    _trigger = trigger
