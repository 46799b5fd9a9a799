"""The owner of an outside task, derived from the handoffs and recoveries in its journal.

Any agent may write to a task that was never taken over. The agent that acknowledges a handoff owns
it, and no other writes to it, until the owner hands it over or somebody recovers it. Then the first
agent that continues owns it, but never one that gave it away.
"""

from typing import Final

import msgspec

from holdfast.engine import sweeper
from holdfast.engine.context import Context
from holdfast.errors import Fenced
from holdfast.kernel import checkpoints, indexes, runs, waits
from holdfast.kernel.journal import ORIGIN, Entry, Kind, Position
from holdfast.stores.reads import RunAtHead

_PAGE: Final = 1000
_REMEMBERED: Final = 100
_KINDS: Final = frozenset(
    {
        Kind.CHECKPOINT_CREATED,
        Kind.AGENT_HANDOFF,
        Kind.HANDOFF_ACKNOWLEDGED,
        Kind.RECOVERY_INITIATED,
        Kind.RECOVERY_COMPLETED,
    }
)


class _OwnerStanding(msgspec.Struct):
    """Who owns a task at a position of its journal, and who gave it away."""

    position: Position = ORIGIN
    owner: str = ""
    is_lost: bool = False
    gone: frozenset[str] = frozenset()
    giver: str = ""
    is_given_outside: bool = False
    agents: dict[int, str] = msgspec.field(default_factory=dict[int, str])

    def fold(self, entry: Entry) -> None:
        self.position = entry.position
        if entry.kind not in _KINDS:
            return
        match indexes.facts_of(entry):
            case checkpoints.CheckpointCreated() as made:
                # A checkpoint that a recovery copied belongs to the agent of the original.
                self.agents[made.version] = made.agent or self.agents.get(made.parent, "")
            case runs.AgentHandoff() as given:
                self.is_given_outside = not given.giver
                self.giver = self.owner or self.agents.get(given.version, "")
            case runs.Acknowledged(_, agent, worker):
                self._pass_on(self.giver if self.is_given_outside else "", agent or worker)
            case runs.RecoveryInitiated():
                self.is_lost = True
            case runs.RecoveryCompleted(agent="", worker=worker) if self.owner:
                self._pass_on(self.owner, worker)
            case _:
                pass

    def _pass_on(self, giver: str, to: str) -> None:
        self.owner, self.is_lost = to, False
        self.gone = (self.gone | {giver}) - {to, ""}


class Owners:
    """Decides who may write to a task."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, _OwnerStanding] = {}

    async def check_writer(self, head: RunAtHead, who: str) -> None:
        """Raise Fenced unless `who` may write where the task's journal ends."""
        run = head.run
        if run.handoff and not run.giver:
            raise Fenced(
                f"task {run.run_id} was handed over (handoff {run.handoff}), and nobody has "
                "acknowledged that yet: nothing was written; whoever goes on calls "
                "acknowledge_handoff(), and if nobody does in time it is its giver's again"
            )
        if run.contexts == 1:
            return
        standing = await self._standing(head)
        owner, is_shared = standing.owner, standing.is_lost or bool(run.agent)
        if who not in standing.gone and (is_shared or who == owner):
            return
        whose = "whoever recovers it" if standing.is_lost else owner
        raise Fenced(
            f"task {run.run_id} was handed over: it is of {whose} now, and "
            f"{who or 'somebody without a name'} may not write to it; nothing was written. Stop "
            "working on it, or let it be handed over again (initiate_handoff) and acknowledge that"
            + ("" if is_shared else f"; who works for {owner} says so (by={owner!r})")
        )

    async def expire_handoff(self, task_id: str) -> bool:
        """Give a task back if its handoff expired unacknowledged; return whether it had."""
        run = await self._context.store.runs.get(task_id)
        wait = await self._context.store.waits.get(run.handoff) if run and run.handoff else None
        if wait is None or not waits.is_due(wait, self._context.now()):
            return False
        while await sweeper.expire_due_waits(self._context, limit=sweeper.BATCH) == sweeper.BATCH:
            pass
        return True

    async def _standing(self, head: RunAtHead) -> _OwnerStanding:
        """Return the task's owner at the head; reads only entries that are new since last time."""
        task_id, upto = head.run.run_id, head.position.seq
        standing = self._known.pop(task_id, None)
        if standing is None or not await self._is_of(task_id, standing.position, upto):
            standing = _OwnerStanding()
        while standing.position.seq < upto:
            after = standing.position.seq
            limit = min(_PAGE, upto - after)
            page = await self._context.store.journal.read(task_id, after=after, limit=limit)
            if not page:
                break
            for entry in page:
                standing.fold(entry)
        self._known[task_id] = standing
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return standing

    async def _is_of(self, task_id: str, position: Position, upto: int) -> bool:
        """Return whether the journal still has this position: the task may have been recreated."""
        if position.seq > upto:
            return False
        found = await self._context.store.journal.named(task_id, [position.seq])
        return bool(found) and found[0].entry.position == position
