"""What a graph asks people: interrupts as questions in the approvals inbox. Pure.

An interrupt is a write on the channel `__interrupt__`, an answer one on `__resume__`. A subgraph's
interrupt is written twice, by its own task and by the task that ran the subgraph, with one id: it
is one question. The name of a question's wait says at which checkpoint and task it was asked, so
that it can be closed when the graph continues without the inbox.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast import codec, names
from holdfast.agents.definitions import questions
from holdfast.errors import MisuseError, UnsupportedValue
from holdfast.kernel.waits import Wait, WaitStatus

INTERRUPT: Final = "__interrupt__"
RESUME: Final = "__resume__"
ERROR: Final = "__error__"

ANY_JSON: Final[dict[str, Any]] = {}
"""The schema of a question that takes any JSON value."""

UNKNOWN_EFFECT: Final = "unknown_effect"
"""The `kind` of a question about a call that nobody saw the end of; `effect` says which."""

_EFFECT_ID: Final = re.compile(r"[0-9a-f-]{36}")
_PREFIX: Final = "interrupt:"
_PROMPTS: Final = ("question", "prompt", "message", "description")
_LONGEST_REQUEST: Final = 500


class StoredInterrupt(msgspec.Struct, frozen=True, kw_only=True):
    """A stored interrupt: `payload` is what `hf.approvals` reads, with the prompt."""

    wait_id: str
    name: str
    prompt: str
    payload: dict[str, Any]


class TaskInterrupts(msgspec.Struct, frozen=True):
    """What the writes of a task say: what it asks now, and what it was answered before.

    `answers` is None for a task that failed: it has not used its answers up.
    """

    asked: list[StoredInterrupt]
    answers: list[Any] | None


class SettledQuestions(msgspec.Struct, frozen=True):
    """Questions that are open no more: answered elsewhere, with the value, or not asked now."""

    answered: dict[str, Any]
    withdrawn: list[str]


def wait_id_of(thread_id: str, interrupt: Any) -> str:
    """The id of the wait that an interrupt of a thread is.

    What is asked is part of it: an answer never counts for another question under the same id.
    """
    asked = codec.canonical_digest(plain(getattr(interrupt, "value", interrupt))).hex()
    return f"lg-{_digest(thread_id, str(getattr(interrupt, 'id', '')), asked)[:32]}"


def questions_of(
    thread_id: str,
    ns: str,
    checkpoint_id: str,
    task_id: str,
    value: object,
    *,
    answered: int = 0,
) -> list[StoredInterrupt]:
    """The questions in the value of a write on `__interrupt__`.

    `answered` is how many answers the task had before.
    """
    name = f"{_task(ns, checkpoint_id, task_id)}{answered}"
    return [_question(thread_id, name, interrupt) for interrupt in _interrupts(value)]


def numbers_about(waits: Iterable[Wait], effect_id: str) -> set[int]:
    """By how many answers a question about this effect was preceded in its task, each time."""
    about = [wait.name for wait in waits if wait.name.startswith(_PREFIX)]
    return {int(name.split(":")[3]) for name in about if name.endswith(f":{effect_id}")}


def taken_from(
    thread_id: str,
    ns: str,
    checkpoint_id: str,
    task_id: str,
    writes: Sequence[tuple[str, Any]],
) -> TaskInterrupts:
    """Return what the writes of one task mean for its questions."""
    by_channel = dict(writes)
    resumed = by_channel.get(RESUME, [])
    answers = list(cast("list[Any]", resumed)) if isinstance(resumed, list) else [resumed]
    asked: list[StoredInterrupt] = []
    if INTERRUPT in by_channel:
        value = by_channel[INTERRUPT]
        asked = questions_of(thread_id, ns, checkpoint_id, task_id, value, answered=len(answers))
    return TaskInterrupts(asked, None if ERROR in by_channel else answers)


def settled_by_task(
    waits: Iterable[Wait], ns: str, checkpoint_id: str, task_id: str, taken: TaskInterrupts
) -> SettledQuestions:
    """The open questions of a task that its writes settle. `waits` are those of the run.

    A task asks one after another: its n-th answer is for what it asked when it had n before.
    """
    settled = SettledQuestions({}, [])
    if taken.answers is None:
        return settled
    task = _task(ns, checkpoint_id, task_id)
    again = {question.wait_id for question in taken.asked}
    for wait in waits:
        if not (is_open(wait) and wait.name.startswith(task)) or wait.wait_id in again:
            continue
        number = int(wait.name.removeprefix(task).partition(":")[0])
        if number < len(taken.answers):
            settled.answered[wait.wait_id] = taken.answers[number]
        else:
            settled.withdrawn.append(wait.wait_id)
    return settled


def withdrawn_by_checkpoint(
    waits: Iterable[Wait], ns: str, parent_id: str, source: str
) -> list[str]:
    """The open questions that nobody waits for after a checkpoint, by the one it continues.

    The step that asked them is over. New input to the whole graph leaves all of them behind.
    """
    is_new_turn = source == "input" and not ns
    place = _place(ns, parent_id)
    return [
        wait.wait_id
        for wait in waits
        if is_open(wait) and (is_new_turn or wait.name.startswith(place))
    ]


def _place(ns: str, checkpoint_id: str) -> str:
    return f"{_PREFIX}{_digest(ns, checkpoint_id)[:32]}:"


def _task(ns: str, checkpoint_id: str, task_id: str) -> str:
    return f"{_place(ns, checkpoint_id)}{_digest(task_id)[:32]}:"


def is_open(wait: Wait) -> bool:
    """Whether a wait is a question of a graph that has no answer yet."""
    return wait.status is WaitStatus.OPEN and wait.name.startswith(_PREFIX)


def _digest(*material: str) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(material)).hexdigest()


def _interrupts(value: object) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]


def _question(thread_id: str, name: str, interrupt: Any) -> StoredInterrupt:
    value = plain(getattr(interrupt, "value", interrupt))
    prompt = prompt_of(value)
    effect_id = effect_in(value)
    return StoredInterrupt(
        wait_id=wait_id_of(thread_id, interrupt),
        name=f"{name}:{effect_id}" if effect_id else name,
        prompt=prompt,
        payload={
            "place": b"",
            "prompt": prompt,
            "schema": _schema(getattr(interrupt, "response_schema", None)),
            "args": value,
        },
    )


def effect_in(value: object) -> str:
    """The effect that a question is about; "" if it is about something else."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if fields.get("kind") != UNKNOWN_EFFECT:
        return ""
    effect_id = str(fields.get("effect", ""))
    return effect_id if _EFFECT_ID.fullmatch(effect_id) else ""


def _schema(given: object) -> dict[str, Any]:
    """The schema of an answer; one that cannot be used refuses nothing."""
    if not isinstance(given, Mapping):
        return ANY_JSON
    try:
        found = questions.schema_of(plain(cast("Mapping[str, Any]", given)))
    except MisuseError:
        return ANY_JSON
    return ANY_JSON if found is None else found


def prompt_of(value: object) -> str:
    """The text that a person is asked, from whatever the graph gave to `interrupt()`."""
    return _text(_prompt(value))[: names.MAX_TEXT] or "The graph waits for an answer."


def _prompt(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if isinstance(requests := fields.get("action_requests"), list):
            return _requests(cast("list[Any]", requests))
        for key in _PROMPTS:
            if isinstance(text := fields.get(key), str) and text:
                return text
    return msgspec.json.encode(value).decode()


def _requests(requests: list[Any]) -> str:
    """The calls that LangChain's own human-in-the-loop middleware asks about."""
    calls = [cast("dict[str, Any]", request) for request in requests if isinstance(request, dict)]
    return "; ".join(
        f"May {call.get('name')}({_shown(call.get('args', call.get('arguments')))}) be called?"
        for call in calls
    )


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_REQUEST else f"{text[:_LONGEST_REQUEST]}…"


def plain(value: object) -> Any:
    """Return a value as JSON for people to read; it is never converted back."""
    try:
        return msgspec.json.decode(msgspec.json.encode(codec.decode(codec.encode(value))))
    except (UnsupportedValue, TypeError, ValueError):
        return _rebuilt(value, depth=0)


def _rebuilt(value: object, *, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return _scalar(value)
    if depth >= 20:
        return _text(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_text(key): _rebuilt(item, depth=depth + 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_rebuilt(item, depth=depth + 1) for item in cast("Iterable[Any]", value)]
    if callable(dump := getattr(value, "model_dump", None)):
        return _rebuilt(dump(), depth=depth + 1)
    return _text(value)


def _scalar(value: bool | int | float | str | None) -> Any:
    """Return a value unchanged if a journal and JSON both accept it; others as a text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(codec.decode(codec.encode(value))))
    except (UnsupportedValue, TypeError, ValueError):
        return _text(value)


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # too deep, or a type whose text cannot be made
        text = f"({type(value).__name__})"
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
