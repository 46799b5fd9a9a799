"""Calls of other agents: the run waits for their answers, and holds nothing meanwhile.

In the same store the peer's run begins in the commit that leaves this one, and has the id of the
wait for it; elsewhere a message goes out in that commit. Either way the answer finds its wait.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, cast

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent
from holdfast.agents.definitions.peer_tools import TOOL_PREFIX, Peer
from holdfast.agents.definitions.questions import WaitPosition
from holdfast.agents.definitions.tools import text_of
from holdfast.agents.exits.exit_reasons import WaitExit
from holdfast.agents.turn.memo import RecordedWait
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.turn_waits import ResolvedWait, TurnWaits
from holdfast.agents.turn.views import Log, Value
from holdfast.engine.messages import peers
from holdfast.engine.messages.replies import ARTIFACTS, FLAGS, PeerReply
from holdfast.engine.waits import PeerRun, WaitSpec
from holdfast.errors import PeerCancelled, PeerFailed, PeerTimedOut, UnsupportedValue
from holdfast.kernel.peers import PEER, STORE, at_call, call_of
from holdfast.kernel.travel import PastItem
from holdfast.kernel.waits import Wait as WaitRow
from holdfast.kernel.waits import WaitStatus


class PeerCall(WaitPosition, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored with the wait for a peer; `input` only if the peer is elsewhere.

    `digest` is what makes two calls of an agent the same, `root` what the effects of its run are
    keyed by; a call that is made again continues from what the `former` run did.
    """

    tool: str
    timeout: float
    agent: str
    queue_timeout: float | None = None
    input: Any = None
    digest: bytes = b""
    root: str = ""
    former: str = ""
    resend: tuple[str, ...] = ()


class PeerTimeouts(NamedTuple):
    """For how many seconds a call may be without a sign of life, and wait for a worker before."""

    timeout: float | None
    queue_timeout: float | None


class PlacedPeerCall(NamedTuple):
    """A call of a peer: what is known of it, or the wait that it opens if it is a new one."""

    found: RecordedWait | None
    spec: WaitSpec


class Peers:
    """The calls of peers of one pass over a run."""

    def __init__(self, turn: Turn, waiting: TurnWaits) -> None:
        self._turn = turn
        self._context = turn.context
        self._held = turn.held
        self._places = turn.places
        self._past = turn.past
        self._waiting = waiting

    @cached_property
    def artifacts(self) -> Log[Any]:
        """What the run and its peers have produced."""
        view = Log[Any](self._held, ARTIFACTS, cast(Any, Any))
        self._turn.views.append(view)
        return view

    @cached_property
    def flags(self) -> Value[dict[str, Any]]:
        """What the run and its peers have noted by name."""
        view = Value[dict[str, Any]](self._held, FLAGS, dict, {})
        self._turn.views.append(view)
        return view

    async def report(self, said: object) -> bool:
        """Report to the caller of this run how far it is."""
        run = self._held.run
        if run.reply_to == STORE:
            return await peers.hear_from(self._context, run.run_id, said=said)
        if not run.reply_to:
            return False
        await peers.send_progress(self._context, run, said)
        return True

    async def call(
        self,
        peer: str | Agent[..., Any],
        given: Any,
        *,
        timeout: float | None,
        queue_timeout: float | None = None,
        subject: str = "",
    ) -> Any:
        """Return the answer of a peer; raises PeerFailed, PeerTimedOut or PeerCancelled."""
        name = peer.name if isinstance(peer, Agent) else names.check(peer, what="a peer's name")
        given = peer.named_input(given) if isinstance(peer, Agent) else given
        limits = PeerTimeouts(timeout, queue_timeout)
        alike = peer.alike(given) if isinstance(peer, Agent) else given
        asked = await self._asked(name, name, given, limits, subject=subject, alike=alike)
        found = self._waiting.settled_or_left(asked.found, asked.spec)
        reply, call = self._reply_of(found), _call_of(found)
        match reply.status:
            case "completed":
                return peer.result_of(reply.value) if isinstance(peer, Agent) else reply.value
            case "cancelled":
                raise PeerCancelled(_failure_text(call, found, reply))
            case "failed" if found.status is WaitStatus.EXPIRED:
                raise PeerTimedOut(_failure_text(call, found, reply))
            case "failed":
                raise PeerFailed(_failure_text(call, found, reply))

    async def called_by_model(
        self, peer: Peer, arguments: Mapping[str, Any]
    ) -> ResolvedWait | WaitExit:
        """Return the answer to a call of a model, or the wait that must end first."""
        given = dict(arguments) if peer.takes_names else arguments["request"]
        limits = PeerTimeouts(peer.timeout, peer.queue_timeout)
        found, spec = await self._asked(
            peer.name, TOOL_PREFIX + peer.name, given, limits, alike=given
        )
        if found is None:
            return WaitExit((spec,))
        if found.status is WaitStatus.OPEN:
            return WaitExit(groups=(found.group_id,))
        reply = self._reply_of(found)
        if reply.status == "completed":
            again = f"[idempotent replay of {found.replay_of}]: " if found.replay_of else ""
            return ResolvedWait(again + text_of(reply.value))
        return ResolvedWait(_failure_text(_call_of(found), found, reply), is_error=True)

    async def _asked(
        self,
        name: str,
        tool: str,
        given: Any,
        limits: PeerTimeouts,
        *,
        subject: str = "",
        alike: Any,
    ) -> PlacedPeerCall:
        """Return what is known of a call. `alike` is what makes it the same as another."""
        settings = self._context.settings
        seconds = settings.peer_timeout_seconds if limits.timeout is None else limits.timeout
        clock.seconds(seconds)
        if limits.queue_timeout is not None:
            clock.seconds(limits.queue_timeout)
        given = type_conversion.plain(given, what=f"the input of {name}")
        alike = type_conversion.plain(alike, what=f"the input of {name}")
        digest = codec.canonical_digest(alike, name="input")
        awaited = self._places.of_wait(PEER, tool, digest)
        own_root = self._past.root_of_call(awaited.place)
        address = self._context.address_of(name)
        is_here = address == STORE
        call = PeerCall(
            place=awaited.place,
            tool=tool,
            timeout=seconds,
            agent=name,
            queue_timeout=limits.queue_timeout,
            input=None if is_here else given,
            digest=digest,
            root=self._past.key_of(own_root),
        )
        recorded = self._waiting.in_turn(awaited)
        if recorded is not None:
            self._past.call_made(own_root, _call_of(recorded).root)
            return PlacedPeerCall(recorded, _spec(call, address))
        if (item := self._past.call(name, digest, own_root)) is not None:
            former = await self._former(item, call)
            call = former.call
            if former.found is not None or former.joins:
                return PlacedPeerCall(former.found, _spec(call, former.joins))
        begun = PeerRun(name, given, subject, call.root, call.former, call.resend)
        return PlacedPeerCall(None, _spec(call, address, begun if is_here else None))

    async def _former(self, item: PastItem, call: PeerCall) -> "_Former":
        """Return the state of a call that was made before the run went back.

        A reply is given back if the peer completed; a call that is under way is taken over; any
        other is made again, and continues from what the former run did.
        """
        call = msgspec.structs.replace(call, root=item.key, resend=item.resend)
        wait = await self._context.store.waits.get(item.item_id) if item.item_id else None
        if wait is None:
            return _Former(call)
        made = call_of(wait.wait_id, wait.address)
        again = msgspec.structs.replace(call, former=made)
        if item.resend:
            return _Former(again)
        if wait.status is WaitStatus.OPEN:
            if wait.run_id != self._held.run_id:
                return _Former(again, joins=at_call(made))
            return _Former(again, _recorded(wait, call))
        reply = await peers.completed_reply(self._context, wait)
        if reply is None:
            return _Former(again)
        return _Former(again, _recorded(wait, call, value=reply, replay_of=made))

    def _reply_of(self, found: RecordedWait) -> PeerReply:
        """Return the reply to a call; what its peer produced is this run's from here on."""
        if found.status is not WaitStatus.RESOLVED:
            is_cancelled = found.status is WaitStatus.CANCELLED
            return PeerReply(status="cancelled" if is_cancelled else "failed")
        try:
            reply = type_conversion.convert(
                found.value, PeerReply, what=f"the reply of {found.name}"
            )
        except UnsupportedValue:
            reply = PeerReply(status="completed", value=found.value)  # resolved by hand
        if reply.artifacts:
            self.artifacts.extend(reply.artifacts)
        if reply.flags:
            self.flags.set(self.flags.get() | reply.flags)
        return reply


class _Former(NamedTuple):
    """A call to make now; what is known of it, or the address of the call that it joins."""

    call: PeerCall
    found: RecordedWait | None = None
    joins: str = ""


def _recorded(
    wait: WaitRow, call: PeerCall, *, value: PeerReply | None = None, replay_of: str = ""
) -> RecordedWait:
    return RecordedWait(
        wait.wait_id,
        wait.group_id,
        wait.kind,
        wait.name,
        type_conversion.plain(call),
        status=wait.status,
        value=type_conversion.plain(value),
        settled_by=wait.settled_by,
        settled_at=wait.settled_at,
        replay_of=replay_of,
    )


def _spec(call: PeerCall, address: str, begun: PeerRun | None = None) -> WaitSpec:
    return WaitSpec(
        kind=PEER,
        name=call.tool,
        timeout_seconds=call.timeout,
        queue_timeout_seconds=call.queue_timeout,
        payload=call,
        address=address,
        peer_run=begun,
    )


def _call_of(found: RecordedWait) -> PeerCall:
    return type_conversion.convert(found.payload, PeerCall, what="the call of a peer")


def _failure_text(call: PeerCall, found: RecordedWait, reply: PeerReply) -> str:
    what = f"Request to peer agent tool '{call.tool}'"
    if found.status is WaitStatus.EXPIRED:
        queue = call.queue_timeout
        or_queue = "" if queue is None else f", or no worker took it within {queue:g} seconds"
        return f"{what} timed out after {call.timeout:g} seconds{or_queue}."
    if reply.status == "cancelled":
        by = f" by {found.settled_by}" if found.status is WaitStatus.CANCELLED else ""
        return f"{what} was cancelled{by}."
    return f"{what} failed: {reply.error or 'no reason is on record'}"
