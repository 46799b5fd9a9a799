"""What a run did after a point that it goes back to: effects, and calls of other agents.

What lies below a call belongs to the run that was called. A call that is made again begins a run
with the root of the former one, and with everything that one did (`continued`).
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.engine.reading.proved_effects import effects_after
from holdfast.engine.reading.versions import load_newest
from holdfast.errors import HoldfastError, IntegrityError, SchemaMismatch
from holdfast.kernel import indexes, journal, signals, travel, waits
from holdfast.kernel.checkpoints import Step
from holdfast.kernel.edits import OWN_PARTS
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import ORIGIN, Entry, Header, Kind
from holdfast.kernel.peers import PEER, call_of
from holdfast.kernel.runs import RunCreated, RunRow
from holdfast.kernel.travel import PAST, RESEND, START, PastItem, StartedRun
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.stores.reads import RunFilter

_PAGE: Final = 1000
_DEEPEST: Final = 64
_NONE_LOST: Final = 2**62
_OF_CHECKPOINTS: Final = frozenset({Kind.CHECKPOINT_CREATED, Kind.STATE_VALUES, Kind.STATE_BASE})


class MadeCall(NamedTuple):
    """A call of another agent, and the run that was called if it is in this store.

    `is_placed` says that the agent's code has started the run with parent=, and asks for it again.
    """

    item: PastItem
    wait: Wait | None
    child: RunRow | None
    is_placed: bool = False


class ReplayableCalls(NamedTuple):
    """What a run did after a point, in order."""

    items: list[PastItem]
    effects: list[Effect]
    calls: list[MadeCall]

    @classmethod
    def join(cls, parts: Iterable["ReplayableCalls"]) -> "ReplayableCalls":
        """Concatenate parts in order."""
        found = list(parts)
        return cls(
            [item for part in found for item in part.items],
            [effect for part in found for effect in part.effects],
            [call for part in found for call in part.calls],
        )


async def done_after(context: Context, run_id: str, *, seq: int, at: int) -> ReplayableCalls:
    """Return what a run did after an entry, and who was started with parent= after it.

    `at` is when the entry was written: for children that do not say what they followed.
    """
    effects = await effects_after(context, run_id, seq=seq)
    opened = [w for w in await context.store.waits.of_run(run_id) if w.opened_seq > seq]
    calls = await _calls(context, run_id, [wait for wait in opened if wait.kind == PEER])
    there = [effect for effect in effects if travel.then_of(effect) != "not_there"]
    order = [(effect.issued_seq, travel.item_of(effect)) for effect in there]
    order += [(call.wait.opened_seq, call.item) for call in calls if call.wait is not None]
    recorded = await _recorded_starts(context, run_id, seq)
    order += [(started_seq, call.item) for started_seq, call in recorded]
    items = [item for _, item in sorted(order, key=lambda pair: pair[0])]
    begun = await _started_after(context, run_id, seq=seq, at=at)
    known = {call.item.item_id for _, call in recorded}
    others = [
        MadeCall(_start_item(child), None, child) for child in begun if child.run_id not in known
    ]
    calls += [call for _, call in recorded]
    return ReplayableCalls([*items, *(call.item for call in others)], effects, [*calls, *others])


async def _recorded_starts(context: Context, run_id: str, seq: int) -> list[tuple[int, MadeCall]]:
    """Return the runs that the agent's code started after an entry, with the entries saying so."""
    seqs: list[int] = []
    after = seq
    while page := await context.store.journal.headers_after(run_id, after=after, limit=_PAGE):
        seqs += [entry.seq for entry in page if _is_start(entry)]
        after = page[-1].seq
    found: list[tuple[int, MadeCall]] = []
    for linked in await context.store.journal.named(run_id, seqs):
        if not journal.is_intact(linked.entry, linked.previous or b""):
            continue  # the row of the run shows it
        try:
            started = msgspec.convert(body_of(linked.entry), StartedRun)
        except (HoldfastError, msgspec.ValidationError):
            continue
        child = await context.store.runs.get(started.run_id)
        item = PastItem("start", started.agent, started.digest, started.root, started.run_id)
        found.append((linked.entry.seq, MadeCall(item, None, child, is_placed=True)))
    return found


def _is_start(entry: Header) -> bool:
    if entry.kind != Kind.STEP_RECORDED:
        return False
    try:
        facts = indexes.facts_of(entry)
    except (IntegrityError, SchemaMismatch):
        return False
    return isinstance(facts, Step) and facts.name == START


async def _started_after(context: Context, run_id: str, *, seq: int, at: int) -> list[RunRow]:
    """Return the runs that were started with parent= after an entry, the oldest first."""
    started = [child async for child in _started(context, run_id)]
    created = await context.store.journal.headers([(child.run_id, 1) for child in started])
    followed = {each.run_id: _followed(each) for each in created}
    return [
        child
        for child in reversed(started)
        if (followed.get(child.run_id, 0) or (seq if child.created_at <= at else seq + 1)) > seq
    ]


def _followed(created: Header) -> int:
    """Return the last entry of its parent when a run was created; 0 if it does not say."""
    try:
        facts = indexes.facts_of(created)
    except (IntegrityError, SchemaMismatch):
        return 0
    # The entry that it followed is part of its past, too.
    return facts.parent_seq + 1 if isinstance(facts, RunCreated) and facts.parent_seq else 0


async def done_before_fork(context: Context, run: RunRow) -> ReplayableCalls:
    """Return all that was done by the runs that a run was forked from, or continues."""
    found: list[ReplayableCalls] = []
    origin = await context.store.runs.get(run.forked_from) if run.forked_from else None
    while origin is not None:
        found.insert(0, await done_after(context, origin.run_id, seq=0, at=0))
        origin = await context.store.runs.get(origin.forked_from) if origin.forked_from else None
    return ReplayableCalls.join(found)


async def _calls(context: Context, run_id: str, opened: Sequence[Wait]) -> list[MadeCall]:
    stored = await _payloads(context, run_id, {wait.opened_seq for wait in opened})
    found: list[MadeCall] = []
    for wait in opened:
        child = await context.store.runs.get(call_of(wait.wait_id, wait.address))
        payload = stored.get(wait.wait_id, {})
        root = payload.get("root") or (child.root_id if child else "")
        agent = payload.get("agent") or (child.agent if child else "")
        digest = payload.get("digest") or (child.input_digest if child else b"")
        if root:  # else it was not opened by an agent's code
            item = PastItem("call", agent, digest, root, wait.wait_id)
            found.append(MadeCall(item, wait, child))
    return found


async def _payloads(
    context: Context, run_id: str, seqs: Collection[int]
) -> dict[str, dict[str, Any]]:
    """Return the intact payloads of waits, by their ids."""
    found: dict[str, dict[str, Any]] = {}
    for linked in await context.store.journal.named(run_id, sorted(seqs)):
        if journal.is_intact(linked.entry, linked.previous or b""):
            found |= _payloads_in(linked.entry)
    return found


def _payloads_in(entry: Entry) -> dict[str, dict[str, Any]]:
    try:
        body = body_of(entry)
    except HoldfastError:
        return {}
    if not isinstance(body, dict):
        return {}
    payloads = cast("dict[str, Any]", body).items()
    return {wait_id: payload for wait_id, payload in payloads if isinstance(payload, dict)}


async def _started(context: Context, run_id: str) -> AsyncIterator[RunRow]:
    """Yield the runs that were begun with parent=, the newest first."""
    before: tuple[int, str] | None = None
    while True:
        page = await context.store.runs.page(RunFilter(parent=run_id, limit=_PAGE, before=before))
        for run in page:
            if not run.reply_to:
                yield run
        if len(page) < _PAGE:
            return
        before = (page[-1].created_at, page[-1].run_id)


async def started_before(
    context: Context, parent_id: str, agent: str, digest: bytes
) -> PastItem | None:
    """Return the run that a parent began before it went back, for a new run to continue."""
    parent = await context.store.runs.get(parent_id) if parent_id else None
    if parent is None:
        return None
    wanted = RunFilter(parent=parent_id, agent=agent, limit=_PAGE)
    begun = await context.store.runs.page(wanted) if agent else []
    if not parent.forked_from and all(run.input_digest != digest for run in begun):
        return None
    state = (await load_newest(context, parent_id)).parts
    if parent.forked_from and not state.version:
        past = (await continued(context, parent)).items
    else:
        past = [msgspec.convert(item, PastItem) for item in state.decode_part(PAST, [])]
    claimed = {run.forked_from for run in begun}
    left = [item for item in past if item.item_id not in claimed]
    return travel.find(left, "start", agent, digest)


def _start_item(child: RunRow) -> PastItem:
    return PastItem("start", child.agent, child.input_digest, child.root_id, child.run_id)


class CallsBelow(NamedTuple):
    """All effects and calls below a call, however deep."""

    effects: list[Effect]
    calls: list[MadeCall]

    @property
    def ids(self) -> set[str]:
        """The ids by which any of it can be sent again."""
        named = {str(effect.effect_id) for effect in self.effects}
        return named.union(*(ids_of(call) for call in self.calls))


def ids_of(call: MadeCall) -> set[str]:
    """Return the ids by which a call can be named: that of its wait, and that of the run."""
    found = {call.item.item_id} if call.item.item_id else set[str]()
    return found | {call.child.run_id} if call.child is not None else found


async def below(context: Context, call: MadeCall, *, depth: int = 0) -> CallsBelow:
    """Return everything that was done below a call and is in this store."""
    if call.child is None or depth > _DEEPEST:
        return CallsBelow([], [])
    before = await done_before_fork(context, call.child)
    own = await done_after(context, call.child.run_id, seq=0, at=0)
    done = ReplayableCalls.join([before, own])
    effects, calls = list(done.effects), list(done.calls)
    for deeper in done.calls:
        found = await below(context, deeper, depth=depth + 1)
        effects += found.effects
        calls += found.calls
    known = {effect.effect_id: effect for effect in effects}
    return CallsBelow(
        list(known.values()), list({each.item.item_id: each for each in calls}.values())
    )


class PreparedPast(NamedTuple):
    """A past in its stored form: its items, and the keys that replace others."""

    items: list[PastItem]
    keys: dict[str, str]


async def prepare(
    context: Context,
    past: Sequence[PastItem],
    done: ReplayableCalls,
    keys: Mapping[str, str],
    resend: Sequence[str],
    *,
    origin: tuple[str, int],
    target: tuple[str, int],
) -> PreparedPast:
    """Build a past with what is to be sent again. Errors name `origin`; `target` makes the keys.

    Raises EffectNotFound for an unknown id, IllegalMove for what may not have happened.
    """
    own: list[PastItem] = []
    deeper: dict[str, list[str]] = {}
    by_place = {item.place: item for item in past}
    for wanted in resend:
        found = await _named(context, done, wanted)
        if found is None or found[0].place not in by_place:
            raise travel.not_after(wanted, run_id=origin[0], version=origin[1])
        item, is_below = found
        if is_below:
            deeper.setdefault(item.place, []).append(wanted)
        else:
            own.append(by_place[item.place])
    run_id, version = target
    made = travel.with_fresh_keys(past, own, run_id=run_id, version=version)
    made = [
        msgspec.structs.replace(item, resend=tuple(deeper[item.place]))
        if item.place in deeper
        else item
        for item in made
    ]
    return PreparedPast(made, travel.fresh_keys(own, keys, run_id=run_id, version=version))


async def _named(
    context: Context, done: ReplayableCalls, wanted: str
) -> tuple[PastItem, bool] | None:
    """Return the effect or call that an id names, or the call that it lies below."""
    for effect in done.effects:
        if str(effect.effect_id) == wanted:
            travel.check_resend(effect)
            return travel.item_of(effect), False
    for call in reversed(done.calls):
        if wanted in ids_of(call):
            return call.item, False
    for call in reversed(done.calls):
        found = await below(context, call)
        for effect in found.effects:
            if str(effect.effect_id) == wanted:
                travel.check_resend(effect)
        if wanted in found.ids:
            return call.item, True
    return None


async def continued(context: Context, run: RunRow) -> PreparedPast:
    """Return the past of a run, before its first version, that continues another from its start."""
    done = await done_before_fork(context, run)
    past = travel.past_of((), done.items)
    known = await keys_of(context, run.forked_from)
    resend = await _resend_of(context, run.run_id)
    at = (run.run_id, 0)
    return await prepare(context, past, done, known, resend, origin=at, target=at)


async def keys_of(context: Context, run_id: str) -> dict[str, str]:
    """Return which keys replace which others in a run now, at any version."""
    try:
        newest = (await load_newest(context, run_id)).parts
    except IntegrityError:
        return {}  # a fork from an intact version is the way out of damage
    run = await context.store.runs.get(run_id)
    if newest.version or run is None or not run.forked_from:
        return newest.decode_part(RESEND, {})
    return (await continued(context, run)).keys


async def _resend_of(context: Context, run_id: str) -> tuple[str, ...]:
    found = await context.store.journal.named(run_id, [1])
    facts = indexes.facts_of(found[0].entry) if found else None
    return facts.resend if isinstance(facts, RunCreated) else ()


async def effects_of(context: Context, past: Iterable[PastItem]) -> list[Effect]:
    """Return the effects that a past names."""
    named = [item.item_id for item in past if item.kind == "effect" and item.item_id]
    found = [await context.store.effects.get(UUID(effect_id)) for effect_id in named]
    return [effect for effect in found if effect is not None]


async def calls_of(context: Context, past: Iterable[PastItem]) -> list[MadeCall]:
    """Return the calls that a past names."""
    found: list[MadeCall] = []
    for item in past:
        if item.kind == "start":
            found.append(MadeCall(item, None, await context.store.runs.get(item.item_id)))
        elif item.kind == "call" and item.item_id:
            wait = await context.store.waits.get(item.item_id)
            call = item.item_id if wait is None else call_of(wait.wait_id, wait.address)
            found.append(MadeCall(item, wait, await context.store.runs.get(call)))
    return found


async def intact_after(context: Context, run_id: str, seq: int) -> list[PastItem]:
    """Return the intact answers, signals and steps after an entry of a damaged journal."""
    entries, lost_at = await _intact_entries(context, run_id, seq)
    rows = {wait.wait_id: wait for wait in await context.store.waits.of_run(run_id)}
    named = {each.signal_id: each.name for each in await context.store.signals.of_run(run_id)}
    found: list[PastItem] = []
    for entry in entries:
        match indexes.facts_of(entry):
            case waits.WaitsOpened():
                found += _asked_in(entry, rows)
            case signals.SignalTaken(signal_id) if signal_id in named and _has_place(entry):
                found.append(PastItem("signal", named[signal_id], b"", "", signal_id))
            case Step(name, digest) if _is_of_agent(name):
                at, is_later = str(entry.seq), entry.seq > lost_at
                found.append(PastItem("step", name, digest, "", at, follows_loss=is_later))
            case _:
                pass
    return found


async def _intact_entries(context: Context, run_id: str, seq: int) -> tuple[list[Entry], int]:
    """Return the intact entries, and the seq of the first lost one that is not of a checkpoint."""
    found: list[Entry] = []
    lost_at = _NONE_LOST
    first = await context.store.journal.named(run_id, [seq]) if seq else []
    after = first[0].entry.position if first else ORIGIN
    while page := await context.store.journal.read(run_id, after=after.seq, limit=_PAGE):
        for entry in page:
            if entry.seq > after.seq + 1:
                lost_at = min(lost_at, after.seq + 1)
            if not journal.is_intact(entry, after.link):
                if entry.kind not in _OF_CHECKPOINTS:
                    lost_at = min(lost_at, entry.seq)
            elif entry.body is not None:
                found.append(entry)
            after = entry.position
    return found, lost_at


def _is_of_agent(step: str) -> bool:
    """Whether the agent's code asks for a step; others are of reads, blobs and turns."""
    return step.startswith("model:") or not (":" in step or step.startswith(OWN_PARTS))


def _asked_in(entry: Entry, rows: Mapping[str, Wait]) -> list[PastItem]:
    """Return the waits for people, clocks and signals. Cancelled ones are asked anew."""
    served = (WaitStatus.OPEN, WaitStatus.RESOLVED, WaitStatus.EXPIRED)
    found: list[PastItem] = []
    for wait_id, payload in _payloads_in(entry).items():
        row = rows.get(wait_id)
        if row is None or row.kind == PEER or row.status not in served:
            continue
        if asked := payload.get("asked"):
            found.append(PastItem("wait", row.kind, asked, "", wait_id))
    return found


def _has_place(entry: Entry) -> bool:
    body = body_of(entry)
    return isinstance(body, dict) and bool(cast("dict[str, Any]", body).get("place"))
