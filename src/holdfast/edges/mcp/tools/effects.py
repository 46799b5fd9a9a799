"""Tools for calls whose outcome nobody knows: which there are, and a person's word on them."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import clock
from holdfast.app import Holdfast
from holdfast.edges.mcp.contract import (
    BadArguments,
    Limit,
    McpCall,
    Note,
    RunId,
    ServedTool,
    served,
)
from holdfast.edges.mcp.views import Room
from holdfast.engine.effects import Outcome
from holdfast.engine.reading.journal import body_of
from holdfast.errors import EffectNotFound, IntegrityError
from holdfast.kernel.effects import Effect
from holdfast.kernel.runs import RunStatus

_MOST_BELOW: Final = 200

EffectId = Annotated[
    str,
    Meta(
        description="The id of an effect: see list_unknown_effects.", min_length=1, max_length=255
    ),
]


class ListUnknownEffects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId | None = None
    limit: Limit = 50


class DoubtfulEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that may have happened. `problem` says why its `args` are not here."""

    effect_id: str
    run_id: str
    tool: str
    status: str
    args: Any = None
    problem: str = ""
    args_digest: str
    call_id: str = ""
    key: str
    issued_at: datetime
    limit_at: datetime
    age_seconds: float


class DoubtfulEffects(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in doubt, those first whose time limit passed first. More are shown when these are
    resolved, or with a larger limit."""

    effects: list[DoubtfulEffect]
    has_more: bool


class ResolveEffect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effect_id: EffectId
    outcome: Annotated[
        Outcome,
        Meta(
            description="happened: with its `result`, which the agent gets. did_not_happen: the "
            "agent is informed. retry: it did not happen, and the call is made again."
        ),
    ]
    result: Annotated[
        Any, Meta(description="What the call gave, if it happened; null if nothing.")
    ] = UNSET
    note: Note = ""
    force: Annotated[
        bool, Meta(description="Also if its time limit is not over: nothing runs any more.")
    ] = False


class ResolvedEffect(msgspec.Struct, frozen=True, kw_only=True):
    effect_id: str
    run_id: str
    tool: str
    status: str
    settled_at: datetime
    run_status: str


@served(title="List calls in doubt", is_read_only=True)
async def list_unknown_effects(call: McpCall, given: ListUnknownEffects) -> DoubtfulEffects:
    """Calls of tools that may or may not have happened, of all runs of the caller, or of one.

    Of one run, and of those below it that it waits for.

    Somebody has to look where they would have had their effect, and say so with resolve_effect.
    """
    most, owner = given.limit + 1, call.principal.owner
    found: list[Effect] = []
    for run_id in [None] if given.run_id is None else await _tree(call, given.run_id):
        found += await call.hf.effects.in_doubt(run_id=run_id, owner=owner, limit=most)
    room = Room()
    now = clock.SystemClock().now()
    return DoubtfulEffects(
        effects=[await _doubtful(call.hf, each, room, now) for each in found[: given.limit]],
        has_more=len(found) > given.limit,
    )


async def _tree(call: McpCall, run_id: str) -> list[str]:
    """A run, and those below it that it waits for; of very many the first."""
    found = [(await call.run(run_id)).run_id]
    for above in found:
        for status in (RunStatus.BLOCKED, RunStatus.WAITING):
            below = await call.hf.runs.list(parent_id=above, status=status, limit=_MOST_BELOW)
            found += [run.run_id for run in below]
        if len(found) >= _MOST_BELOW:
            break
    return found


@served(title="Say what became of a call", is_destructive=True, is_idempotent=True)
async def resolve_effect(call: McpCall, given: ResolveEffect) -> ResolvedEffect:
    """Say what became of a call in doubt: a run that is blocked because of it goes on at once.

    Find out first: what is said is believed, and stays. The same again changes nothing, another
    outcome is refused.
    """
    _check_result(given)
    known = await call.hf.effects.get(given.effect_id)
    await call.check_visible(known.run_id, EffectNotFound(f"there is no effect {given.effect_id}"))
    effect = await call.hf.effects.resolve(
        known.effect_id,
        given.outcome,
        result=None if isinstance(given.result, UnsetType) else given.result,
        by=call.by,
        note=given.note,
        force=given.force,
    )
    run = await call.run(effect.run_id)
    return ResolvedEffect(
        effect_id=str(effect.effect_id),
        run_id=effect.run_id,
        tool=effect.tool,
        status=effect.status.value,
        settled_at=clock.to_datetime(effect.settled_at),
        run_status=run.status.value,
    )


def _check_result(given: ResolveEffect) -> None:
    has_result = given.result is not UNSET
    if (given.outcome == "happened") is not has_result:
        problem = "result: only what happened has one" if has_result else "result: null if nothing"
        raise BadArguments("resolve_effect takes `result` with happened", problems=[problem])


async def _doubtful(hf: Holdfast, effect: Effect, room: Room, now: int) -> DoubtfulEffect:
    args, problem = await _arguments(hf, effect)
    if not problem and not room.takes(args):
        args, problem = None, f"they are too large; see entry {effect.issued_seq} of the run"
    return DoubtfulEffect(
        effect_id=str(effect.effect_id),
        run_id=effect.run_id,
        tool=effect.tool,
        status=effect.status.value,
        args=args,
        problem=problem,
        args_digest=effect.args_digest.hex(),
        call_id=effect.call_id,
        key=effect.key,
        issued_at=clock.to_datetime(effect.issued_at),
        limit_at=clock.to_datetime(effect.limit_at),
        age_seconds=round(max(0.0, (now - effect.issued_at) / clock.MICROSECONDS), 3),
    )


async def _arguments(hf: Holdfast, effect: Effect) -> tuple[Any, str]:
    """Return a call's arguments, or why they cannot be read, so that the others are seen."""
    try:
        (entry,) = await hf.journal.read(effect.run_id, after=effect.issued_seq - 1, limit=1)
        return body_of(entry), ""
    except (IntegrityError, ValueError) as error:
        return None, str(error) or "their entry is not there"


TOOLS: tuple[ServedTool, ...] = (list_unknown_effects, resolve_effect)
