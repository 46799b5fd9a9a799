"""What goes between agents that do not share a store, as it is on the wire.

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


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """An agent is to work on an input, and to answer at `reply_to`.

    `root` is what its effects are keyed by. One that is made again has that of the `former`, which
    it continues if that was in the same store, but for what it is to `resend`.
    """

    wait_id: str
    agent: str
    input: Any
    reply_to: str
    caller: str = ""
    root: str = ""
    former: str = ""
    resend: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Nobody waits for a run any more. It may come before its request."""

    wait_id: str
    agent: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """A run has ended."""

    wait_id: str
    reply: PeerReply


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """A run goes on, and may say how far it is."""

    wait_id: str
    said: Any = None
    is_awake: bool = False


class Asks(msgspec.Struct, frozen=True, kw_only=True, tag="asks"):
    """A run asks a person something; the answer goes to `answer_to`."""

    wait_id: str
    question_id: str
    kind: str
    deadline: int
    question: dict[str, Any]
    answer_to: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What a person answered."""

    question_id: str
    value: Any
    by: str


Envelope = Request | Cancel | Reply | Alive | Asks | Answer


def encode(envelope: Envelope) -> bytes:
    """An envelope as the body of a message."""
    tag = type(envelope).__struct_config__.tag
    return codec.encode({"type": tag} | msgspec.structs.asdict(envelope), name="message")


def decode(body: bytes) -> Envelope:
    """The envelope in a message; raises UnsupportedValue for what is none."""
    try:
        return msgspec.convert(codec.decode(body), type=Envelope)
    except (msgspec.MsgspecError, HoldfastError, ValueError) as error:
        raise UnsupportedValue(f"this is no message between agents: {error}") from error


def queue_of_agent(tenant: str, name: str) -> str:
    """Where the agent of a name takes requests; raises InvalidIdentifier if it is too long."""
    return names.check(f"{_prefix('agents', tenant)}{name}", what="the queue of an agent")


def agent_of_queue(tenant: str, queue: str) -> str:
    """The agent that takes requests in a queue."""
    return queue.removeprefix(_prefix("agents", tenant))


def queue_of_store(tenant: str, store_id: str) -> str:
    """Where the runs of a store take replies."""
    return f"{_prefix('replies', tenant)}{store_id}"


def _prefix(what: str, tenant: str) -> str:
    """Of the default tenant it is short; those of others are never the beginning of another's."""
    return f"{what}." if tenant == DEFAULT_TENANT else f"{what}@{len(tenant)}:{tenant}."
