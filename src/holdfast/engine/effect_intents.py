"""The intents of effects, recorded in one commit before any of them runs."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast import clock, codec, ids, names
from holdfast.engine.context import Context
from holdfast.engine.effects import Begun, EffectRequest, find
from holdfast.engine.writing.run_writer import ConditionFailed, WritePlan
from holdfast.kernel import effects, indexes, runs
from holdfast.kernel.effects import Effect
from holdfast.kernel.indexes import AddEffect
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.runs import RunRow


class _Wanted(msgspec.Struct):
    facts: effects.Issued
    body: bytes
    begun: Begun | None = None


class EffectIntents:
    """The intents of one commit. A request with a used key gets the effect that holds the key."""

    def __init__(
        self,
        context: Context,
        run: RunRow,
        requests: Sequence[EffectRequest],
        *,
        check: Callable[[RunRow], None] = runs.check_leased,
    ) -> None:
        self._check = check
        self._context = context
        self._requests = list(requests)
        self._wanted = [self._prepare(run, request) for request in requests]

    def plan(self, run: RunRow, seq: int) -> WritePlan:
        """Plan the intents still to be recorded. Requests with equal keys get one intent."""
        self._check(run)
        first = {
            wanted.facts.key: wanted for wanted in reversed(self._wanted) if wanted.begun is None
        }
        return WritePlan(
            [
                Draft(Kind.EFFECT_ISSUED, wanted.facts, wanted.body)
                for wanted in self._wanted
                if first.get(wanted.facts.key) is wanted
            ]
        )

    async def look_up(self, failed: ConditionFailed) -> None:
        """Resolve each request whose idempotency key is already used."""
        if not isinstance(failed.change, AddEffect):
            raise failed
        known: dict[str, Begun | None] = {}
        for wanted in self._wanted:
            key = wanted.facts.key
            if wanted.begun is None and key not in known:
                known[key] = await find(self._context, key)
            wanted.begun = wanted.begun or known.get(key)

    def matches(self, requests: Sequence[EffectRequest]) -> bool:
        """Return whether these requests equal those of this commit."""
        return list(requests) == self._requests

    def answers(self, entries: Sequence[Entry]) -> list[Begun]:
        """Return an answer for each request. `entries` hold the intents just recorded."""
        rows = {row.key: row for row in map(_issued_row, entries)}
        issued: set[str] = set()
        answers: list[Begun] = []
        for wanted in self._wanted:
            if wanted.begun is not None:
                answers.append(wanted.begun)
                continue
            is_twin = wanted.facts.key in issued
            issued.add(wanted.facts.key)
            row = rows[wanted.facts.key]
            answers.append(Begun("in_flight" if is_twin else "fresh", row))
        return answers

    def _prepare(self, run: RunRow, request: EffectRequest) -> _Wanted:
        names.check(request.tool, what="the name of a tool")
        body = codec.encode(request.args, name=f"arguments of {request.tool}")
        digest = request.args_digest or codec.canonical_digest(request.args)
        key = request.key or effects.key_of(run.root_id, request.tool, digest)
        names.check(key, what="an effect's key")
        facts = effects.Issued(
            effect_id=ids.uuid7(),
            key=key,
            tool=request.tool,
            call_id=request.call_id and names.check(request.call_id, what="a call's id"),
            args_digest=digest,
            limit_at=self._context.now() + clock.seconds(request.limit_seconds),
            lease_seq=run.lease_seq,
            approval=request.approval,
        )
        return _Wanted(facts, body)


def _issued_row(entry: Entry) -> Effect:
    return indexes.effect_of(entry, indexes.facts_of(entry))
