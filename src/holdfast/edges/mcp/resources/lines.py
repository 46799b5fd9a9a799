"""What an entry of the journal says, in a line for people and models. Pure.

Names, notes and outcomes are shown; what was sent, answered or computed is not.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast import clock, codec
from holdfast.agents.definitions.questions import APPROVAL, QUESTION, TIMER
from holdfast.errors import HoldfastError
from holdfast.kernel import budgets, checkpoints, effects, indexes, journal, runs, waits
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.peers import PEER
from holdfast.kernel.signals import WAIT_KIND as SIGNAL
from holdfast.workflows.execution.state import ENDED, EndedBlock

MOST_CHARACTERS: Final = 300
_BEGINNINGS: Final = frozenset({Kind.EFFECT_ISSUED, Kind.WAITS_OPENED})
_WAITS: Final = {
    QUESTION: "an answer",
    APPROVAL: "an approval",
    TIMER: "a time",
    SIGNAL: "the signal",
    PEER: "the peer",
}
_STEPS: Final = {
    "model:": "the model replied",
    "read:": "read with",
    "read_failed:": "could not read with",
    "blob:": "kept a long result of",
}


def line_of(entry: Entry, names: Mapping[str, str] | None = None) -> str:
    """An entry that was checked, in a line; `names` are those of effects and waits by their ids."""
    facts = facts_in(entry)
    known = names or {}
    match facts:
        case None:
            text = "cannot be read by this version of Holdfast"
        case effects.EffectSettled():
            called = known.get(str(facts.effect_id), "a call")
            text = _about(f"{called} {_SETTLED[Kind(entry.kind)]}", facts.note)
        case waits.WaitSettled():
            awaited = known.get(facts.wait_id, "what it waited for")
            text = f"{_ANSWERED[Kind(entry.kind)]} {awaited}"
        case checkpoints.Step():
            text = _step(entry, facts.name)
        case _:
            text = WORDS[Kind(entry.kind)](facts)
    return in_a_line(text)


def names_in(entries: Iterable[Entry]) -> dict[str, str]:
    """Return names for the effects and waits that begin in these entries, by their ids."""
    found: dict[str, str] = {}
    for entry in entries:
        match facts_in(entry) if entry.kind in _BEGINNINGS else None:
            case effects.Issued(effect_id=effect_id, tool=tool):
                found[str(effect_id)] = tool
            case waits.WaitsOpened(waits=opened):
                found |= {each.wait_id: awaited(each.kind, each.name) for each in opened}
            case _:
                pass
    return found


def facts_in(entry: Entry) -> Any:
    """The facts of an entry; None if a newer version of Holdfast wrote them."""
    try:
        return indexes.facts_of(entry)
    except HoldfastError:
        return None


def awaited(kind: str, name: str) -> str:
    """What a wait is for."""
    label = _WAITS.get(kind, kind)
    return f"{label}: {name}" if name and name != kind else label


def in_a_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text in one line that is not too long, without anything that a terminal acts on."""
    line = " ".join(text[: 4 * most].split())
    line = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _about(what: str, note: str) -> str:
    return f"{what}: {note}" if note else what


def _step(entry: Entry, name: str) -> str:
    if name.startswith(ENDED):
        return f"block {name.removeprefix(ENDED)} {_status_in(entry)}"
    for prefix, words in _STEPS.items():
        if name.startswith(prefix):
            return f"{words}: {name.removeprefix(prefix)}"
    return f"step {name} is done"


def _status_in(entry: Entry) -> str:
    """How a block ended, unless that was erased."""
    try:
        return msgspec.convert(codec.decode(journal.body_of(entry)), EndedBlock).status
    except (HoldfastError, msgspec.ValidationError):
        return "ended"


def _created(facts: runs.RunCreated) -> str:
    what = f"{facts.agent} {facts.subject}".strip() or "run"
    if facts.forked_from:
        return f"begun: {what}, from version {facts.forked_version} of {facts.forked_from}"
    below = f", for {facts.parent_id}" if facts.parent_id else ""
    return _about(f"begun: {what}{below}", facts.note)


def _opened(facts: waits.WaitsOpened) -> str:
    parts = [awaited(each.kind, each.name) + _until(each) for each in facts.waits[:5]]
    if len(facts.waits) > len(parts):
        parts.append(f"{len(facts.waits) - len(parts)} more")
    few = f"{facts.need} of " if 0 < facts.need < len(facts.waits) else ""
    return f"waits for {few}{', '.join(parts)}"


def _until(wait: waits.WaitFacts) -> str:
    return f" {moment(wait.deadline)}" if wait.kind == TIMER and wait.deadline else ""


def moment(at: int) -> str:
    """A moment as text."""
    return clock.to_datetime(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _saved(facts: checkpoints.CheckpointCreated) -> str:
    about = " ".join(filter(None, (facts.phase, facts.label)))
    return _about(f"saved version {facts.version}", about)


def _cost(facts: budgets.Recorded) -> str:
    lost = ", of which nobody saw the end" if facts.is_lost else ""
    return f"{facts.what} cost {_amounts(facts.amounts)}{lost}"


def _amounts(amounts: budgets.Amounts) -> str:
    usd = f"{amounts.usd_micros / 1_000_000:.6f}".rstrip("0").rstrip(".")
    return f"{usd} USD, {amounts.tokens} tokens"


def _ranges(numbers: Iterable[tuple[int, int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in numbers)


_SETTLED: Final = {
    Kind.EFFECT_COMPLETED: "is done",
    Kind.EFFECT_NOT_DONE: "was not done",
    Kind.EFFECT_UNKNOWN: "may or may not have been done",
}
_ANSWERED: Final = {
    Kind.WAIT_RESOLVED: "got",
    Kind.WAIT_EXPIRED: "waited too long for",
    Kind.WAIT_CANCELLED: "waits no more for",
}
WORDS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.RUN_CREATED: _created,
    Kind.RUN_LEASED: lambda f: f"worker {f.worker} took it",
    Kind.RUN_RELEASED: lambda f: _about("given back for any worker", f.note),
    Kind.RUN_WAITING: lambda _: "sleeps until what it waits for is there",
    Kind.RUN_BLOCKED: lambda f: _about(f"blocked, an operator must act ({f.reason})", f.note),
    Kind.RUN_UNBLOCKED: lambda f: _about("may go on", f.note),
    Kind.RUN_COMPLETED: lambda f: _about("completed", f.note),
    Kind.RUN_FAILED: lambda f: _about("failed", f.note),
    Kind.RUN_CANCELLED: lambda f: _about("cancelled", f.note),
    Kind.RUN_REWOUND: lambda f: _about(f"goes on from version {f.version}", f.note),
    Kind.LEASE_EXPIRED: lambda f: f"worker {f.worker} was not heard of in time",
    Kind.CHECKPOINT_CREATED: _saved,
    Kind.CHECKPOINT_CORRUPTED: lambda f: (
        f"version {f.version} is damaged, fell back to {f.fell_back_to}"
    ),
    Kind.CHECKPOINT_DELETED: lambda f: _about(f"version {f.version} was deleted", f.note),
    Kind.CHECKPOINTS_PRUNED: lambda f: _about(f"versions {_ranges(f.versions)} pruned", f.note),
    Kind.WRITES_RECORDED: lambda f: f"recorded what task {f.task_path or f.task_id} wrote",
    Kind.STATE_VALUES: lambda _: "stored large values",
    Kind.STATE_BASE: lambda f: f"stored a shorter way to version {f.version}",
    Kind.VERSIONS_RECORDED: lambda f: _about(
        "noted what the agent is made of", " ".join(filter(None, (f.agent_version, f.model)))
    ),
    Kind.EFFECT_ISSUED: lambda f: f"calls {f.tool}",
    Kind.WAITS_OPENED: _opened,
    Kind.GROUP_CLOSED: lambda f: f"what it waited for together is {f.status}",
    Kind.SIGNAL_RECEIVED: lambda f: f"received the signal {f.name}",
    Kind.SIGNAL_TAKEN: lambda _: "dealt with a signal",
    Kind.BUDGET_SET: lambda f: _about("has a budget" if f.is_first else "has a new budget", f.note),
    Kind.BUDGET_RESERVED: lambda f: f"{f.what} may cost {_amounts(f.amounts)}",
    Kind.BUDGET_WARNED: lambda f: _about(f"nearly at its limit of {f.limit}", f.note),
    Kind.COST_RECORDED: _cost,
    Kind.CHECKPOINT_UPDATED: lambda f: f"version {f.version} has revision {f.revision}",
    Kind.CHECKPOINT_FINALIZED: lambda f: f"version {f.version} is final: {f.status}",
    Kind.CHECKPOINT_LINKED: lambda f: f"version {f.version} continues checkpoint {f.parent_id}",
    Kind.HANDOFF_REQUESTED: lambda f: _about("is to be handed over", f.note),
    Kind.AGENT_HANDOFF: lambda f: _about(f"{f.giver or 'its agent'} hands it over", f.note),
    Kind.HANDOFF_RECEIVED: lambda f: "its handoff was received",
    Kind.HANDOFF_VERIFIED: lambda f: f"its checkpoint {f.version} was verified",
    Kind.HANDOFF_SELECTED: lambda f: _about(f"{f.to or 'an agent outside'} was selected", f.reason),
    Kind.HANDOFF_ASSIGNED: lambda f: f"{f.to} is to go on",
    Kind.HANDOFF_ACKNOWLEDGED: lambda f: f"{f.agent or f.worker} goes on with a fresh context",
    Kind.HANDOFF_REVERTED: lambda f: _about(f"{f.agent or 'its giver'} has it again", f.note),
    Kind.RECOVERY_INITIATED: lambda f: _about(
        f"is recovered from version {f.version} ({f.reason})", f.note
    ),
    Kind.RECOVERY_COMPLETED: lambda f: f"goes on from version {f.version} after a failure",
    Kind.RECOVERY_FAILED: lambda f: _about(f"cannot be recovered ({f.reason})", f.note),
    Kind.BODIES_ERASED: lambda f: _about(f"what entries {_ranges(f.seqs)} held is erased", f.note),
}
"""What the other kinds say, by their facts."""
