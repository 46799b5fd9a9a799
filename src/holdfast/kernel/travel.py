"""Time travel: what a run that goes back must know of what it did after that point.

Consequences outside stay as they are. So the state that a fork or a rewound run begins with has a
log of the effects that came after it, `holdfast.past`: a call of the same tool with the same
arguments takes the next of them, and is given its result instead of being sent again. One that is
to be sent again stands there, and in `holdfast.resend`, with a key of its own.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from holdfast.errors import EffectNotFound, IllegalMove, LeaseHeld
from holdfast.kernel import runs
from holdfast.kernel.edits import OWN_PARTS
from holdfast.kernel.effects import Effect, Status
from holdfast.kernel.journal import Kind
from holdfast.kernel.runs import Run

PAST: Final = f"{OWN_PARTS}past"
RESEND: Final = f"{OWN_PARTS}resend"
KEPT: Final = (f"{OWN_PARTS}usage",)
"""Parts that a rewind leaves as they are: what was paid stays paid."""
LEFT: Final = (f"{OWN_PARTS}versions",)
"""Parts that a fork begins without: it is worked on by what there is now."""
FRESH: Final = f"{OWN_PARTS}fresh"
"""The part that says that nothing was stored for the input ("start") or the next message yet."""

Fresh = Literal["start", "message"]
Then = Literal["given_back", "to_be_resolved", "not_there"]
_THEN: Final[dict[Status, Then]] = {
    Status.COMPLETED: "given_back",
    Status.ISSUED: "to_be_resolved",
    Status.UNKNOWN: "to_be_resolved",
    Status.NOT_DONE: "not_there",
}


class PastEffect(msgspec.Struct, frozen=True, gc=False):
    """An effect that a call may find outside; without an id, one that is to be sent again."""

    tool: str
    args_digest: bytes
    key: str
    effect_id: str = ""


def then_of(effect: Effect) -> Then:
    """What a call of this effect meets after going back to before it."""
    return _THEN[effect.status]


def past_of(left: Iterable[PastEffect], later: Iterable[Effect]) -> list[PastEffect]:
    """What exists outside: what is left from an earlier travel, then what was done since."""
    found = {past.key: past for past in left}
    for effect in later:
        if effect.status is not Status.NOT_DONE:
            found[effect.key] = PastEffect(
                effect.tool, effect.args_digest, effect.key, str(effect.effect_id)
            )
    return list(found.values())


def check_resend(
    wanted: Collection[UUID], known: Mapping[UUID, Effect], *, run_id: str, version: int
) -> list[Effect]:
    """The effects to be sent again; raises unless all are there, and known to have happened."""
    for effect_id in wanted:
        effect = known.get(effect_id)
        if effect is None:
            raise EffectNotFound(
                f"effect {effect_id} is not among those after version {version} of run {run_id}; "
                f"`holdfast runs fork {run_id} --at {version} --plan` lists them"
            )
        if effect.status is Status.NOT_DONE:
            raise IllegalMove(
                f"effect {effect_id} did not happen: its call is made without being told to"
            )
        if effect.status is not Status.COMPLETED:
            raise IllegalMove(
                f"effect {effect_id} is {effect.status}: it may have happened, or happen yet. Find "
                f"out, and `holdfast effects resolve {effect_id}` before it is sent again"
            )
    return [known[effect_id] for effect_id in wanted]


def fresh_keys(
    resend: Iterable[Effect], known: Mapping[str, str], *, run_id: str, version: int
) -> dict[str, str]:
    """Keys that stand for others from this version on: those of effects to be sent again."""
    keys = dict(known)
    for effect in resend:
        material = msgspec.msgpack.encode(("resend", effect.key, run_id, version))
        fresh = hashlib.sha256(material).hexdigest()
        keys = {old: fresh if new == effect.key else new for old, new in keys.items()}
        keys[effect.key] = fresh
    return keys


def with_fresh_keys(
    past: Iterable[PastEffect], resend: Iterable[Effect], keys: Mapping[str, str]
) -> list[PastEffect]:
    """The past in its order, with those that are to be sent again under their own keys."""
    again = {effect.key for effect in resend}
    return [
        PastEffect(effect.tool, effect.args_digest, keys[effect.key])
        if effect.key in again
        else effect
        for effect in past
    ]


def find(
    past: Sequence[PastEffect], key: str, tool: str, digest: bytes, *, taken: Collection[str]
) -> PastEffect | None:
    """The effect that a call is: the one with its key, else the next of its tool and arguments."""
    free = [effect for effect in past if effect.key not in taken]
    for effect in free:
        if effect.key == key:
            return effect
    return next((e for e in free if (e.tool, e.args_digest) == (tool, digest)), None)


def check_rewind(run: Run, *, holder_alive: bool, takeover: bool) -> None:
    """Raise unless a run may go back now; a living holder is only fenced if `takeover` says so."""
    runs.check_move(run, Kind.RUN_REWOUND)
    if run.status is runs.Status.RUNNING and holder_alive and not takeover:
        raise LeaseHeld(
            f"run {run.run_id} is held by worker {run.worker}; wait until it is done, or take it "
            "from that worker: takeover=True, or `holdfast runs rewind --takeover`"
        )
