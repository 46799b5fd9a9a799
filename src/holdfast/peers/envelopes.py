"""The messages between agents that do not share a store, in their wire format.

    to the queue of an agent        request, cancel, answer
    to the queue of the caller      reply, alive, progress, asks

`wait_id` is the id of the caller's wait, of the peer's run, and of the request: one key everywhere.
"""

from typing import Any, Final

import msgspec

from holdfast import codec, names
from holdfast.engine.messages.replies import PeerReply
from holdfast.errors import HoldfastError, UnsupportedValue

DEFAULT_TENANT: Final = "default"
CONTENT_TYPE: Final = "application/vnd.holdfast+msgpack"


class RequestEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """Asks an agent to work on an input, and to answer at `reply_to`.

    Its effects are keyed by `root`. A repeated request has the root of the `former` one, which it
    continues if that was in the same store, except for what it is to `resend`.
    """

    wait_id: str
    agent: str
    input: Any
    reply_to: str
    caller: str = ""
    root: str = ""
    former: str = ""
    resend: tuple[str, ...] = ()


class CancelEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Nobody waits for a run any more. It may come before its request."""

    wait_id: str
    agent: str


class ReplyEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """A run has ended."""

    wait_id: str
    reply: PeerReply


class AliveEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """A run is still working, and may report its progress."""

    wait_id: str
    said: Any = None
    is_awake: bool = False


class QuestionEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="asks"):
    """A run asks a person something; the answer goes to `answer_to`."""

    wait_id: str
    question_id: str
    kind: str
    deadline: int
    question: dict[str, Any]
    answer_to: str


class AnswerEnvelope(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What a person answered."""

    question_id: str
    value: Any
    by: str


Envelope = (
    RequestEnvelope
    | CancelEnvelope
    | ReplyEnvelope
    | AliveEnvelope
    | QuestionEnvelope
    | AnswerEnvelope
)


def encode(envelope: Envelope) -> bytes:
    """Encode an envelope as the body of a message."""
    tag = type(envelope).__struct_config__.tag
    return codec.encode({"type": tag} | msgspec.structs.asdict(envelope), name="message")


def decode(body: bytes) -> Envelope:
    """Decode the envelope in a message. Raises UnsupportedValue if it is not valid."""
    try:
        return msgspec.convert(codec.decode(body), type=Envelope)
    except (msgspec.MsgspecError, HoldfastError, ValueError) as error:
        raise UnsupportedValue(f"this is no message between agents: {error}") from error


def queue_of_agent(tenant: str, name: str) -> str:
    """Return the queue of an agent's requests; raises InvalidIdentifier if the name is too long."""
    return names.check(f"{_prefix('agents', tenant)}{name}", what="the queue of an agent")


def agent_of_queue(tenant: str, queue: str) -> str:
    """Return the agent that takes requests from a queue."""
    return queue.removeprefix(_prefix("agents", tenant))


def queue_of_store(tenant: str, store_id: str) -> str:
    """Return the queue of replies to the runs of a store."""
    return f"{_prefix('replies', tenant)}{store_id}"


def _prefix(what: str, tenant: str) -> str:
    """Return a tenant's prefix: short for the default tenant, and never a prefix of another's."""
    return f"{what}." if tenant == DEFAULT_TENANT else f"{what}@{len(tenant)}:{tenant}."
