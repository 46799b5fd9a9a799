"""A judge of histories: what several workers did at once, and whether it can all be true.

Each actor records its own operations; `contradictions` is pure, knows nothing of how Holdfast
works, and says in words who contradicts whom.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

Kind = Literal["claim", "append", "lease", "write"]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What one actor did to one thing, when it asked, and when it got the outcome.

    claim: tried to be the only one (`ok` if it was); append: added `value`; lease: took a term
    (`value` is its number); write: wrote under a term (`value` is the term).
    """

    actor: str
    kind: Kind
    thing: str
    ok: bool
    value: Any = None
    asked: float = 0.0
    told: float = 0.0


def contradictions(
    history: Sequence[Operation], *, final: dict[str, Sequence[Any]] | None = None
) -> list[str]:
    """Return all contradictions in a history; `final` is what a log held at the end."""
    return [
        *_double_claims(history),
        *_unclaimed(history),
        *_lost_appends(history, final or {}),
        *_shared_terms(history),
        *_late_writes(history),
    ]


def _by_thing(history: Iterable[Operation], kind: Kind) -> dict[str, list[Operation]]:
    grouped: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        if operation.kind == kind:
            grouped[operation.thing].append(operation)
    return grouped


def _double_claims(history: Sequence[Operation]) -> Iterator[str]:
    for thing, claims in _by_thing(history, "claim").items():
        winners = [claim.actor for claim in claims if claim.ok]
        if len(winners) > 1:
            yield f"{thing} was claimed by {winners[0]}, and also by {', '.join(winners[1:])}"


def _unclaimed(history: Sequence[Operation]) -> Iterator[str]:
    for thing, claims in _by_thing(history, "claim").items():
        if not any(claim.ok for claim in claims):
            actors = ", ".join(claim.actor for claim in claims)
            yield f"{thing} was claimed by nobody, though {actors} tried and all were refused"


def _lost_appends(history: Sequence[Operation], final: dict[str, Sequence[Any]]) -> Iterator[str]:
    for thing, appends in _by_thing(history, "append").items():
        stored = list(final.get(thing, ()))
        for append in appends:
            count = stored.count(append.value)
            if append.ok and count == 0:
                yield f"{append.actor} was told that {append.value!r} is in {thing}; it is not"
            if count > 1:
                yield f"{append.value!r} of {append.actor} is in {thing} {count} times"
        known = [append.value for append in appends]
        for value in stored:
            if value not in known:
                yield f"{thing} holds {value!r}, which nobody appended"


def _shared_terms(history: Sequence[Operation]) -> Iterator[str]:
    for thing, leases in _by_thing(history, "lease").items():
        holders: dict[Any, str] = {}
        for lease in leases:
            if lease.ok and holders.setdefault(lease.value, lease.actor) != lease.actor:
                holder = holders[lease.value]
                yield f"term {lease.value} of {thing} is held by {holder} and by {lease.actor}"


def _late_writes(history: Sequence[Operation]) -> Iterator[str]:
    """A write that began after a later term was reported must have been refused."""
    leases = _by_thing(history, "lease")
    for thing, writes in _by_thing(history, "write").items():
        for write in writes:
            for lease in leases.get(thing, ()):
                if write.ok and lease.ok and lease.value > write.value and lease.told < write.asked:
                    yield (
                        f"{write.actor} wrote to {thing} under term {write.value} after "
                        f"{lease.actor} was given term {lease.value}"
                    )
