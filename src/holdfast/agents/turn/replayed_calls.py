"""What a run that went back did after that point, as far as its code has not asked for it again.

A call of the same tool or agent with the same arguments takes the next of it: an effect with the
key that it was made under, which is on record there and given back instead of being sent; a call of
an agent with its outcome. What was taken leaves the state with the next checkpoint; after a
crash before that, the code takes it again.
"""

import hashlib
from contextlib import suppress

import msgspec

from holdfast.agents.turn.memo import RecordedWait
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.maintenance.replayed_effects import PreparedPast
from holdfast.engine.messages.replies import intact_entry
from holdfast.engine.reading.journal import body_of
from holdfast.engine.runs import cancel_run
from holdfast.engine.waits import Waits
from holdfast.errors import BodyErased, IllegalMove, IntegrityError, RunNotFound
from holdfast.kernel import journal, travel
from holdfast.kernel.travel import FRESH, PAST, RESEND, TURN, Fresh, ItemKind, PastItem
from holdfast.kernel.waits import WaitStatus


class ReplayedCalls:
    """The past of one pass over a run; empty unless the run is a fork, or went back.

    `continued` is that of a run which continues from what another did, before its first checkpoint.
    """

    def __init__(self, held: LeasedRun, continued: PreparedPast | None = None) -> None:
        self._held = held
        self._left = [msgspec.convert(item, PastItem) for item in held.part(PAST, [])]
        self._keys: dict[str, str] = held.part(RESEND, {})
        self._turn = held.part(TURN)
        self._taken: dict[str, tuple[str, PastItem]] = {}
        if continued is not None and held.version == 0:
            self._left, self._keys = list(continued.items), dict(continued.keys)
            held.append(PAST, *self._left)
            if self._keys:
                held.set(RESEND, self._keys)
        self.is_blank = not (self._left or self._keys) and self._turn is None
        """Whether the run never went back: its calls have their own keys, its turns their number.

        Then nothing is ever found here.
        """

    @property
    def turn(self) -> int:
        """The number of the present turn: the same in every run that goes back to before it."""
        return travel.turn_at(self._held.version, self._turn)

    def root_of_call(self, place: bytes) -> str:
        """The root of a child that is called at a place, if nothing is known of that call yet."""
        material = msgspec.msgpack.encode(("call", self._held.run.root_id, self.turn, place))
        return hashlib.sha256(material).hexdigest()

    def key_for(self, tool: str, digest: bytes, key: str) -> str:
        """The key that a call is made under, where its own would be `key`."""
        now = self._keys.get(key, key)
        taken = {item.place for _, item in self._taken.values()}
        found = travel.find(self._left, "effect", tool, digest, key=now, taken=taken)
        if found is None:
            return now
        self._taken[found.key] = (key, found)
        return found.key

    def give_up(self, key: str) -> None:
        """Release a key: the call that was to be made under it is not made."""
        self._taken.pop(key, None)

    def use(self, key: str) -> None:
        """Record that a call is made under this key: the past call it replaces is claimed."""
        own, item = self._taken.pop(key, ("", None))
        if item is not None:
            self._claim(item, own)

    def call(
        self, agent: str, digest: bytes, root: str, *, kind: ItemKind = "call"
    ) -> PastItem | None:
        """Claim and return what is known of a call of an agent whose root would be `root`."""
        now = self._keys.get(root, root)
        found = travel.find(self._left, kind, agent, digest, key=now)
        if found is not None:
            self._claim(found, root)
        return found

    def call_made(self, root: str, key: str, *, kind: ItemKind = "call") -> None:
        """A call was made again in this turn under this key: no other call may claim it."""
        for item in self._left:
            if item.kind == kind and item.key == key:
                return self._claim(item, root)

    def key_of(self, own: str) -> str:
        """Return the replacement of a key, or of the root of a child."""
        return self._keys.get(own, own)

    def next(
        self, kind: ItemKind, name: str, digest: bytes = b"", *, may_follow_loss: bool = True
    ) -> PastItem | None:
        """Claim and return the next answer, signal or step of a name and digest."""
        left = [each for each in self._left if may_follow_loss or not each.follows_loss]
        found = travel.find(left, kind, name, digest)
        if found is not None:
            self._claim(found, "")
        return found

    async def give_up_kept(self, context: Context) -> None:
        """Cancel the waits and runs that were left open for this turn, and not asked for."""
        for at, item in enumerate(self._left):
            if item.is_kept:
                await _give_up(context, item)
                self._left[at] = msgspec.structs.replace(item, is_kept=False)
                self._held.splice(PAST, at, 1, [self._left[at]])

    def _claim(self, item: PastItem, own: str) -> None:
        at = self._left.index(item)
        del self._left[at]
        self._held.splice(PAST, at, 1)
        if own and self._keys.get(own, own) != item.key:
            self._keys = travel.swapped(self._keys, own, item.key)
            self._held.set(RESEND, self._keys)


async def _give_up(context: Context, item: PastItem) -> None:
    if item.kind != "start":
        await Waits(context).cancel(item.item_id)
        return
    with suppress(RunNotFound, IllegalMove):  # it has ended meanwhile
        await cancel_run(context, item.item_id, note="the run that started it went back")


async def wait_of(context: Context, item: PastItem) -> RecordedWait | None:
    """Return a wait of before a recovery from its journal; None if that is damaged."""
    wait = await context.store.waits.get(item.item_id)
    if wait is None or wait.status is WaitStatus.CANCELLED:
        return None
    try:
        opened = body_of(await intact_entry(context, wait.run_id, wait.opened_seq))
        value = None
        if wait.status is WaitStatus.RESOLVED:
            value = body_of(await intact_entry(context, wait.run_id, wait.result_seq))
    except (IntegrityError, BodyErased):
        return None
    return RecordedWait(
        wait.wait_id,
        wait.group_id,
        wait.kind,
        wait.name,
        opened[wait.wait_id],
        status=wait.status,
        value=value,
        settled_by=wait.settled_by,
        settled_at=wait.settled_at,
    )


async def step_of(context: Context, run_id: str, item: PastItem) -> bytes | None:
    """The result of a step of before a recovery; None if that is damaged."""
    try:
        return journal.body_of(await intact_entry(context, run_id, int(item.item_id)))
    except (IntegrityError, BodyErased):
        return None


def take_freshness(held: LeasedRun) -> Fresh | None:
    """What a fork or rewind says about the input; the next checkpoint forgets it."""
    fresh: Fresh | None = held.part(FRESH)
    if fresh is not None:
        held.drop(FRESH)
    return fresh
