"""Calls of other agents: the run is left to their answers, and holds nothing meanwhile.

In the same store the peer's run begins in the commit that leaves this one, and has the id of the
wait for it; elsewhere a message goes out in that commit. Either way the answer finds its wait.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from holdfast import clock, codec, names
from holdfast.agents import shapes
from holdfast.agents.agent import Agent
from holdfast.agents.leaving import Wait
from holdfast.agents.memo import RecordedWait
from holdfast.agents.peer_tools import TOOL_PREFIX, Peer
from holdfast.agents.places import Places
from holdfast.agents.questions import Place
from holdfast.agents.tools import text_of
from holdfast.agents.views import Log, Value
from holdfast.agents.waiting import Answered, Waiting
from holdfast.engine import peers
from holdfast.engine.context import Context
from holdfast.engine.leased_run import LeasedRun
from holdfast.engine.replies import ARTIFACTS, FLAGS, PeerReply
from holdfast.engine.waits import PeerRun, WaitSpec
from holdfast.errors import PeerCancelled, PeerFailed, PeerTimedOut, UnsupportedValue
from holdfast.kernel.peers import PEER, STORE
from holdfast.kernel.waits import WaitStatus


class PeerCall(Place, frozen=True, kw_only=True):
    """What is stored with the wait for a peer; `input` only if the peer is elsewhere."""

    tool: str
    timeout: float
    agent: str
    queue_timeout: float | None = None
    input: Any = None


class Limits(NamedTuple):
    """For how many seconds a call may be without a sign of life, and wait for a worker before."""

    timeout: float | None
    queue_timeout: float | None


class Peers:
    """The calls of peers of one pass over a run."""

    def __init__(
        self,
        context: Context,
        held: LeasedRun,
        places: Places,
        waiting: Waiting,
    ) -> None:
        self._context = context
        self._held = held
        self._places = places
        self._waiting = waiting
        self.artifacts = Log[Any](held, ARTIFACTS, cast(Any, Any), lambda _: None)
        self.flags = Value[dict[str, Any]](held, FLAGS, dict, {})

    async def report(self, said: object) -> bool:
        """Tell the caller of this run how far it is."""
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
        """The answer of a peer; raises PeerFailed, PeerTimedOut or PeerCancelled."""
        name = peer.name if isinstance(peer, Agent) else names.check(peer, what="a peer's name")
        given = peer.named_input(given) if isinstance(peer, Agent) else given
        limits = Limits(timeout, queue_timeout)
        found = self._waiting.settled_or_left(*self._asked(name, name, given, limits, subject))
        reply, call = self._reply_of(found), _call_of(found)
        match reply.status:
            case "completed":
                return peer.result_of(reply.value) if isinstance(peer, Agent) else reply.value
            case "cancelled":
                raise PeerCancelled(_told(call, found, reply))
            case "failed" if found.status is WaitStatus.EXPIRED:
                raise PeerTimedOut(_told(call, found, reply))
            case "failed":
                raise PeerFailed(_told(call, found, reply))

    def called_by_model(self, peer: Peer, arguments: Mapping[str, Any]) -> Answered | Wait:
        """The answer to a call of a model, or what the run must be left to before."""
        given = dict(arguments) if peer.takes_names else arguments["request"]
        limits = Limits(peer.timeout, peer.queue_timeout)
        asked = self._asked(peer.name, TOOL_PREFIX + peer.name, given, limits)
        found = self._waiting.recorded(asked[0])
        if found is None:
            return Wait((asked[1],))
        if found.status is WaitStatus.OPEN:
            return Wait(groups=(found.group_id,))
        reply = self._reply_of(found)
        if reply.status == "completed":
            return Answered(text_of(reply.value))
        return Answered(_told(_call_of(found), found, reply), is_error=True)

    def _asked(
        self, name: str, tool: str, given: Any, limits: Limits, subject: str = ""
    ) -> tuple[bytes, WaitSpec]:
        """The place of a call, and the wait that it opens if it is a new one."""
        settings = self._context.settings
        seconds = settings.peer_timeout_seconds if limits.timeout is None else limits.timeout
        clock.seconds(seconds)
        if limits.queue_timeout is not None:
            clock.seconds(limits.queue_timeout)
        given = shapes.plain(given, what=f"the input of {name}")
        place = self._places.of_wait(PEER, tool, codec.canonical_digest(given, name="input"))
        address = self._context.address_of(name)
        is_here = address == STORE
        call = PeerCall(
            place=place,
            tool=tool,
            timeout=seconds,
            agent=name,
            queue_timeout=limits.queue_timeout,
            input=None if is_here else given,
        )
        spec = WaitSpec(
            kind=PEER,
            name=tool,
            timeout_seconds=seconds,
            queue_timeout_seconds=limits.queue_timeout,
            payload=call,
            address=address,
            peer_run=PeerRun(name, given, subject) if is_here else None,
        )
        return place, spec

    def _reply_of(self, found: RecordedWait) -> PeerReply:
        """What became of a call; what its peer produced is this run's from here on."""
        if found.status is not WaitStatus.RESOLVED:
            is_cancelled = found.status is WaitStatus.CANCELLED
            return PeerReply(status="cancelled" if is_cancelled else "failed")
        try:
            reply = shapes.convert(found.value, PeerReply, what=f"the reply of {found.name}")
        except UnsupportedValue:
            reply = PeerReply(status="completed", value=found.value)  # of whoever resolved the wait
        if reply.artifacts:
            self.artifacts.extend(reply.artifacts)
        if reply.flags:
            self.flags.set(self.flags.get() | reply.flags)
        return reply


def _call_of(found: RecordedWait) -> PeerCall:
    return shapes.convert(found.payload, PeerCall, what="the call of a peer")


def _told(call: PeerCall, found: RecordedWait, reply: PeerReply) -> str:
    what = f"Request to peer agent tool '{call.tool}'"
    if found.status is WaitStatus.EXPIRED:
        queue = call.queue_timeout
        or_queue = "" if queue is None else f", or no worker took it within {queue:g} seconds"
        return f"{what} timed out after {call.timeout:g} seconds{or_queue}."
    if reply.status == "cancelled":
        by = f" by {found.settled_by}" if found.status is WaitStatus.CANCELLED else ""
        return f"{what} was cancelled{by}."
    return f"{what} failed: {reply.error or 'no reason is on record'}"
