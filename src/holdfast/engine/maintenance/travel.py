"""Time travel: a new run from an old version, or the same run back to one, in one commit.

What was done outside after that version stays done. The first state of a fork or a rewound run
lists it (`kernel.travel`), so that it is given back and not sent again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import codec, ids, names
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.maintenance import replayed_effects
from holdfast.engine.maintenance.copied_records import NOTHING, CopiedRecord, current_record
from holdfast.engine.maintenance.replayed_effects import MadeCall, ReplayableCalls
from holdfast.engine.messages.peers import reply_to_call
from holdfast.engine.reading import turns
from holdfast.engine.reading.versions import load_newest, load_parts
from holdfast.engine.sweeper import is_held
from holdfast.engine.waits import Waits
from holdfast.engine.writing import unheld_runs
from holdfast.engine.writing.unheld_runs import append_at_head
from holdfast.errors import IntegrityError, MisuseError, RunNotFound
from holdfast.kernel import checkpoints, handoffs, indexes, journal, records, runs, travel, waits
from holdfast.kernel.edits import OWN_PARTS, Edits
from holdfast.kernel.effects import Effect
from holdfast.kernel.handoffs import Standing
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Flaw, Kind, NoFacts, Problem
from holdfast.kernel.runs import RunRow
from holdfast.kernel.state import Parts
from holdfast.kernel.travel import FRESH, PAST, RESEND, TURN, CallThen, Fresh, PastItem, Then
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.stores.reads import MarkFilter, RunAtHead

_PAGE: Final = 1000
_OF_OWNERS: Final = (Kind.RUN_CREATED, Kind.HANDOFF_ACKNOWLEDGED, Kind.RUN_REWOUND)


class PlannedEffect(msgspec.Struct, frozen=True):
    """An effect after the version, of the run or of one below it, and what a call of it meets:
    `then` is `given_back` (it is not sent again), `to_be_resolved` (it may have happened), or
    `not_there` (it is sent)."""

    effect: Effect
    then: Then


class PlannedCall(msgspec.Struct, frozen=True):
    """A call of another agent after the version: the run that was called, and what happens to it.

    `then` is `replayed` (its reply is given back), `taken_over` (it is pending: a caller that asks
    for it again waits for it) or `made_again` (it failed or was cancelled: a new run continues what
    it did). A rewind cancels pending calls that its next turn does not ask for.
    """

    run_id: str
    agent: str
    caller: str
    then: CallThen


class Unclaimed(msgspec.Struct, frozen=True):
    """Something that a run did before it went back, and that its code has not asked for again."""

    kind: str
    name: str
    item_id: str


class TravelPlan(msgspec.Struct, frozen=True):
    """What lies after a version: going back undoes none of it.

    `unclaimed` is what the run did before it went back the last time, and has not asked for since.
    """

    run_id: str
    version: int
    newest_version: int
    effects: list[PlannedEffect]
    open_waits: list[Wait]
    calls: list[PlannedCall] = []
    unclaimed: list[Unclaimed] = []

    @property
    def outside(self) -> list[Effect]:
        """The effects that exist outside, or may exist."""
        return [planned.effect for planned in self.effects if planned.then != "not_there"]


class TravelRequest(msgspec.Struct, frozen=True):
    """A request besides the version: parts to be edited, effects and calls to be sent again, and
    the actor. `serves` if it is a recovery: all that is intact serves the code again."""

    by: str = ""
    note: str = ""
    edits: Mapping[str, object] = {}
    resend: tuple[str, ...] = ()
    serves: bool = False


def change_of(
    by: str, note: str, edits: Mapping[str, object] | None, resend: Collection[UUID | str]
) -> TravelRequest:
    """Check a caller's request; raises MisuseError if it is invalid."""
    for name in edits or ():
        if names.check(name, what="the name of a part of the state").startswith(OWN_PARTS):
            raise MisuseError(f"{name!r} is kept by Holdfast; parts {OWN_PARTS}… cannot be edited")
    if isinstance(resend, str):
        raise MisuseError(f"resend is a list of ids; give [{resend!r}]")
    return TravelRequest(
        by and names.check(by, what="by"),
        names.check_text(note, what="note"),
        dict(edits or {}),
        tuple(dict.fromkeys(names.check(str(each), what="what to send again") for each in resend)),
    )


class _TravelPoint(msgspec.Struct):
    """A version to go back to, and what came after it."""

    run: RunRow
    version: int
    seq: int
    parts: Parts
    past: list[PastItem]
    done: ReplayableCalls
    keys: dict[str, str]
    copied: CopiedRecord = NOTHING

    @property
    def turn(self) -> int:
        """The number of its turn, which is the same in every run that continues from it."""
        return travel.turn_at(self.version, self.parts.decode_part(TURN))

    @property
    def has_turns(self) -> bool:
        """Whether its versions were made by an agent's code, which has keys by turn."""
        known = (TURN, *travel.LEFT)
        return self.version == 0 or any(name in self.parts.values for name in known)


async def plan(context: Context, run_id: str, version: int) -> TravelPlan:
    """Return what lies after a version of a run."""
    point = await _find(context, await _get(context, run_id), version)
    newest = await context.store.checkpoints.page(run_id, before=2**62, limit=1)
    opened = await context.store.waits.of_run(run_id)
    effects, calls = list(point.done.effects), list(point.done.calls)
    for call in point.done.calls:
        found = await replayed_effects.below(context, call)
        effects += found.effects
        calls += found.calls
    known = {effect.effect_id: effect for effect in effects}
    return TravelPlan(
        run_id,
        version,
        newest[0].version if newest else 0,
        [PlannedEffect(effect, travel.then_of(effect)) for effect in known.values()],
        [wait for wait in opened if wait.status is WaitStatus.OPEN],
        [await _planned(context, call) for call in calls],
        await unclaimed(context, run_id),
    )


async def _planned(context: Context, call: MadeCall) -> PlannedCall:
    wait, child, item = call.wait, call.child, call.item
    status = WaitStatus.CANCELLED if wait is None else wait.status
    if call.is_placed and child is not None and child.status not in runs.ENDED:
        status = WaitStatus.OPEN
    is_completed = child is not None and child.status is runs.RunStatus.COMPLETED
    if wait is not None and child is None and status is WaitStatus.RESOLVED:
        reply = await reply_to_call(context, Waits(context), wait.wait_id)
        is_completed = reply is not None and reply.status == "completed"
    is_served = wait is not None or call.is_placed
    then = travel.then_of_call(status, is_completed=is_completed and is_served)
    run_id = item.item_id if child is None else child.run_id
    caller = wait.run_id if wait is not None else (child.parent_id if child else "")
    return PlannedCall(run_id, item.name, caller, then)


async def unclaimed(context: Context, run_id: str) -> list[Unclaimed]:
    """Return what a run did before it went back, and its code has not asked for again."""
    try:
        left = (await load_newest(context, run_id)).parts.decode_part(PAST, [])
    except IntegrityError:
        return []
    items = [msgspec.convert(item, PastItem) for item in left]
    return [Unclaimed(item.kind, item.name, item.item_id) for item in items if item.item_id]


async def fork(
    context: Context, run_id: str, version: int, new_run_id: str | None, change: TravelRequest
) -> RunRow:
    """Create a run that begins with another's state at a version."""
    new_id = unheld_runs.choose_id(new_run_id)
    original = await _get(context, run_id)
    await _check_has_no_marks(context, run_id)
    point = await _find(context, original, version)
    has_signals = bool(await context.store.signals.of_run(run_id))
    standing = await standing_at(context, original, point.seq)
    facts = runs.RunCreated(
        standing.agent,
        original.input_digest,
        original.root_id,
        "",
        run_id,
        version,
        change.note,
        subject=original.subject,
        owner=original.owner,
    )
    body = codec.encode(await turns.input_of(context, run_id), name="input")
    versions = _CopiedVersions(context, Parts(), parent=0, seq=2)
    await versions.restore(point, change, new_id, "forked", is_answered=has_signals)
    await versions.edit(point, change)
    drafts = [Draft(Kind.RUN_CREATED, facts, body), *versions.drafts]
    return await unheld_runs.create(context, new_id, drafts, by=change.by)


async def _check_has_no_marks(context: Context, run_id: str) -> None:
    if await context.store.marks.page(MarkFilter(run_id=run_id, limit=1)):
        raise MisuseError(
            f"run {run_id} is a thread of a framework, which has checkpoints of its own: go back "
            "there (LangGraph: invoke with a checkpoint_id, update_state), or copy_thread()"
        )


async def rewind(
    context: Context,
    run_id: str,
    version: int,
    change: TravelRequest,
    *,
    takeover: bool,
    then: Sequence[Draft] = (),
) -> RunRow:
    """Resume a run from an earlier version; decide again if its journal grows meanwhile.

    `then` follows in the same commit.
    """

    async def decide(head: RunAtHead, now: int) -> Sequence[Draft]:
        await _check_has_no_marks(context, run_id)
        alive = await is_held(context, head.run)
        travel.check_rewind(head.run, holder_alive=alive, takeover=takeover)
        return [*await _rewinding(context, head, version, change), *then]

    advice = "block it (hf.runs.block), then rewind it"
    await append_at_head(context, run_id, decide, by=change.by, advice=advice)
    return await _get(context, run_id)


async def standing_at(context: Context, run: RunRow, seq: int) -> Standing:
    """Return which agent had a run when its journal ended at `seq`; a handoff may have followed."""
    giver = run.giver if run.handoff else run.agent
    if run.contexts == 1:
        return Standing(giver, 1)
    # A receiver acknowledges right after the checkpoint that begins its context, in one commit.
    entries = [
        entry
        for entry in await _telling_of_owners(context, run.run_id, upto=seq + 1)
        if entry.seq <= seq or entry.kind == Kind.HANDOFF_ACKNOWLEDGED
    ]
    pairs = [(entry, indexes.facts_of(entry)) for entry in entries]
    first: runs.RunCreated = pairs[0][1]
    return handoffs.standing_at(pairs, first.agent)


async def _telling_of_owners(context: Context, run_id: str, *, upto: int) -> list[Entry]:
    """Return the entries that name a run's agent; if damaged, only these must be intact."""
    found: list[Entry] = []
    after = ORIGIN
    while page := await context.store.journal.read(run_id, after=after.seq, limit=_PAGE):
        for entry in page:
            if entry.seq > upto:
                return found
            if entry.kind in _OF_OWNERS:
                if not journal.is_intact(entry, after.link):
                    raise journal.corrupted(Problem(run_id, entry.seq, Flaw.CHANGED, "is damaged"))
                found.append(entry)
            after = entry.position
    return found


async def _rewinding(
    context: Context, head: RunAtHead, version: int, change: TravelRequest
) -> list[Draft]:
    run, seq = head.run, head.position.seq + 1
    point = await _find(context, run, version)
    opened = [
        w for w in await context.store.waits.of_run(run.run_id) if w.status is WaitStatus.OPEN
    ]
    if change.serves:
        more = await replayed_effects.intact_after(context, run.run_id, point.seq)
        point.past = travel.past_of(point.past, more)
    named = {item.item_id for item in point.past}
    kept = {wait.wait_id for wait in opened if wait.wait_id in named}
    kept |= _at_work(point.done.calls, run.run_id)
    given_up = set[str]() if change.serves else kept
    point.past = [_kept(item, given_up) for item in point.past]
    signals = await context.store.signals.of_run(run.run_id)
    is_answered = any(signal.taken_seq > point.seq for signal in signals)
    try:
        onto, base = (await load_newest(context, run.run_id)).parts, None
    except IntegrityError:
        onto, base = await _from_nothing(context, run.run_id, seq + 1)
    versions = _CopiedVersions(context, onto, parent=version, seq=seq + (1 if base is None else 2))
    await versions.restore(point, change, run.run_id, "rewound", is_answered=is_answered)
    await versions.edit(point, change)
    standing = await standing_at(context, run, point.seq)
    rewound = runs.Rewound(version, change.note, keeps_waits=True)
    if (standing.agent, standing.contexts) != (run.agent, run.contexts):
        rewound = runs.Rewound(
            version, change.note, standing.agent, standing.contexts, keeps_waits=True
        )
    begun = [Draft(Kind.RUN_REWOUND, rewound), *([] if base is None else [base])]
    # What a peer elsewhere asks belongs to the call of that peer.
    closed = [wait for wait in opened if wait.wait_id not in kept and wait.name not in kept]
    groups: dict[str, waits.Group] = {}
    for group_id in dict.fromkeys(wait.group_id for wait in closed):
        group = await context.store.waits.group(run.run_id, group_id)
        if group is not None:
            groups[group_id] = group
    return [*begun, *versions.drafts, *_cancelled(run, closed, groups)]


def _at_work(calls: Sequence[MadeCall], run_id: str) -> set[str]:
    """Return the runs that the code of a run has started, and that have not ended."""
    placed = [call.child for call in calls if call.is_placed and call.child is not None]
    return {
        child.run_id
        for child in placed
        if child.parent_id == run_id and child.status not in runs.ENDED
    }


def _kept(item: PastItem, kept: Collection[str]) -> PastItem:
    """Return an item that notes whether its wait or run is left for the next turn only."""
    is_kept = item.item_id in kept
    return item if item.is_kept is is_kept else msgspec.structs.replace(item, is_kept=is_kept)


def _cancelled(
    run: RunRow, closed: Sequence[Wait], groups: Mapping[str, waits.Group]
) -> list[Draft]:
    """Return the entries that cancel waits of a run that resumes at another version."""
    ready = msgspec.structs.replace(run, status=runs.RunStatus.READY, waiting_on="")
    counted = dict(groups)
    drafts: list[Draft] = []
    for wait in closed:
        group = counted[wait.group_id]
        if group.status is waits.GroupStatus.OPEN:
            drafts += waits.settle(ready, wait, group, WaitStatus.CANCELLED)
            group = waits.counted(group, failed=1)
            counted[wait.group_id] = msgspec.structs.replace(group, status=waits.judge(group))
    return drafts


async def _from_nothing(context: Context, run_id: str, seq: int) -> tuple[Parts, Draft]:
    """Return an empty state after a newest version that cannot be loaded, and its base.

    A load from there on reads nothing that is damaged.
    """
    (newest,) = await context.store.checkpoints.page(run_id, before=2**62, limit=1)
    parts = Parts()
    parts.version, parts.base_seq = newest.version, seq
    body = checkpoints.encode_body(checkpoints.Base({}, {}))
    return parts, Draft(Kind.STATE_BASE, checkpoints.BaseFacts(newest.version), body)


class _CopiedVersions:
    """The versions that a travel adds: the state it goes back to, then what is edited in it."""

    def __init__(self, context: Context, onto: Parts, *, parent: int, seq: int) -> None:
        self._context = context
        self._onto = onto
        self._newest = onto.version
        self._parent = parent
        self._seq = seq
        self.drafts: list[Draft] = []

    async def restore(
        self,
        point: _TravelPoint,
        change: TravelRequest,
        run_id: str,
        label: str,
        *,
        is_answered: bool,
    ) -> None:
        """Add the state of the point, with what was done since."""
        parts, version = point.parts, self._newest + 1
        logs = {n: [parts.data_of(raw) for raw in log.items] for n, log in parts.logs.items()}
        values = {name: parts.data_of(raw) for name, raw in parts.values.items()}
        if label == "forked":
            values = {name: raw for name, raw in values.items() if name not in travel.LEFT}
        prepared = await replayed_effects.prepare(
            self._context,
            point.past,
            point.done,
            point.keys,
            change.resend,
            origin=(point.run.run_id, point.version),
            target=(run_id, version),
        )
        fresh = _freshness(point, is_answered=is_answered)
        if prepared.items or PAST in logs:
            logs[PAST] = [_raw(item) for item in prepared.items]
        if prepared.keys:
            values[RESEND] = _raw(prepared.keys)
        if point.has_turns:
            values[TURN] = _raw((version + bool(change.edits), point.turn))
        if fresh is not None:
            values[FRESH] = _raw(fresh)
        for name in travel.KEPT:
            if name in self._onto.values:
                values[name] = self._onto.data_of(self._onto.values[name])
        if point.copied.revision is not None:
            values[records.PART] = point.copied.revision
        edits = self._edits(self._onto)
        edits.restore(logs, values)
        self._add(edits, label, point.copied)

    async def edit(self, point: _TravelPoint, change: TravelRequest) -> None:
        """Add exactly the edits, as a separate version: a person asked for all its changes."""
        if not change.edits:
            return
        edits = self._edits(point.parts)
        known = (*point.parts.logs, *point.parts.values)
        logs: Collection[str] = point.parts.logs
        if any(name not in known for name in change.edits):
            # A later version of the run shows which kind such a part is.
            later = (await load_newest(self._context, point.run.run_id)).parts.logs
            logs = {*logs, *(name for name in later if name not in known)}
        for name, value in change.edits.items():
            edits.replace(name, value, is_log=name in logs)
        self._add(edits, "edited", point.copied)

    def _edits(self, parts: Parts) -> Edits:
        return Edits(parts, max_bytes=self._context.settings.max_body_bytes)

    def _add(self, edits: Edits, label: str, copied: CopiedRecord) -> None:
        delta, values = edits.split(self._seq + len(self.drafts))
        if values:
            self.drafts.append(Draft(Kind.STATE_VALUES, NoFacts(), values))
        created = checkpoints.CheckpointCreated(
            ids.uuid7(),
            self._newest + 1,
            self._parent,
            self._onto.base_seq,
            phase=copied.phase,
            agent=copied.agent,
            label=label,
            record=copied.summary,
        )
        self._newest = self._parent = self._newest + 1
        body = checkpoints.encode_body(delta)
        self.drafts.append(Draft(Kind.CHECKPOINT_CREATED, created, body))


async def _find(context: Context, run: RunRow, version: int) -> _TravelPoint:
    """Return a version of a run and what came after it. Raises CheckpointNotFound."""
    names.check_count(version, what="version")
    found = await context.store.checkpoints.get(run.run_id, version) if version else None
    if found is None:
        await Checkpoints(context).load(run.run_id, version)  # raises what is missing
        seq, at, parts, copied = 0, 0, Parts(), NOTHING
    else:
        seq, at, parts = found.seq, found.created_at, await load_parts(context, found)
        copied = await current_record(context, found)
    left = [msgspec.convert(item, PastItem) for item in parts.decode_part(PAST, [])]
    before = (
        ReplayableCalls(
            [],
            await replayed_effects.effects_of(context, left),
            await replayed_effects.calls_of(context, left),
        )
        if version
        else await replayed_effects.done_before_fork(context, run)
    )
    later = await replayed_effects.done_after(context, run.run_id, seq=seq, at=at)
    past = travel.past_of(left, [*before.items, *later.items])
    keys = parts.decode_part(RESEND, {}) | await replayed_effects.keys_of(context, run.run_id)
    return _TravelPoint(
        run, version, seq, parts, past, ReplayableCalls.join([before, later]), keys, copied
    )


def _freshness(point: _TravelPoint, *, is_answered: bool) -> Fresh | None:
    """Return whether the agent finds its input, or the next message of a session, untouched."""
    if point.version == 0:
        return "start"
    stored: Fresh | None = point.parts.decode_part(FRESH)
    return stored or ("message" if is_answered else None)


async def _get(context: Context, run_id: str) -> RunRow:
    found = await context.store.runs.get(names.check(run_id, what="run id"))
    if found is None:
        raise _no_run(run_id)
    return found


def _no_run(run_id: str) -> RunNotFound:
    return RunNotFound(f"there is no run {run_id!r}; `holdfast runs list` shows those that are")


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(codec.encode(value))
