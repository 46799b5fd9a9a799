"""Effects: begin them without repeating one, look them up, and settle those in doubt."""

import contextlib
from collections.abc import Callable, Container
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from holdfast import clock, codec, names
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.engine.reading.proved_effects import check_key_is_free, check_row
from holdfast.engine.reading.turns import last_note
from holdfast.errors import EffectNotFound, IllegalMove, IntegrityError, MisuseError
from holdfast.kernel import effects, indexes, journal, runs
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.stores.reads import Linked, RunFilter

_PAGE = 100
Outcome = Literal["happened", "did_not_happen", "retry"]
"""A person's decision on an effect. `retry`: it did not happen; make the call again."""
_SAID: Final[dict[str, tuple[EffectStatus, bool]]] = {
    "happened": (EffectStatus.COMPLETED, False),
    "did_not_happen": (EffectStatus.NOT_DONE, False),
    "retry": (EffectStatus.NOT_DONE, True),
}
_LISTED: Final = "`holdfast effects list` shows those whose outcome is open"


class EffectRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request to begin an effect.

    Without a `key`, the lineage, the tool and the arguments identify the operation. `approval` is
    the wait in which a person permitted it. `args_digest` identifies the arguments; by default it
    is their digest.
    """

    tool: str
    args: Any = None
    call_id: str = ""
    key: str = ""
    limit_seconds: float = 300.0
    approval: str = ""
    args_digest: bytes = b""


class Begun(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request for an effect; `result` is set if the answer is `done`.

    `is_over` says that an unknown effect cannot be running any more: its call was seen to end, or
    its time limit has passed.
    """

    answer: Literal["fresh", "in_flight", "done", "unknown"]
    effect: Effect
    result: Any = None
    is_over: bool = False


_ANSWERS: dict[EffectStatus, Literal["in_flight", "done", "unknown"]] = {
    EffectStatus.ISSUED: "in_flight",
    EffectStatus.COMPLETED: "done",
    EffectStatus.UNKNOWN: "unknown",
}


class Effects:
    """Looking at effects, and settling those whose worker is gone."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def get(self, effect_id: UUID | str) -> Effect:
        try:
            wanted = effect_id if isinstance(effect_id, UUID) else UUID(effect_id)
        except ValueError:
            raise EffectNotFound(f"{effect_id!r} is not an effect's id; {_LISTED}") from None
        found = await self._context.store.effects.get(wanted)
        if found is None:
            raise EffectNotFound(f"there is no effect {effect_id}; {_LISTED}")
        return found

    async def find(self, key: str) -> Begun | None:
        """Return what is known of the operation that a key names; None if the key is free."""
        names.check(key, what="an effect's key")
        return await find(self._context, key)

    async def of_run(self, run_id: str) -> list[Effect]:
        """Return a run's effects in the order they were issued."""
        names.check(run_id, what="run id")
        return await self._context.store.effects.of_run(run_id)

    async def unsettled(
        self, *, status: EffectStatus | str = EffectStatus.UNKNOWN, limit: int = 100
    ) -> list[Effect]:
        """Return effects of all runs without outcome: `unknown`, or `issued` and maybe running."""
        if status not in (EffectStatus.UNKNOWN, EffectStatus.ISSUED):
            raise MisuseError(
                f"{status!r} is settled; the outcome of issued and unknown ones is open"
            )
        limit = names.check_count(limit, what="limit")
        return await self._context.store.effects.open(str(status), limit=limit)

    async def in_doubt(
        self, *, run_id: str | None = None, owner: str | None = None, limit: int = 100
    ) -> list[Effect]:
        """Return effects whose outcome only a check outside can show, ordered by time limit.

        These are unknown ones, and issued ones whose limit is over: of a run, of an owner's runs,
        or of all runs.
        """
        limit = names.check_count(limit, what="limit")
        names.check_optional(owner, what="owner")
        store, now = self._context.store, self._context.now()
        if run_id is not None:
            run = await store.runs.get(names.check(run_id, what="run id"))
            is_hidden = owner is not None and (run is None or run.owner != owner)
            found = [] if is_hidden else await store.effects.of_run(run_id)
        else:
            found = [
                effect
                for status in (EffectStatus.UNKNOWN, EffectStatus.ISSUED)
                for effect in await store.effects.open(status, owner=owner, limit=limit)
            ]
        doubtful = [effect for effect in found if effects.is_in_doubt(effect, now=now)]
        return sorted(doubtful, key=lambda each: (each.limit_at, each.effect_id))[:limit]

    async def settle(
        self,
        effect_id: UUID | str,
        status: EffectStatus | str,
        *,
        result: object = None,
        retry: bool = False,
        by: str = "",
        note: str = "",
    ) -> Effect:
        """Record the outcome of an effect; `completed` and `not_done` are final.

        A run blocked by the effect resumes. After `not_done` with `retry` it makes the call again;
        without `retry` its agent gets the answer that the call did not happen.
        """
        if status not in set(EffectStatus) - {EffectStatus.ISSUED}:
            raise MisuseError(f"{status!r} is not an outcome; completed, not_done and unknown are")
        known = EffectStatus(status)
        has_body = known is EffectStatus.COMPLETED or result is not None
        body = codec.encode(result, name="result") if has_body else b""
        await self._settle(effect_id, known, body, by=by, note=note, retry=retry)
        return await self.get(effect_id)

    async def resolve(
        self,
        effect_id: UUID | str,
        outcome: Outcome | str,
        *,
        result: object = None,
        by: str = "",
        note: str = "",
        force: bool = False,
    ) -> Effect:
        """Record a person's final decision on an effect in doubt; a run blocked by it resumes.

        The same decision again changes nothing. Raises IllegalMove if another outcome is known,
        and if the tool may be running just now, unless `force` says that it is not.
        """
        if outcome not in _SAID:
            raise MisuseError(f"{outcome!r} is no outcome; {', '.join(_SAID)} are")
        status, retry = _SAID[outcome]
        if result is not None and status is not EffectStatus.COMPLETED:
            raise MisuseError("only what happened has a result")
        body = codec.encode(result, name="result") if status is EffectStatus.COMPLETED else b""

        def check(effect: Effect) -> None:
            _check_resolvable(effect, now=self._context.now(), force=force)

        try:
            await self._settle(effect_id, status, body, by=by, note=note, retry=retry, check=check)
        except IllegalMove:
            known = await self.get(effect_id)
            is_said = known.status is status and await _is_said(self._context, known, retry, body)
            if not is_said:
                raise
            # The process that recorded it may have died before it unblocked the other runs.
            await _unblock_others(self._context, known, by=by)
        return await self.get(effect_id)

    async def _settle(
        self,
        effect_id: UUID | str,
        status: EffectStatus,
        body: bytes,
        *,
        by: str,
        note: str,
        retry: bool,
        check: Callable[[Effect], None] | None = None,
    ) -> None:
        effect = await self.get(effect_id)
        actor = by and names.check(by, what="by")
        note = names.check_text(note, what="note")
        await settle(
            self._context, effect, status, body=body, by=actor, note=note, retry=retry, check=check
        )
        if status is not EffectStatus.UNKNOWN:
            await _unblock_others(self._context, effect, by=actor)


async def find(context: Context, key: str) -> Begun | None:
    """Return the effect that holds a key, or None if the key is free.

    First records an issued effect as unknown if its time limit is over. Raises IndexCorrupted if
    its row differs from the journal.
    """
    effect = await context.store.effects.by_key(key)
    if effect is None:
        await check_key_is_free(context, key)
        return None
    await check_row(context, effect)
    if effects.is_doubtful(effect, now=context.now()):
        await settle(context, effect, EffectStatus.UNKNOWN, note="its time limit is over")
        return await find(context, key)
    if effect.status is EffectStatus.UNKNOWN:
        is_over = effect.limit_at <= context.now() or await _has_raised(context, effect)
        return Begun("unknown", effect, is_over=is_over)
    result = await _result(context, effect) if effect.status is EffectStatus.COMPLETED else None
    return Begun(_ANSWERS[effect.status], effect, result)


async def settle(
    context: Context,
    effect: Effect,
    status: EffectStatus,
    *,
    body: bytes = b"",
    by: str = "",
    note: str = "",
    retry: bool = False,
    check: Callable[[Effect], None] | None = None,
) -> None:
    """Record the outcome of an effect of any run, even one that is held or has ended.

    A run that is blocked by an unknown effect becomes ready in the same commit, unless `status` is
    UNKNOWN. `check` gets the effect's current row, and raises to refuse the outcome.
    """

    def decide(snapshot: Snapshot) -> LateDecision:
        known = snapshot.indexes.effects.get(effect.effect_id)
        if known is None:
            raise EffectNotFound(f"there is no effect {effect.effect_id}")
        if check is not None:
            check(known)
        draft = effects.settle(known, status, body=body, note=note, retry=retry)
        run = snapshot.run
        if run is None or status is EffectStatus.UNKNOWN or not runs.is_blocked_by_effect(run):
            return LateDecision(None, (draft,))
        return LateDecision(None, (draft, Draft(Kind.RUN_UNBLOCKED, runs.Released(note=note))))

    await context.decide_late(effect.run_id, decide, by=by, effect_ids=(effect.effect_id,))


async def unblock(context: Context, run_id: str, *, by: str = "") -> None:
    """Unblock a run if it is blocked until a person reports the outcome of an effect."""

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or not runs.is_blocked_by_effect(run):
            return LateDecision(None)
        return LateDecision(None, (Draft(Kind.RUN_UNBLOCKED, runs.Released(note="it is settled")),))

    await context.decide_late(run_id, decide, by=by)


async def take_back(context: Context, run: RunRow, called: Container[UUID]) -> None:
    """Record each intent of this lease that is not in `called` as not done, with `retry`."""
    for effect in await context.store.effects.of_run(run.run_id):
        is_own = effect.lease_seq == run.lease_seq and effect.status is EffectStatus.ISSUED
        if is_own and effect.effect_id not in called:
            with contextlib.suppress(IllegalMove):
                note = "its call was never made"
                await settle(context, effect, EffectStatus.NOT_DONE, note=note, retry=True)


async def _unblock_others(context: Context, effect: Effect, *, by: str) -> None:
    """Unblock other runs that this effect blocks: a fork, or a run with the same key."""
    before: tuple[int, str] | None = None
    while True:
        wanted = RunFilter(status=runs.RunStatus.BLOCKED, limit=_PAGE, before=before)
        page = await context.store.runs.page(wanted)
        for run in page:
            is_other = run.run_id != effect.run_id and runs.is_blocked_by_effect(run)
            if is_other and str(effect.effect_id) in await last_note(context, run.run_id):
                await unblock(context, run.run_id, by=by)
        if len(page) < _PAGE:
            return
        before = (page[-1].created_at, page[-1].run_id)


async def report(context: Context, run_id: str, outcome: Draft) -> None:
    """Report the outcome of an effect after its run was lost, unless one is already recorded.

    Only the worker that lost its run in the middle of a call saw how the call ended.
    """
    facts = outcome.facts
    assert isinstance(facts, effects.EffectSettled), "an outcome settles an effect"
    effect = await context.store.effects.get(facts.effect_id)
    status = effects.STATUS_OF[outcome.kind]
    if effect is None or effect.status in (*effects.SETTLED, status):
        return
    with contextlib.suppress(IllegalMove):
        await settle(context, effect, status, body=outcome.body, note=facts.note)


def _check_resolvable(effect: Effect, *, now: int, force: bool) -> None:
    """Raise IllegalMove if the outcome of an effect is known, or its tool may be running."""
    if effect.status in effects.SETTLED:
        since = clock.to_datetime(effect.settled_at).isoformat()
        raise IllegalMove(
            f"effect {effect.effect_id} is {effect.status} since {since}; an outcome never changes"
        )
    if not (force or effects.is_in_doubt(effect, now=now)):
        until = clock.to_datetime(effect.limit_at).isoformat()
        raise IllegalMove(
            f"{effect.tool} may be running until {until}; wait until then, or if you know that "
            "nothing runs any more, use force"
        )


async def _is_said(context: Context, effect: Effect, retry: bool, body: bytes) -> bool:
    """Return whether a settled effect was recorded with exactly this outcome."""
    found = await context.store.journal.named(effect.run_id, [effect.result_seq])
    if not found or not _is_outcome_of(effect, found[0]):
        return False
    facts = indexes.facts_of(found[0].entry)
    if effect.status is not EffectStatus.COMPLETED:
        return facts.retry == retry
    with contextlib.suppress(IntegrityError):  # its body may be erased
        said = codec.canonical_digest(body_of(found[0].entry))
        return said == codec.canonical_digest(codec.decode(body))
    return False


async def _has_raised(context: Context, effect: Effect) -> bool:
    """Return whether the call of an unknown effect raised: its error text is recorded."""
    found = await context.store.journal.named(effect.run_id, [effect.result_seq])
    return bool(found) and _is_outcome_of(effect, found[0]) and bool(found[0].entry.body)


async def _result(context: Context, effect: Effect) -> Any:
    found = await context.store.journal.named(effect.run_id, [effect.result_seq])
    if not found or not _is_outcome_of(effect, found[0]):
        raise IntegrityError(
            f"the result of effect {effect.key} (entry {effect.result_seq} of run "
            f"{effect.run_id}) is damaged; it was not used. Find out what it came to; if the call "
            f"may be made again: `holdfast runs rewind {effect.run_id} --to VERSION --resend "
            f"{effect.effect_id}`"
        )
    return body_of(found[0].entry)


def _is_outcome_of(effect: Effect, linked: Linked) -> bool:
    """Return whether an entry is intact, and recorded the status of this effect."""
    entry = linked.entry
    kind = effects.KIND_OF.get(effect.status)
    if entry.kind != kind or not journal.is_intact(entry, linked.previous or b""):
        return False
    return indexes.facts_of(entry).effect_id == effect.effect_id
