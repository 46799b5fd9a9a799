"""What somebody can do about a run that is blocked."""

from collections.abc import Sequence

from holdfast.kernel.runs import BlockedReason


def advice(run_id: str, reason: str, effect_ids: Sequence[str]) -> str:
    """The commands that let it go on; `effect_ids` are those whose outcome is open."""
    if reason == BlockedReason.UNKNOWN_EFFECT:
        return "find out what happened, and report it; the run then continues: " + ", ".join(
            f"`holdfast effects resolve {effect_id}`" for effect_id in effect_ids
        )
    if reason == BlockedReason.BUDGET:
        return f"`holdfast runs budget {run_id}` shows what it draws on, --add raises it"
    if reason == BlockedReason.CORRUPTION:
        return f"`holdfast runs recover {run_id} --plan` shows what is damaged, and what is left"
    return f"`holdfast runs unblock {run_id}` gives it back to the workers"
