"""Handoffs: giving a run to another agent, deciding who continues it, and acknowledging it.

The giver's last checkpoint, the end of its lease and the handoff are one commit; so are the
receiver's acknowledgement and the checkpoint that begins its context.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import clock, ids, names
from holdfast.engine.context import Context
from holdfast.engine.writing.checkpoint_saver import About, CheckpointSaver
from holdfast.engine.writing.outages import retry_while_unavailable
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter
from holdfast.errors import ConflictError, HoldfastError, RunNotFound
from holdfast.kernel import checkpoints, handoffs, indexes, runs
from holdfast.kernel.handoffs import HandoffProgress, Offer, Selection
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.records import MAX_SUMMARY, Finalized, Phase, RecordSummary
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import LateDecision, Snapshot

_PAGE: Final = 1000
_NEAR: Final = 100


class HandoffReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt for a giver's handoff: its id, and the checkpoint it was given with."""

    handoff_id: str
    checkpoint_id: UUID
    version: int
    seq: int


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """A handoff that a giver requests; without `to`, somebody else chooses the receiver."""

    checkpoint_id: UUID
    trigger: str
    seconds: float
    to: str = ""
    note: str = ""
    label: str = ""
    agent_type: str = ""
    summary: str = ""
    hash: str = ""
    tokens: int = 0
    window: int = 0


class HeldHandoffs:
    """Handing over a run that is held here, or taking it over."""

    def __init__(self, context: Context, writer: RunWriter, saver: CheckpointSaver) -> None:
        self._context = context
        self._writer = writer
        self._saver = saver

    async def asked(self) -> str:
        """Return the note of the last request for a handoff; "" if there is no request or note."""
        return await retry_while_unavailable(self._context, self._note_of_request)

    async def _note_of_request(self) -> str:
        journal, run_id = self._context.store.journal, self._writer.run.run_id
        head = await journal.head(run_id)
        upto = 0 if head is None else head.seq
        while upto:
            after = max(0, upto - _NEAR)
            for entry in reversed(await journal.read(run_id, after=after, limit=upto - after)):
                if entry.kind == Kind.HANDOFF_REQUESTED:
                    return _note_in(entry)
            upto = after
        return ""

    async def give(self, offer: Offering) -> HandoffReceipt:
        """End this context with the edits as its last, final checkpoint, so that another continues.

        This releases the run. If nobody acknowledges within `seconds`, it returns to the agent that
        it has now.
        """
        to = offer.to and names.check(offer.to, what="the agent to hand over to")
        note = names.check_text(offer.note[:1000], what="note")
        handoff_id = str(ids.uuid7())
        version = 0

        def following(run: RunRow, created: checkpoints.CheckpointCreated) -> tuple[Draft, ...]:
            nonlocal version
            version = created.version
            given = Offer(
                handoff_id=handoff_id,
                checkpoint_id=created.checkpoint_id,
                version=version,
                to=to,
                trigger=offer.trigger,
                until=self._context.now() + clock.seconds(offer.seconds),
                note=note,
                tokens=offer.tokens,
                window=offer.window,
            )
            final = Finalized(offer.checkpoint_id, version, 1, Phase.HANDOFF.value, offer.hash)
            return (Draft(Kind.CHECKPOINT_FINALIZED, final), *handoffs.give(run, given))

        about = About(
            phase=Phase.HANDOFF.value,
            agent=self._writer.run.agent,
            label=offer.label,
            record=RecordSummary(offer.agent_type, offer.summary[:MAX_SUMMARY]),
        )
        entries = await self._saver.save(
            about, following, checkpoint_id=offer.checkpoint_id, is_patient=True
        )
        seq = next(entry.seq for entry in entries if entry.kind == Kind.AGENT_HANDOFF)
        return HandoffReceipt(
            seq=seq, handoff_id=handoff_id, checkpoint_id=offer.checkpoint_id, version=version
        )

    async def acknowledge(self) -> None:
        """Acknowledge the handoff: this context continues, and the edits are its first checkpoint.

        Raises Fenced if the run returned to its giver meanwhile.
        """
        worker = self._context.worker

        def then(run: RunRow, created: checkpoints.CheckpointCreated) -> tuple[Draft, ...]:
            return handoffs.acknowledge(run, agent=run.agent, worker=worker)

        about = About(agent=self._writer.run.agent)
        try:
            await self._saver.save(about, then, checkpoint_id=ids.uuid7(), is_patient=True)
        except ConditionFailed as failed:
            raise ConflictError(
                f"the handoff of run {self._writer.run.run_id} was ended by somebody else"
            ) from failed


def _note_in(entry: Entry) -> str:
    """Return the note of a request; one that cannot be read does not prevent the handoff."""
    try:
        facts = indexes.facts_of(entry)
    except HoldfastError:
        return ""
    return facts.note if isinstance(facts, runs.Requested) else ""


class HandoffView(msgspec.Struct, kw_only=True):
    """A handoff by the journal. `status`: given, assigned, acknowledged or reverted.

    `tokens` of `window` were used by the giver's context (0: not known). `hash` is that of the
    record that was verified, `chosen_because` says why `to` was selected.
    """

    handoff_id: str
    run_id: str
    status: str
    checkpoint_id: UUID
    version: int
    giver: str
    to: str
    trigger: str
    note: str
    given_at: int
    ended_at: int = 0
    worker: str = ""
    reason: str = ""
    tokens: int = 0
    window: int = 0
    received_at: int = 0
    hash: str = ""
    chosen_because: str = ""


class Handoffs:
    """Handoffs of any run, for those who do not hold it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def request(self, run_id: str, *, to: str = "", by: str = "", note: str = "") -> None:
        """Request a handoff at the next boundary of the run's turns, to `to` or by its policy."""
        to = to and names.check(to, what="the agent to hand over to")
        note = names.check_text(note, what="note")
        await self._decide(run_id, lambda run: (handoffs.request(run, to, note),), by)

    async def assign(
        self,
        run_id: str,
        handoff_id: str,
        to: str,
        *,
        by: str = "",
        findings: HandoffProgress | None = None,
    ) -> bool:
        """Assign the run to the agent `to`; False if that was decided before.

        `findings` say what an orchestrator has verified, and why it chose that agent.
        """
        names.check(to, what="the agent to hand over to")
        known = findings or self._named(to, "it was assigned by name")
        assigned = await self._decide(
            run_id, lambda run: handoffs.assign(run, handoff_id, to, known), by
        )
        return bool(assigned)

    async def acknowledge(
        self,
        run_id: str,
        handoff_id: str,
        agent: str,
        *,
        by: str = "",
        findings: HandoffProgress | None = None,
    ) -> None:
        """Acknowledge for an agent outside that it continues a run; once per handoff."""
        names.check(agent, what="agent")
        known = findings or self._named(agent, "it acknowledged the handoff")

        def drafts(run: RunRow) -> tuple[Draft, ...]:
            handoffs.check_open(run, handoff_id)
            # A task that is worked on outside has no agent that workers serve.
            of_workers = agent if run.giver else ""
            assigned = handoffs.assign(run, handoff_id, of_workers, known)
            return (*assigned, *handoffs.acknowledge(run, agent=of_workers, worker=agent))

        await self._decide(run_id, drafts, by, handoff_id)

    def _named(self, agent: str, reason: str) -> HandoffProgress:
        """Return the progress for an agent named from outside, without a verified checkpoint."""
        return HandoffProgress(received_at=self._context.now(), selected=Selection(agent, reason))

    async def refuse(
        self,
        run_id: str,
        handoff_id: str,
        reason: str,
        *,
        by: str = "",
        findings: HandoffProgress | None = None,
    ) -> None:
        """Return a run to its giver at once."""
        reason = names.check_text(reason, what="reason")[:1000]
        await self._decide(
            run_id,
            lambda run: handoffs.refuse(run, handoff_id, reason, findings),
            by,
            handoff_id,
        )

    async def of_run(self, run_id: str) -> list[HandoffView]:
        """Return every handoff of a run, the first one first."""
        views: dict[str, HandoffView] = {}
        async for entry, facts in self._entries_of(run_id):
            _tell(views, entry, facts)
        return list(views.values())

    async def _entries_of(self, run_id: str) -> AsyncIterator[tuple[Entry, Any]]:
        after = 0
        while page := await self._context.store.journal.read(run_id, after=after, limit=_PAGE):
            for entry in page:
                if entry.kind in _KINDS:
                    yield entry, indexes.facts_of(entry)
            after = page[-1].seq

    async def _decide(
        self,
        run_id: str,
        drafts_for: Callable[[RunRow], tuple[Draft, ...]],
        by: str = "",
        handoff_id: str = "",
    ) -> int:
        """Decide on the run's current row; with `handoff_id`, its wait can be ended."""

        def decide(snapshot: Snapshot) -> LateDecision:
            if snapshot.run is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            drafts = drafts_for(snapshot.run)
            return LateDecision(len(drafts), drafts)

        names.check(run_id, what="run id")
        by = by and names.check(by, what="by")
        wait_ids = (handoff_id,) if handoff_id else ()
        return await self._context.decide_late(run_id, decide, by=by, wait_ids=wait_ids)


_KINDS: Final = frozenset(
    {
        Kind.AGENT_HANDOFF,
        Kind.HANDOFF_RECEIVED,
        Kind.HANDOFF_VERIFIED,
        Kind.HANDOFF_SELECTED,
        Kind.HANDOFF_ASSIGNED,
        Kind.HANDOFF_ACKNOWLEDGED,
        Kind.HANDOFF_REVERTED,
        Kind.RUN_BLOCKED,
        Kind.RUN_CANCELLED,
        Kind.RUN_REWOUND,
    }
)


def _tell(views: dict[str, HandoffView], entry: Entry, facts: object) -> None:
    match facts:
        case runs.AgentHandoff():
            views[facts.handoff_id] = HandoffView(
                handoff_id=facts.handoff_id,
                run_id=entry.run_id,
                status="given",
                checkpoint_id=facts.checkpoint_id,
                version=facts.version,
                giver=facts.giver,
                to=facts.to,
                trigger=facts.trigger,
                note=facts.note,
                given_at=entry.at,
                tokens=facts.tokens,
                window=facts.window,
            )
        case runs.HandoffReceived(handoff_id, received_at):
            views[handoff_id].received_at = received_at
        case runs.Verified(handoff_id, hash=digest):
            views[handoff_id].hash = digest
        case runs.Selected(handoff_id, reason=reason):
            views[handoff_id].chosen_because = reason
        case runs.Assigned(handoff_id, to):
            views[handoff_id].status, views[handoff_id].to = "assigned", to
        case runs.Acknowledged(handoff_id, agent, worker):
            view = views[handoff_id]
            view.status, view.to, view.worker = "acknowledged", agent or worker, worker
            view.ended_at = entry.at
        case runs.Reverted(handoff_id, note=reason):
            view = views[handoff_id]
            view.status, view.reason, view.ended_at = "reverted", reason, entry.at
        case runs.Blocked() | runs.RunFinished() | runs.Rewound() if views:
            last = views[next(reversed(views))]
            if last.status in ("given", "assigned"):
                ending = entry.kind.removeprefix("RUN_").lower()
                last.status, last.reason = "reverted", f"the run was {ending}"
                last.ended_at = entry.at
        case _:
            pass
