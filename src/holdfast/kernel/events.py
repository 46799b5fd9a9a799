"""Events: what subscribers get of an entry, with the attributes of CloudEvents 1.0.

An event has the facts of its entry, by name, and never its body. An entry of a kind that is not
known here, or of a newer Holdfast, is an event like any other; its facts are left out.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote
from uuid import UUID

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.kernel import indexes, journal, runs
from holdfast.kernel.journal import Entry

SPECVERSION: Final = "1.0"
CONTENT_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
TYPE: Final = "holdfast."
_FORM: Final = "1"
_STORE_DIGITS: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FeedPosition(NamedTuple):
    """A place in the feed of a store: `at` as the store counts, then the run and the seq."""

    at: int
    run_id: str = ""
    seq: int = 0


class Fed(msgspec.Struct, frozen=True, gc=False):
    """An entry in the feed, without its body; `agent` is the one its run has now."""

    position: FeedPosition
    kind: str
    at: int
    actor: str
    schema: int
    facts: bytes
    agent: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, as a CloudEvent; `position` is where to continue after it.

    `id` is the same for every subscriber and every delivery: a subscriber that keeps the ids it
    has seen counts each event once.
    """

    id: str
    source: str
    type: str
    subject: str
    time: datetime
    data: dict[str, Any]
    position: str
    specversion: str = SPECVERSION
    datacontenttype: str = "application/json"

    @property
    def run_id(self) -> str:
        return self.subject

    @property
    def seq(self) -> int:
        return int(self.id.rpartition("/")[2])

    @property
    def kind(self) -> str:
        return self.type.removeprefix(TYPE)

    def to_cloudevent(self) -> dict[str, Any]:
        """The event in the JSON format of CloudEvents; `sequence` and `position` extend it."""
        return {
            "specversion": self.specversion,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": self.time.isoformat().replace("+00:00", "Z"),
            "datacontenttype": self.datacontenttype,
            "sequence": str(self.seq),
            "position": self.position,
            "data": self.data,
        }


class EventFilter(msgspec.Struct, frozen=True):
    """Which events somebody wants; those left empty mean any."""

    run_id: str = ""
    kinds: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()

    def has(self, fed: Fed) -> bool:
        return (
            (not self.run_id or fed.position.run_id == self.run_id)
            and (not self.kinds or fed.kind in self.kinds)
            and (not self.agents or fed.agent in self.agents)
        )


def event_of(fed: Fed, *, tenant: str, store_id: str) -> Event:
    """Return the event that subscribers get for an entry."""
    _, run_id, seq = fed.position
    return Event(
        id=f"{run_id}/{seq}",
        source=f"/holdfast/{store_id}/{quote(tenant, safe='')}",
        type=TYPE + fed.kind,
        subject=run_id,
        time=_EPOCH + timedelta(microseconds=fed.at),
        data=_data_of(fed),
        position=to_text(fed.position, store_id),
    )


def to_text(position: FeedPosition, store_id: str) -> str:
    """Return a place in the feed as an opaque text."""
    at, run_id, seq = position
    return f"{_FORM}:{store_id[:_STORE_DIGITS]}:{at}:{seq}:{run_id}"


def from_text(text: str, store_id: str) -> FeedPosition:
    """Return the place that a text names. Raises MisuseError if it is not a place of this store."""
    form, _, rest = text.partition(":")
    parts = rest.split(":", 3)
    if form != _FORM or len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        raise MisuseError(
            f"{text!r} is no position in the events of a store; give the `position` of an event, "
            "or 'start'"
        )
    if parts[0] != store_id[:_STORE_DIGITS]:
        raise MisuseError(f"{text!r} is a position in the events of another store")
    return FeedPosition(int(parts[1]), parts[3], int(parts[2]))


def _data_of(fed: Fed) -> dict[str, Any]:
    """The facts by their names, beside whose they are."""
    known: dict[str, Any] = {"taskId": fed.position.run_id, "agentId": fed.agent}
    known["actor"] = fed.actor
    if fed.schema > journal.SCHEMA:
        return known
    _, run_id, seq = fed.position
    entry = Entry(
        "",
        run_id,
        seq,
        fed.kind,
        fed.at,
        fed.actor,
        fed.schema,
        "",
        "",
        fed.facts,
        b"",
        b"",
        None,
        b"",
    )
    try:
        facts = indexes.facts_of(entry)
    except HoldfastError:
        return known
    fields = cast("dict[str, Any]", _plain(facts)) | _also_named(facts)
    # The agent of a checkpoint is the one that made it, which may not be the run's any more.
    return known | fields | {"agentId": fields.get("agent") or fed.agent}


def _also_named(facts: object) -> dict[str, Any]:
    """What seed 003 calls by other names than the facts do."""
    match facts:
        case runs.AgentHandoff():
            return {"fromCheckpoint": str(facts.checkpoint_id), "toAgent": facts.to}
        case runs.RecoveryCompleted():
            return {"newAgentId": facts.agent or facts.worker}
        case _:
            return {}


def _plain(value: Any) -> Any:
    """Facts as JSON data: names as JavaScript has them, bytes as hexadecimal digits."""
    match value:
        case msgspec.Struct():
            fields = value.__struct_fields__
            return {_camel(name): _plain(getattr(value, name)) for name in fields}
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {str(key): _plain(each) for key, each in items}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in cast("list[Any]", value)]
        case bytes():
            return value.hex()
        case UUID():
            return str(value)
        case _:
            return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
