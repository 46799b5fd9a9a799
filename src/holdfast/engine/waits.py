"""Waits: opening them, settling each exactly once, and reading how they ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast import clock, codec, ids, names
from holdfast.engine import sweeper
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.engine.reading.proved_waits import check_waits
from holdfast.engine.writing.commits import ChildRun
from holdfast.errors import IllegalMove, IntegrityError, MisuseError, WaitNotFound
from holdfast.kernel import handoffs, indexes, journal, peers, runs, waits
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.messages import OWED_TOPICS
from holdfast.kernel.waits import FIXED_KINDS, Answer, Wait, WaitStatus
from holdfast.stores.contract import (
    ClaimWait,
    ExtendWait,
    ForgetMessages,
    LateDecision,
    NoteDuplicate,
    Snapshot,
)
from holdfast.telemetry import log

CLAIM_SECONDS = 60.0


class PeerRun(msgspec.Struct, frozen=True):
    """A run of another agent, which begins with the wait for it and has its id.

    `root` is what its effects are keyed by. A call that is made again has the root of the `former`
    run, and what that run did, except what it is to `resend`.
    """

    agent: str
    input: Any
    subject: str = ""
    root: str = ""
    former: str = ""
    resend: tuple[str, ...] = ()


class WaitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Something to wait for. An answer names its id.

    `address` is where a peer that needs a message is reached (`kernel.peers`). Its timeout begins
    when a worker takes it, and `queue_timeout_seconds` bounds the time until then.
    `elapsed_seconds` is how much of the timeout had passed before the wait is opened.
    """

    wait_id: str = ""
    kind: str = "reply"
    name: str = ""
    timeout_seconds: float | None = None
    queue_timeout_seconds: float | None = None
    elapsed_seconds: float = 0.0
    deadline: datetime | None = None
    payload: Any = None
    address: str = ""
    peer_run: PeerRun | None = None


class Opening(NamedTuple):
    group_id: str
    draft: Draft
    begins: Sequence[ChildRun]


def opening(
    specs: Sequence[WaitSpec],
    *,
    run_id: str,
    owner: str = "",
    mode: str | int = "all",
    now: int,
) -> Opening:
    """Return the entry that opens waits as one group, and the runs of peers that begin with it.

    Those runs have the owner of the run that opens them.
    """
    need = waits.needed(mode, len(specs))
    group_id = str(ids.uuid7())
    facts = tuple(_facts(spec, now) for spec in specs)
    if len({fact.wait_id for fact in facts}) < len(facts):
        raise MisuseError("two of these waits have the same id; wait ids are used once")
    payloads = {
        fact.wait_id: spec.payload
        for fact, spec in zip(facts, specs, strict=True)
        if spec.payload is not None
    }
    body = codec.encode(payloads, name="payload") if payloads else b""
    draft = Draft(Kind.WAITS_OPENED, waits.WaitsOpened(group_id, need, facts), body)
    begins = [
        ChildRun(fact.wait_id, [_created(spec.peer_run, run_id, owner)])
        for fact, spec in zip(facts, specs, strict=True)
        if spec.peer_run is not None
    ]
    return Opening(group_id, draft, begins)


def _created(peer: PeerRun, parent_id: str, owner: str) -> Draft:
    facts = runs.RunCreated(
        agent=names.check(peer.agent, what="agent"),
        input_digest=codec.canonical_digest(peer.input, name="input"),
        root_id=peer.root,
        parent_id=parent_id,
        forked_from=peer.former,
        reply_to=peers.STORE,
        subject=peer.subject,
        owner=owner,
        resend=peer.resend,
    )
    return Draft(Kind.RUN_CREATED, facts, codec.encode(peer.input, name="input"))


def _facts(spec: WaitSpec, now: int) -> waits.WaitFacts:
    deadline = patience = 0
    began_at = now
    if spec.deadline is not None:
        deadline = clock.from_datetime(spec.deadline)
    elif spec.timeout_seconds is not None:
        began_at = now - clock.seconds(spec.elapsed_seconds)
        deadline = began_at + clock.seconds(spec.timeout_seconds)
    if spec.kind == peers.PEER:
        patience = max(0, deadline - began_at)
        if spec.deadline is None and (spec.peer_run or peers.queue_at(spec.address)):
            queue = spec.queue_timeout_seconds
            # The sign that it was taken comes later than the take.
            grace = peers.TAKEN_MICROSECONDS
            deadline = 0 if queue is None else now + clock.seconds(queue) + grace
    wait_id = names.check(spec.wait_id, what="wait id") if spec.wait_id else str(ids.uuid7())
    kind = names.check(spec.kind, what="a wait's kind")
    name = spec.name and names.check(spec.name, what="a wait's name")
    return waits.WaitFacts(wait_id, kind, name, deadline, spec.address, patience)


class Waits:
    """What comes from outside: answers, timeouts, signs of life."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def get(self, wait_id: str) -> Wait:
        names.check(wait_id, what="wait id")
        found = await self._context.store.waits.get(wait_id)
        if found is None:
            raise WaitNotFound(f"there is no wait {wait_id!r}")
        await check_waits(self._context, [found])
        return found

    async def of_run(self, run_id: str) -> list[Wait]:
        """Return all waits of a run."""
        names.check(run_id, what="run id")
        found = await self._context.store.waits.of_run(run_id)
        await check_waits(self._context, found)
        return found

    async def results(self, run_id: str, group_id: str) -> list[waits.Result]:
        """Return how each wait of a group ended; open ones are left out."""
        names.check(run_id, what="run id")
        names.check(group_id, what="group id")
        return await results_of(self._context, run_id, group_id)

    async def resolve(self, wait_id: str, value: object = None, *, by: str = "") -> Answer:
        """Answer a wait: accepted exactly once, in one commit with all its consequences.

        A second or late answer is counted and ignored; `accepted` is False and `settled_by` says
        who was first.
        """
        body = codec.encode(value, name="value")
        return await settle(self._context, wait_id, WaitStatus.RESOLVED, body=body, by=by)

    async def cancel(self, wait_id: str, *, by: str = "") -> Answer:
        """Cancel a wait; it counts as one that will not be resolved."""
        return await settle(self._context, wait_id, WaitStatus.CANCELLED, by=by)

    async def extend(
        self,
        wait_id: str,
        *,
        timeout_seconds: float | None = None,
        deadline: datetime | None = None,
    ) -> bool:
        """Move an open wait's deadline, because its peer gave a sign of life; False if settled.

        A wait for a run of this store is never made shorter: the run gives its own signs of life.
        """
        wait = await self.get(wait_id)
        if (timeout_seconds is None) == (deadline is None):
            raise MisuseError("give either timeout_seconds or deadline")

        def decide(snapshot: Snapshot) -> LateDecision:
            known = _known(snapshot, wait_id)
            if known.status is not WaitStatus.OPEN:
                return LateDecision(False)
            if known.kind in FIXED_KINDS:
                raise MisuseError(
                    f"wait {wait_id} is a {known.kind}: its deadline does not move. A sign of life "
                    "moves those of peers and tasks"
                )
            if deadline is not None:
                moment = clock.from_datetime(deadline)
            else:
                moment = snapshot.now + clock.seconds(timeout_seconds or 0.0)
            moment = max(moment, snapshot.now + known.patience)
            if known.address == peers.STORE and not 0 < known.deadline < moment:
                return LateDecision(True)
            return LateDecision(True, touches=(ExtendWait(wait_id, moment, snapshot.now),))

        return await self._context.decide_late(wait.run_id, decide, wait_ids=(wait_id,))

    async def claim(
        self, wait_id: str, *, seconds: float = CLAIM_SECONDS, by: str = ""
    ) -> Wait | None:
        """Claim an open wait for a short time. Returns None if it is claimed or settled.

        Nobody else can claim it meanwhile, and it does not expire. This does not settle it: when
        the claim is over, it is open as before.
        """
        names.check(wait_id, what="wait id")
        # A claim that is sent again, because its answer was lost, is recognised by its name.
        claimant = f"{(by and names.check(by, what='by')) or self._context.worker}/{ids.uuid7()}"
        length = clock.seconds(seconds)

        def decide(snapshot: Snapshot) -> LateDecision:
            known = _known(snapshot, wait_id)
            if known.status is not WaitStatus.OPEN:
                return LateDecision(None)
            if known.claimed_by != claimant and waits.is_claimed(known, snapshot.now):
                return LateDecision(None)
            until = snapshot.now + length
            claimed = msgspec.structs.replace(known, claimed_by=claimant, claimed_until=until)
            return LateDecision(claimed, touches=(ClaimWait(wait_id, claimant, until),))

        return await self._context.decide_late("", decide, wait_ids=(wait_id,))

    async def expire_due(self, *, limit: int = sweeper.BATCH) -> int:
        """Expire open waits whose deadline has passed, earliest first. Returns how many."""
        return await sweeper.expire_due_waits(self._context, limit=limit)


async def settle(
    context: Context,
    wait_id: str,
    status: WaitStatus,
    *,
    body: bytes = b"",
    by: str = "",
    run_id: str = "",
    forgets: tuple[str, ...] = (),
) -> Answer:
    """Settle a wait exactly once. `run_id` is its run, if that is known.

    The messages of the outbox that this `forgets` are deleted in the same commit. Another delivery
    of the same reply is then no second answer.
    """
    names.check(wait_id, what="wait id")
    actor = by and names.check(by, what="by")
    forgetting = (ForgetMessages(forgets),) if forgets else ()

    def is_same(known: Wait | Answer) -> bool:
        return bool(forgets) and (known.status, known.settled_by) == (status, actor)

    def decide(snapshot: Snapshot) -> LateDecision:
        known = _known(snapshot, wait_id)
        group = _group(snapshot, known)
        if known.status is not WaitStatus.OPEN:
            counting = () if is_same(known) else (NoteDuplicate(wait_id),)
            return LateDecision(_answer(known, group), touches=(*counting, *forgetting))
        if known.kind == handoffs.WAIT_KIND:
            raise IllegalMove(
                f"wait {wait_id} is a handoff of run {known.run_id}: acknowledge or refuse that"
            )
        assert snapshot.run is not None, "a wait has a run"
        drafts = waits.settle(snapshot.run, known, group, status, body=body)
        answer = Answer(
            wait_id=wait_id,
            accepted=True,
            status=status,
            settled_by=actor or context.worker,
            settled_at=snapshot.now,
            result_seq=snapshot.position.seq + 1,
            completed=group.resolved + group.failed + 1,
            total=group.total,
        )
        return LateDecision(answer, drafts, forgetting)

    answer: Answer = await context.decide_late(
        run_id, decide, by=actor, wait_ids=(wait_id,), topics=OWED_TOPICS
    )
    if not answer.accepted and not is_same(answer):
        log.warning(
            "wait %s was %s by %s before: what came now is counted and ignored",
            wait_id,
            answer.status,
            answer.settled_by,
        )
    return answer


def _known(snapshot: Snapshot, wait_id: str) -> Wait:
    known = snapshot.indexes.waits.get(wait_id)
    if known is None:
        raise WaitNotFound(f"there is no wait {wait_id!r}")
    return known


def _group(snapshot: Snapshot, wait: Wait) -> waits.Group:
    group = snapshot.indexes.groups.get(wait.group_id)
    if group is None:
        raise IntegrityError(
            f"the row of wait {wait.wait_id} names a group that is not there; rebuild the rows of "
            f"run {wait.run_id} with `holdfast store reindex`"
        )
    return group


def _answer(wait: Wait, group: waits.Group) -> Answer:
    return Answer(
        wait_id=wait.wait_id,
        accepted=False,
        status=wait.status,
        settled_by=wait.settled_by,
        settled_at=wait.settled_at,
        result_seq=wait.result_seq,
        completed=group.resolved + group.failed,
        total=group.total,
    )


async def results_of(context: Context, run_id: str, group_id: str) -> list[waits.Result]:
    """Return how each wait of a group ended, with values checked against the chain."""
    found = await context.store.waits.of_group(run_id, group_id)
    resolved = {w.result_seq for w in found if w.status is WaitStatus.RESOLVED}
    answers: dict[tuple[int, str], Any] = {}
    for linked in await context.store.journal.named(run_id, sorted(resolved)):
        entry = linked.entry
        is_answer = entry.kind == Kind.WAIT_RESOLVED
        if not is_answer or not journal.is_intact(entry, linked.previous or b""):
            raise IntegrityError(f"entry {entry.seq} of run {run_id} is damaged, or no answer")
        answers[entry.seq, indexes.facts_of(entry).wait_id] = body_of(entry)
    return [_result(wait, answers) for wait in found if wait.status is not WaitStatus.OPEN]


def _result(wait: Wait, answers: dict[tuple[int, str], Any]) -> waits.Result:
    is_resolved = wait.status is WaitStatus.RESOLVED
    if is_resolved and (wait.result_seq, wait.wait_id) not in answers:
        raise IntegrityError(
            f"entry {wait.result_seq} of run {wait.run_id} is missing, or not the answer to "
            f"wait {wait.wait_id}"
        )
    return waits.Result(
        wait_id=wait.wait_id,
        kind=wait.kind,
        name=wait.name,
        status=wait.status,
        value=answers[wait.result_seq, wait.wait_id] if is_resolved else None,
        settled_by=wait.settled_by,
    )
