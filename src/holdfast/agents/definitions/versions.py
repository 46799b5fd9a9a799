"""Versions in flight: what an agent is made of, and what to do when that changed under a run.

The version, the model, and the digests of prompt and tools are on record with each turn, so that a
run which waited for weeks is not taken up by other code without anybody knowing.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from holdfast import codec, names
from holdfast.agents.definitions.questions import QUESTION
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.exits.exit_reasons import BlockExit, Suspend, WaitExit
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.waits import WaitSpec
from holdfast.errors import MisuseError
from holdfast.kernel import indexes, journal, waits
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.runs import BlockedReason
from holdfast.kernel.versions import Versions, changes
from holdfast.telemetry import log

OnChange = Literal["continue", "refuse", "ask"]

PART: Final = "holdfast.versions"
_NAME: Final = "versions"
CHOICES: Final = ("continue", "stop")
_SHOWN: Final = 12
_READ: Final = frozenset(
    {
        Kind.VERSIONS_RECORDED,
        Kind.WAITS_OPENED,
        *waits.STATUS_OF,
        Kind.RUN_UNBLOCKED,
    }
)
"""The kinds of entries that say what a run was worked on with, or answer about it."""


def versions_of(
    tools: Mapping[str, Tool[..., Any]], *, version: str, model: str, prompt: str
) -> Versions:
    """What an agent is made of; raises MisuseError for what cannot be recorded."""
    for what, text in (("version", version), ("model", model)):
        if text:
            names.check(text, what=f"the {what} of an agent")
    if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError("the prompt of an agent is its template, a text")
    digest = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest() if prompt else ""
    return Versions(version, model, digest, _digest_of(tools))


def _digest_of(tools: Mapping[str, Tool[..., Any]]) -> str:
    """Return the digest of what a model sees of its tools, and of their effect classes."""
    if not tools:
        return ""
    rows = [
        [tool.name, tool.description, tool.policy.effect, tool.input_schema]
        for _, tool in sorted(tools.items())
    ]
    return codec.canonical_digest(rows, name="tools").hex()


def check_on_change(on_change: OnChange) -> OnChange:
    if on_change in ("continue", "refuse", "ask"):
        return on_change
    raise MisuseError(f"on_change must be continue, refuse or ask, not {on_change!r}")


def part_of(versions: Versions) -> dict[str, str]:
    """Versions as the state has them."""
    return {name: getattr(versions, name) for name in Versions.__struct_fields__}


class InFlight:
    """The versions in the entries of a turn, and the answers about a change."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.versions: Versions | None = None
        self._asked: dict[str, Versions] = {}
        self._open: dict[Versions, str] = {}
        self._answers: dict[Versions, object] = {}
        for entry in entries:
            if entry.kind in _READ:
                self._read(entry)

    def recorded(self, held: LeasedRun) -> Versions | None:
        """Return the versions that last worked on the run; None if unknown, as for a new fork."""
        if self.versions is not None:
            return self.versions
        stored = held.part(PART)
        return None if stored is None else Versions(**stored)

    def answer_about(self, versions: Versions) -> object:
        """Return the answer to whether to continue with these; None if there is no answer."""
        return self._answers.get(versions)

    def group_about(self, versions: Versions) -> str | None:
        """Return the group of the question whether to continue with these, if it is open."""
        return self._open.get(versions)

    def _read(self, entry: Entry) -> None:
        facts = indexes.facts_of(entry)
        match facts:
            case Versions():
                self.versions = facts
            case waits.WaitsOpened():
                self._read_questions(entry, facts)
            case waits.WaitSettled(wait_id) if wait_id in self._asked:
                self._open.pop(self._asked[wait_id], None)
                if entry.kind == Kind.WAIT_RESOLVED:
                    answer = codec.decode(journal.body_of(entry))
                    self._answers[self._asked[wait_id]] = answer
            case _:
                if entry.kind == Kind.RUN_UNBLOCKED:
                    self._answers = {v: a for v, a in self._answers.items() if a != "stop"}

    def _read_questions(self, entry: Entry, facts: waits.WaitsOpened) -> None:
        ids = [w.wait_id for w in facts.waits if (w.kind, w.name) == (QUESTION, _NAME)]
        if not ids:
            return
        payloads = codec.decode(journal.body_of(entry))
        for wait_id in ids:
            versions = Versions(**payloads[wait_id]["versions"])
            self._asked[wait_id] = versions
            self._open[versions] = facts.group_id


class DefinitionChange(msgspec.Struct, frozen=True):
    """An agent is not what a run was worked on with."""

    agent: str
    run_id: str
    before: Versions
    after: Versions

    def __str__(self) -> str:
        differences = [
            f"{name} was {_shown(old)}, and is {_shown(new)}"
            for name, (old, new) in changes(self.before, self.after).items()
        ]
        return (
            f"the agent {self.agent} has changed under run {self.run_id}: {'; '.join(differences)}"
        )


def judge(change: DefinitionChange, on_change: OnChange, in_flight: InFlight) -> None:
    """Return if the run continues with what the agent is now; else leave it."""
    if on_change == "refuse":
        raise Suspend(_stopped(change))
    if on_change == "ask":
        answer = in_flight.answer_about(change.after)
        if answer not in CHOICES:
            group = in_flight.group_about(change.after)
            raise Suspend(WaitExit(groups=(group,)) if group else ask_about(change))
        if answer == "stop":
            raise Suspend(_stopped(change))
    log.info("%s; it goes on", change)


def ask_about(change: DefinitionChange) -> WaitExit:
    """Leave the run to somebody who decides."""
    payload = {
        "prompt": f"{change}. Go on with it?",
        "choices": list(CHOICES),
        "versions": part_of(change.after),
        "before": part_of(change.before),
    }
    return WaitExit((WaitSpec(kind=QUESTION, name=_NAME, payload=payload),))


def _stopped(change: DefinitionChange) -> BlockExit:
    note = (
        f"{change}. Put back what it was and unblock the run (`holdfast runs unblock`), or go on "
        "with the new one in a fork (`holdfast runs fork`)"
    )
    return BlockExit(BlockedReason.NO_AGENT, note)


def _shown(text: str) -> str:
    return repr(text if len(text) < 64 else f"{text[:_SHOWN]}…") if text else "not set"
