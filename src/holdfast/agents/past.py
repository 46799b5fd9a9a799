"""What a run that went back did after that point, as far as its code has not asked for it again.

A call of the same tool with the same arguments takes the next of these effects, and with it the key
that it was made under: it is on record there, and given back instead of being sent. What was taken
leaves the state with the next checkpoint; after a crash before that, the code takes it again.
"""

import msgspec

from holdfast.engine.leased_run import LeasedRun
from holdfast.kernel import travel
from holdfast.kernel.travel import FRESH, PAST, RESEND, Fresh, PastEffect


class Past:
    """The past of one pass over a run; empty unless the run is a fork, or was rewound."""

    def __init__(self, held: LeasedRun) -> None:
        self._held = held
        self._left = [msgspec.convert(item, PastEffect) for item in held.part(PAST, [])]
        self._resend: dict[str, str] = held.part(RESEND, {})
        self._taken: set[str] = set()

    def key_for(self, tool: str, digest: bytes, key: str) -> str:
        """The key that a call is made under, where its own would be `key`."""
        key = self._resend.get(key, key)
        found = travel.find(self._left, key, tool, digest, taken=self._taken)
        if found is None:
            return key
        self._taken.add(found.key)
        return found.key

    def give_up(self, key: str) -> None:
        """A call that was to be made under this key is not made."""
        self._taken.discard(key)

    def use(self, key: str) -> None:
        """A call is made under this key: what it stands for is asked for again."""
        if key in self._taken:
            self._taken.discard(key)
            at = next(at for at, effect in enumerate(self._left) if effect.key == key)
            del self._left[at]
            self._held.splice(PAST, at, 1)


def take_freshness(held: LeasedRun) -> Fresh | None:
    """What a fork or rewind says about the input; the next checkpoint forgets it."""
    fresh: Fresh | None = held.part(FRESH)
    if fresh is not None:
        held.drop(FRESH)
    return fresh
