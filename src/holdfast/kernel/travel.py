"""Time travel: what a run that goes back must know of what it did after that point.

Consequences outside are not undone. So the state that a fork or a rewound run begins with has a
log of what came after it, `holdfast.past`: effects, and calls of other agents. A call of the same
tool or agent with the same arguments takes the next of them, and is given its result instead of
being made again. One that is to be made again is listed there, and in `holdfast.resend`, with a new
key. A recovery from damage adds what else is intact: answers, signals, and recorded steps.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from holdfast.errors import EffectNotFound, IllegalMove, LeaseHeld
from holdfast.kernel import runs
from holdfast.kernel.edits import OWN_PARTS
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Kind
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import WaitStatus

PAST: Final = f"{OWN_PARTS}past"
RESEND: Final = f"{OWN_PARTS}resend"
TURN: Final = f"{OWN_PARTS}turn"
"""A version of a run that went back, and the number of the turn that began there."""
KEPT: Final = (f"{OWN_PARTS}usage",)
"""Parts that a rewind does not change: what was paid stays paid."""
LEFT: Final = (f"{OWN_PARTS}versions",)
"""Parts that a fork begins without: the present agents work on it."""
FRESH: Final = f"{OWN_PARTS}fresh"
"""The part that says that nothing was stored for the input ("start") or the next message yet."""

START: Final = f"{OWN_PARTS}start"
"""The name of the steps that record which runs an agent's code has started."""

Fresh = Literal["start", "message"]
ItemKind = Literal["effect", "call", "start", "wait", "signal", "step"]
Then = Literal["given_back", "to_be_resolved", "not_there"]
CallThen = Literal["replayed", "taken_over", "made_again"]
_THEN: Final[dict[EffectStatus, Then]] = {
    EffectStatus.COMPLETED: "given_back",
    EffectStatus.ISSUED: "to_be_resolved",
    EffectStatus.UNKNOWN: "to_be_resolved",
    EffectStatus.NOT_DONE: "not_there",
}


class PastItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Something that a run did, and that its code may ask for again.

    kind    name                 key                  item_id
    effect  the tool             the effect's key     the effect's; none: it is to be sent again
    call    the agent            the child's root     the wait's; none: it is to be made anew
    start   the agent            the child's root     the run's, which was started with parent=
    wait    its kind             -                    the wait's
    signal  the signal's         -                    the signal's
    step    the step's           -                    the number of its entry

    `resend` is what is to be sent again below a call. `is_kept` says that the wait or run was left
    open for the turn that begins here, and is given up if that does not ask for it. `follows_loss`
    says that a result before this step is damaged, so that the state it was made from may differ.
    """

    kind: ItemKind
    name: str
    digest: bytes
    key: str = ""
    item_id: str = ""
    resend: tuple[str, ...] = ()
    is_kept: bool = False
    follows_loss: bool = False

    @property
    def place(self) -> str:
        """What makes two of them the same."""
        return self.key or f"{self.kind}/{self.item_id}"


class StartedRun(msgspec.Struct, frozen=True):
    """What a step START records: a run that was started, and what it continues.

    `exists` says that it is a former run, which was found when the code started it again.
    """

    run_id: str
    agent: str
    digest: bytes
    root: str
    former: str = ""
    resend: tuple[str, ...] = ()
    exists: bool = False


def turn_at(version: int, stored: Sequence[int] | None) -> int:
    """Return the number of the turn that begins at a version; `stored` is the part TURN.

    It is the same in every run that resumes from there, which a version is not.
    """
    if stored is None:
        return version
    at, turn = stored
    return turn + max(0, version - at)  # before it lies the copy of the state that was edited


def then_of(effect: Effect) -> Then:
    """Return what a call of this effect meets after going back to before it."""
    return _THEN[effect.status]


def then_of_call(status: WaitStatus, *, is_completed: bool) -> CallThen:
    """Return what a call of another agent meets when it is made again."""
    if status is WaitStatus.OPEN:
        return "taken_over"
    return "replayed" if is_completed else "made_again"


def item_of(effect: Effect) -> PastItem:
    """An effect as a call may find it."""
    return PastItem("effect", effect.tool, effect.args_digest, effect.key, str(effect.effect_id))


def past_of(left: Iterable[PastItem], later: Iterable[PastItem]) -> list[PastItem]:
    """What is left from an earlier travel, then what was done since; of equal ones the newest."""
    found = {item.place: item for item in left}
    for item in later:
        found[item.place] = item
    return list(found.values())


def check_resend(effect: Effect) -> None:
    """Raise unless an effect is known to have happened, so that sending it again means twice."""
    if effect.status is EffectStatus.NOT_DONE:
        raise IllegalMove(f"effect {effect.effect_id} did not happen: its call is made anyway")
    if effect.status is not EffectStatus.COMPLETED:
        raise IllegalMove(
            f"effect {effect.effect_id} is {effect.status}: it may have happened, or happen yet. "
            f"Find out, and `holdfast effects resolve {effect.effect_id}` before it is sent again"
        )


def not_after(item_id: str, *, run_id: str, version: int) -> EffectNotFound:
    """The error for something to be sent again that a run did not do after a version."""
    return EffectNotFound(
        f"{item_id} is not among the effects and calls after version {version} of run {run_id}; "
        f"`holdfast runs fork {run_id} --at {version} --plan` lists them"
    )


def fresh_key(key: str, *, run_id: str, version: int) -> str:
    """The key that something is sent again under, from this version of a run on."""
    return hashlib.sha256(msgspec.msgpack.encode(("resend", key, run_id, version))).hexdigest()


def fresh_keys(
    resend: Iterable[PastItem], known: Mapping[str, str], *, run_id: str, version: int
) -> dict[str, str]:
    """Return keys that replace others from this version on: those of what is to be sent again."""
    keys = dict(known)
    for item in resend:
        owners = [own for own, key in keys.items() if key == item.key]
        if not owners and item.key not in keys:
            owners = [item.key]
        keys |= dict.fromkeys(owners, fresh_key(item.key, run_id=run_id, version=version))
    return keys


def with_fresh_keys(
    past: Iterable[PastItem], resend: Iterable[PastItem], *, run_id: str, version: int
) -> list[PastItem]:
    """Return the past in its order, with what is to be sent again under new keys."""
    again = {item.key for item in resend}
    return [
        PastItem(
            item.kind, item.name, item.digest, fresh_key(item.key, run_id=run_id, version=version)
        )
        if item.key in again
        else item
        for item in past
    ]


def swapped(keys: Mapping[str, str], own: str, taken: str) -> dict[str, str]:
    """Return the keys that replace others, after a call took what another place has the key of.

    That place is given the key that the call would have had: so no two places share one.
    """
    now = dict(keys)
    before = keys.get(own, own)
    other = next((place for place, key in keys.items() if key == taken), taken)
    now[own], now[other] = taken, before
    return now


def find(
    past: Sequence[PastItem],
    kind: ItemKind,
    name: str,
    digest: bytes,
    *,
    key: str = "",
    taken: Collection[str] = (),
) -> PastItem | None:
    """What a call is: the one with its key, else the next of its name and arguments."""
    free = [item for item in past if item.kind == kind and item.place not in taken]
    if key:
        for item in free:
            if item.key == key:
                return item
    return next((item for item in free if (item.name, item.digest) == (name, digest)), None)


def check_rewind(run: RunRow, *, holder_alive: bool, takeover: bool) -> None:
    """Raise unless a run may go back now; a living holder is only fenced if `takeover` says so."""
    runs.check_move(run, Kind.RUN_REWOUND)
    if run.status is runs.RunStatus.RUNNING and holder_alive and not takeover:
        raise LeaseHeld(
            f"run {run.run_id} is held by worker {run.worker}; wait until it is done, or take it "
            "from that worker: takeover=True, or `holdfast runs rewind --takeover`"
        )
