"""What comes from peers, wherever they are: replies, signs of life, and that they may stop."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast import codec, ids, names
from holdfast.engine.context import Context
from holdfast.engine.messages.queues import Queues
from holdfast.engine.messages.replies import PeerReply, intact_entry, reply_of
from holdfast.engine.reading.journal import body_of
from holdfast.engine.waits import Waits
from holdfast.engine.writing import unheld_runs
from holdfast.engine.writing.sizes import check_size
from holdfast.errors import BodyErased, IntegrityError, MisuseError, RunExists, WaitNotFound
from holdfast.kernel import runs, waits
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.messages import OUTGOING
from holdfast.kernel.peers import CANCELS, FOR_PEOPLE, STORE, at_call, call_of, queue_at
from holdfast.kernel.runs import Run
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.stores.contract import Decision, ExtendWait, Snapshot

_DEEPEST: Final = 64
_LONGEST_REPORT: Final = 64 * 1024
_LATEST: Final = 2**60
_FOR_A_PERSON: Final = 30 * 86_400 * 1_000_000
"""How long a caller waits for a peer that waits for a person without a deadline."""


async def answer(context: Context, wait_id: str, reply: PeerReply) -> bool:
    """Give a wait the reply of its peer, and all that joined it; False if it was late.

    That a peer has stopped after its caller did is no reply. Raises WaitNotFound.
    """
    of = Waits(context)
    for joined in await context.store.waits.for_call(at_call(wait_id)):
        await of.resolve(joined.wait_id, reply, by=wait_id)
    if reply.status == "cancelled" and (await of.get(wait_id)).status is not WaitStatus.OPEN:
        return False
    return (await of.resolve(wait_id, reply, by=wait_id)).accepted


async def join(context: Context, of: Waits, wait_id: str, call: str) -> None:
    """Give a wait that joined a call the reply to it, if there is one; else it lasts as long."""
    reply = await reply_to_call(context, of, call)
    if reply is not None:
        await of.resolve(wait_id, reply, by=call)
        return
    first = await context.store.waits.get(call)
    if first is not None and first.status is WaitStatus.OPEN:
        await _last_until(context, wait_id, first.deadline)


async def reply_to_call(context: Context, of: Waits, call: str) -> PeerReply | None:
    """The reply to a call, told by its peer's run if that is here, else by whoever waited."""
    run = await context.store.runs.get(call)
    if run is not None:
        return await reply_of(context, call, run.result_seq) if run.status in runs.ENDED else None
    first = await context.store.waits.get(call)
    if first is None or first.status is not WaitStatus.RESOLVED:
        return None
    for result in await of.results(first.run_id, first.group_id):
        if result.wait_id == call:
            return _as_reply(result.value)
    return None


async def completed_reply(context: Context, wait: Wait) -> PeerReply | None:
    """The reply to a wait that was resolved, if its peer completed; None if it did not.

    Of a damaged reply what the peer's own run tells, if that is here.
    """
    if wait.status is not WaitStatus.RESOLVED:
        return None
    try:
        entry = await intact_entry(context, wait.run_id, wait.result_seq)
        reply = _as_reply(body_of(entry))
    except (IntegrityError, BodyErased):
        try:
            call = call_of(wait.wait_id, wait.address)
            reply = await reply_to_call(context, Waits(context), call)
        except (IntegrityError, BodyErased):
            return None
    return reply if reply is not None and reply.status == "completed" else None


def _as_reply(value: object) -> PeerReply:
    try:
        return msgspec.convert(value, PeerReply)
    except msgspec.ValidationError:
        return PeerReply(status="completed", value=value)  # of whoever resolved the wait


async def _last_until(context: Context, wait_id: str, deadline: int) -> None:
    def decide(snapshot: Snapshot) -> Decision:
        wait = snapshot.indexes.waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN:
            return Decision(None)
        return Decision(None, touches=(ExtendWait(wait_id, deadline, wait.progress_at),))

    await context.decide_late("", decide, wait_ids=(wait_id,))


async def is_awaited(context: Context, call: str) -> bool:
    """Whether anybody waits for a call: whoever made it, or joined it since."""
    first = await context.store.waits.get(call)
    if first is not None and first.status is WaitStatus.OPEN:
        return True
    return bool(await context.store.waits.for_call(at_call(call)))


async def give_up(context: Context, wait_id: str, address: str) -> None:
    """A wait for a peer was given up: it may stop, unless somebody else waits for it."""
    call = call_of(wait_id, address)
    if await is_awaited(context, call):
        return
    first = await context.store.waits.get(call)
    if first is not None and queue_at(first.address):
        headers = {"kind": "cancel", "address": first.address, "subject": call, "seq": "0"}
        await Queues(context).publish(OUTGOING, b"", key=f"{call}/cancel", headers=headers)
    else:
        await cancel(context, call)


async def begin(context: Context, run_id: str, created: Draft) -> None:
    """Begin the run of a peer; once, however often it is asked."""
    with contextlib.suppress(RunExists):
        await unheld_runs.create(context, unheld_runs.choose_id(run_id), [created])


async def creation(
    context: Context,
    *,
    agent: str,
    given: object,
    reply_to: str,
    root: str = "",
    former: str = "",
    resend: tuple[str, ...] = (),
) -> Draft:
    """The first entry of the run of a peer that is called from elsewhere.

    What the `former` run did is known in its own store only; its root is told by the call.
    """
    is_here = bool(former) and await context.store.runs.get(former) is not None
    facts = runs.Created(
        agent=names.check(agent, what="agent"),
        input_digest=codec.canonical_digest(given, name="input"),
        root_id=root and names.check(root, what="root"),
        forked_from=former if is_here else "",
        reply_to=names.check(reply_to, what="reply_to"),
        resend=resend if is_here else (),
    )
    return Draft(Kind.RUN_CREATED, facts, codec.encode(given, name="input"))


async def cancel(context: Context, run_id: str) -> bool:
    """Cancel the run of a peer that nobody waits for any more, unless it has ended.

    False if it is not there, or only to say that it was cancelled before its request came.
    """

    def decide(snapshot: Snapshot) -> Decision:
        run = snapshot.run
        if run is None or run.status in runs.ENDED:
            return Decision(run is not None and run.input_digest != b"")
        return Decision(True, (_given_up(),))

    names.check(run_id, what="run id")
    return await context.decide_late(run_id, decide, topics=CANCELS)


async def begin_cancelled(context: Context, run_id: str, *, agent: str) -> None:
    """A run that was cancelled before its request came: that finds it ended."""
    facts = runs.Created(agent=names.check(agent, what="agent"))
    with contextlib.suppress(RunExists):
        await unheld_runs.create(context, run_id, [Draft(Kind.RUN_CREATED, facts), _given_up()])


def _given_up() -> Draft:
    note = "whoever called it does not wait for it any more"
    return Draft(Kind.RUN_CANCELLED, runs.Ended(note))


def asked_until(context: Context, opened: waits.Opened) -> int:
    """Until when a peer may wait for a person."""
    deadlines = [wait.deadline for wait in opened.waits if wait.kind in FOR_PEOPLE]
    return max(deadlines) if all(deadlines) else context.now() + _FOR_A_PERSON


async def hear_from(
    context: Context,
    wait_id: str,
    *,
    until: int = 0,
    said: object = None,
    is_awake: bool = False,
) -> bool:
    """A sign of life of a peer: its wait, and those of all callers above, last longer.

    False if nobody waits for it any more. `said` is kept with the wait for whoever follows it. One
    that `is_awake` waits for no person any more, so its caller waits no longer than usual either.
    """
    told = "" if said is None else _shown(said)
    for joined in await context.store.waits.for_call(at_call(wait_id)):
        await _hear(context, joined.wait_id, until, told, is_exact=is_awake)
    heard = wait = await _hear(context, wait_id, until, told, is_exact=is_awake)
    for _ in range(_DEEPEST):
        caller = None if wait is None else await context.store.runs.get(wait.run_id)
        if caller is None or caller.reply_to != STORE:
            break
        wait = await _hear(context, caller.run_id, until)
    return heard is not None


async def pass_on_question(
    context: Context,
    wait_id: str,
    *,
    question_id: str,
    kind: str,
    deadline: int,
    question: Mapping[str, Any],
    answer_to: str,
) -> None:
    """Let a caller ask what its peer asks: the answer is sent to the peer, wherever it is."""
    names.check(question_id, what="wait id")
    if kind not in FOR_PEOPLE or not 0 <= deadline < _LATEST:
        raise MisuseError(f"no person is asked a {kind!r} until {deadline}")
    facts = waits.WaitFacts(question_id, kind, wait_id, deadline, answer_to)
    opened = waits.Opened(str(ids.uuid7()), 0, (facts,))
    draft = Draft(Kind.WAITS_OPENED, opened, codec.encode({question_id: question}, name="question"))

    def decide(snapshot: Snapshot) -> Decision:
        known = snapshot.indexes.waits
        call = known.get(wait_id)
        if call is None or call.status is not WaitStatus.OPEN or question_id in known:
            return Decision(None)
        until = (deadline or snapshot.now + _FOR_A_PERSON) + call.patience
        return Decision(None, (draft,), (ExtendWait(wait_id, until, snapshot.now),))

    await context.decide_late("", decide, wait_ids=(wait_id, question_id))


async def withdraw_questions(of: Waits, wait_id: str) -> None:
    """A peer that has answered asks nothing any more."""
    with contextlib.suppress(WaitNotFound):
        call = await of.get(wait_id)
        for wait in await of.of_run(call.run_id):
            if wait.name == wait_id and wait.status is WaitStatus.OPEN:
                await of.cancel(wait.wait_id)


def _shown(said: object) -> str:
    """What a peer says as JSON; raises ValueTooLarge if that is no report any more."""
    told = msgspec.json.encode(codec.decode(codec.encode(said, name="report")))
    check_size(told, "a report", _LONGEST_REPORT)
    return told.decode()


async def _hear(
    context: Context, wait_id: str, until: int, told: str = "", *, is_exact: bool = False
) -> Wait | None:
    """Move the deadline of one wait; None if it is not open."""

    def decide(snapshot: Snapshot) -> Decision:
        wait = snapshot.indexes.waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN:
            return Decision(None)
        deadline = wait.deadline
        if wait.patience:
            later = max(snapshot.now, until) + wait.patience
            # Before the first sign of life it is until when a worker must have taken the peer.
            deadline = later if is_exact or not wait.progress_at else max(later, deadline)
        return Decision(wait, touches=(ExtendWait(wait_id, deadline, snapshot.now, told),))

    return await context.decide_late("", decide, wait_ids=(wait_id,))


async def send_progress(context: Context, run: Run, said: object) -> None:
    """Tell a caller elsewhere how far a run is, as far as its transport is up."""
    _shown(said)
    headers = {"kind": "progress", "address": run.reply_to, "subject": run.run_id, "seq": "0"}
    body = codec.encode(said, name="progress")
    key = f"{run.run_id}/progress"  # while one is on its way, no other is added
    await Queues(context).publish(OUTGOING, body, key=key, headers=headers)
