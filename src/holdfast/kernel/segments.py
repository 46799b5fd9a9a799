"""Segments: what each context of a run took, according to its journal alone.

    RUN_CREATED ─▶ segment 1 ─▶ AGENT_HANDOFF … HANDOFF_ACKNOWLEDGED ─▶ segment 2 ─▶ …

Every cost, call and microsecond counts once: for the segment at whose place of the journal it is,
and for the phase of the turn it is in. A handoff counts for its giver until it is acknowledged.
"""

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import codec
from holdfast.codec import Ref
from holdfast.errors import BodyErased
from holdfast.kernel import checkpoints, effects, indexes, journal, runs
from holdfast.kernel.budgets import NOTHING, Amounts, Recorded
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.runs import RunRow, RunStatus

PROGRESS: Final = "holdfast.progress"
MARKS: Final = frozenset({"handoff", "paused"})
"""Phases of checkpoints that say why it was stored, and not how far the work is."""
_MODEL: Final = "model:"
_READS: Final = ("read:", "read_failed:")


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """What some part of a run took. Times are in microseconds, up to the last entry.

    `tools` are calls as far as the record has them; `effects` those with consequences. `busy`
    is the time in which a worker held the run. `recovering` is the time from the last entry of a
    lost worker, or from an error, until the run resumed; `handing_over` that from a
    handoff until it was acknowledged. The rest of `wall` the run waited.
    """

    amounts: Amounts = NOTHING
    model_calls: int = 0
    tools: int = 0
    effects: int = 0
    checkpoints: int = 0
    recoveries: int = 0
    wall: int = 0
    busy: int = 0
    recovering: int = 0
    handing_over: int = 0

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(
            amounts=self.amounts + other.amounts,
            model_calls=self.model_calls + other.model_calls,
            tools=self.tools + other.tools,
            effects=self.effects + other.effects,
            checkpoints=self.checkpoints + other.checkpoints,
            recoveries=self.recoveries + other.recoveries,
            wall=self.wall + other.wall,
            busy=self.busy + other.busy,
            recovering=self.recovering + other.recovering,
            handing_over=self.handing_over + other.handing_over,
        )


def total(efforts: Iterable[Effort]) -> Effort:
    return sum(efforts, Effort())


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What one context did: from the checkpoint that it resumed from to the last one it wrote.

    `number` counts the contexts; after a rewind a number can come again. The first one resumed
    from no checkpoint. `trigger` is why it was handed over; empty if it was not.
    """

    number: int
    agent: str
    effort: Effort
    began_at: int
    ended_at: int = 0
    began_with: UUID | None = None
    ended_with: UUID | None = None
    first_version: int = 0
    last_version: int = 0
    phases: tuple[str, ...] = ()
    handoff_id: str = ""
    trigger: str = ""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took, added up in three ways. Work that reported no phase has an empty one."""

    segments: tuple[Segment, ...]
    by_agent: dict[str, Effort]
    by_phase: dict[str, Effort]


def attribute(entries: Iterable[tuple[Entry, Any]]) -> Attribution:
    """Return what a whole journal, with its entries' facts, says of every part of its run."""
    telling = _SegmentCounter()
    for entry, facts in entries:
        telling.take(entry, facts)
    return telling.ended()


class _SegmentState(msgspec.Struct, frozen=True):
    phase: str = ""


class _SegmentMetrics(msgspec.Struct, frozen=True):
    tools_invoked: int = 0


class _SegmentWork(msgspec.Struct, frozen=True):
    """As much of a run's progress as is looked at here."""

    execution_state: _SegmentState = _SegmentState()
    metrics: _SegmentMetrics = _SegmentMetrics()
    finished_phase: str = ""


_NO_WORK: Final = _SegmentWork()


class _Open(msgspec.Struct, kw_only=True):
    """A segment that is still being counted."""

    number: int
    agent: str
    began_at: int
    began_with: UUID | None = None
    effort: Effort = Effort()
    ended_at: int = 0
    ended_with: UUID | None = None
    first_version: int = 0
    last_version: int = 0
    phases: list[str] = []
    handoff_id: str = ""
    trigger: str = ""

    def reopen(self) -> None:
        self.ended_at, self.handoff_id, self.trigger = 0, "", ""


class _SegmentCounter:
    """Goes through a journal once. `_turn` is what was counted since the last checkpoint."""

    def __init__(self) -> None:
        self._run: RunRow | None = None
        self._at = 0
        self._segments: list[_Open] = []
        self._by_agent: dict[str, Effort] = {}
        self._by_phase: dict[str, Effort] = {}
        self._turn = Effort()
        self._unheard = 0
        self._phase = ""
        self._work = _NO_WORK
        self._values = b""
        self._held_back: list[tuple[Entry, checkpoints.CheckpointCreated]] = []
        self._ids: dict[int, UUID] = {}

    @property
    def _segment(self) -> _Open:
        return self._segments[-1]

    def take(self, entry: Entry, facts: Any) -> None:
        """Count one more entry."""
        before = self._run
        if before is not None:
            self._pass_time(before, entry, facts)
        self._at = max(self._at, entry.at)
        self._run = indexes.fold_run(before, entry, facts)
        if before is None:
            self._segments.append(_Open(number=1, agent=self._run.agent, began_at=entry.at))
        match facts:
            case Recorded():
                self._charge(entry.run_id, facts)
            case checkpoints.CheckpointCreated() if self._run.handoff:
                self._held_back.append((entry, facts))  # of the context that acknowledges next
            case checkpoints.CheckpointCreated():
                self._end_turn(entry, facts)
            case checkpoints.Step(name):
                self._count_step(name)
            case effects.Issued():
                self._add(Effort(effects=1, tools=1))
            case runs.RecoveryInitiated():
                self._add(Effort(recoveries=1))
            case runs.RunFinished():
                self._segment.ended_at = entry.at
            case _:
                self._pass_on(entry, facts)

    def ended(self) -> Attribution:
        """Return the result after the last entry; the run's holder counts as alive."""
        self._add(Effort(busy=self._unheard))
        self._release()
        self._close_turn(self._phase)
        return Attribution(
            segments=tuple(_closed_segment(segment) for segment in self._segments),
            by_agent={
                name: effort for name, effort in self._by_agent.items() if effort != Effort()
            },
            by_phase=self._by_phase,
        )

    def _add(self, effort: Effort, agent: str | None = None) -> None:
        segment = self._segment
        name = segment.agent if agent is None else agent
        segment.effort += effort
        self._by_agent[name] = self._by_agent.get(name, Effort()) + effort
        self._turn += effort

    def _pass_time(self, run: RunRow, entry: Entry, facts: Any) -> None:
        """The time since the entry before belongs to what the run was doing then."""
        passed = max(0, entry.at - self._at)
        if run.status in runs.ENDED:
            return
        self._add(Effort(wall=passed))
        if run.handoff:
            self._add(Effort(handing_over=passed))
        elif run.is_recovering:
            self._add(Effort(recovering=passed))
        elif run.status is RunStatus.RUNNING:
            self._unheard += passed
            self._hear(run, entry, facts)

    def _hear(self, run: RunRow, entry: Entry, facts: Any) -> None:
        """End a lost worker's time with its last entry: when it died is not known."""
        if _is_lost(run, entry, facts):
            self._add(Effort(recovering=self._unheard))
        elif entry.actor == run.worker or entry.kind in runs.MOVES:
            self._add(Effort(busy=self._unheard))
        else:
            return
        self._unheard = 0

    def _charge(self, run_id: str, cost: Recorded) -> None:
        """Add a cost. It is a call if no reply was recorded: lost, failed, or elsewhere."""
        is_call = cost.spender != run_id or cost.is_lost or bool(cost.note)
        calls = int(is_call and cost.what.startswith(_MODEL))
        self._add(Effort(amounts=cost.amounts, model_calls=calls), cost.agent)

    def _count_step(self, name: str) -> None:
        if name.startswith(_MODEL):
            self._add(Effort(model_calls=1))
        elif name.startswith(_READS):
            self._add(Effort(tools=1))

    def _end_turn(self, entry: Entry, created: checkpoints.CheckpointCreated) -> None:
        """A turn counts for the phase that it was entered in, or finished, or was labelled with."""
        before, work = self._work, self._work_after(entry)
        called = work.metrics.tools_invoked - before.metrics.tools_invoked
        if called < 0:
            called = work.metrics.tools_invoked  # a fresh context counts anew
        self._add(Effort(checkpoints=1, tools=max(0, called - self._turn.tools)))
        entered, phase = work.execution_state.phase, self._phase
        if created.phase and created.phase not in MARKS:
            phase = self._phase = created.phase
        elif entered != before.execution_state.phase:
            is_finished = work.finished_phase == (before.execution_state.phase or "planning")
            phase = work.finished_phase if is_finished else entered
            self._phase = entered
        self._work = work
        self._close_turn(phase)
        segment = self._segment
        segment.ended_with, segment.last_version = created.checkpoint_id, created.version
        segment.first_version = segment.first_version or created.version
        self._ids[created.version] = created.checkpoint_id

    def _close_turn(self, phase: str) -> None:
        if self._turn == Effort():
            return
        self._by_phase[phase] = self._by_phase.get(phase, Effort()) + self._turn
        if phase not in self._segment.phases:
            self._segment.phases.append(phase)
        self._turn = Effort()

    def _work_after(self, entry: Entry) -> _SegmentWork:
        """Return the progress stored with this checkpoint; the one before if that is erased."""
        try:
            delta = checkpoints.decode_delta(journal.body_of(entry))
            raw = delta.values.get(PROGRESS)
            if raw is None:
                return _NO_WORK if PROGRESS in delta.dropped else self._work
            progress = codec.decode(raw)
            if isinstance(progress, Ref):
                progress = codec.decode(checkpoints.decode_values(self._values)[PROGRESS])
            return msgspec.convert(progress, _SegmentWork)
        except (BodyErased, LookupError, msgspec.MsgspecError):
            return self._work

    def _pass_on(self, entry: Entry, facts: Any) -> None:
        segment = self._segment
        match facts:
            case runs.AgentHandoff():
                segment.ended_at = entry.at
                segment.handoff_id, segment.trigger = facts.handoff_id, facts.trigger
            case runs.Reverted():
                segment.reopen()
                self._release()
            case runs.Acknowledged():
                self._begin(entry, facts.agent, segment.number + 1, segment.ended_with)
                self._release()
            case runs.Rewound():
                segment.reopen()
                self._release()
                if facts.agent:
                    segment.ended_at = entry.at
                    at = self._ids.get(facts.version)
                    self._begin(entry, facts.agent, facts.contexts, at)
            case journal.NoFacts() if entry.kind == Kind.STATE_VALUES and entry.body is not None:
                self._values = journal.body_of(entry)
            case _:
                pass

    def _begin(self, entry: Entry, agent: str, number: int, began_with: UUID | None) -> None:
        self._close_turn(self._phase)
        begun = _Open(number=number, agent=agent, began_at=entry.at, began_with=began_with)
        self._segments.append(begun)

    def _release(self) -> None:
        held_back, self._held_back = self._held_back, []
        for entry, created in held_back:
            self._end_turn(entry, created)


def _is_lost(run: RunRow, entry: Entry, facts: Any) -> bool:
    match facts:
        case runs.LeaseExpired():
            return True
        case runs.RecoveryInitiated() | runs.RecoveryFailed() | runs.RunLeased():
            return entry.actor != run.worker
        case _:
            return False


def _closed_segment(segment: _Open) -> Segment:
    fields: dict[str, Any] = msgspec.structs.asdict(segment)
    fields["phases"] = tuple(segment.phases)
    return Segment(**fields)
