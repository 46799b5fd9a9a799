"""Progress: what a run's agent says of its work, for the context that continues it.

It is the part `holdfast.progress` of the state, in the words of checkpoint schema 1.0, and changes
as any value does: in memory at once, on disk with the next checkpoint, and not at all in a run that
never says anything. After a crash the agent says again what its turn had said.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from holdfast import codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.turn.views import Value
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import MisuseError, ValueTooLarge
from holdfast.kernel.records import (
    ContextSummary,
    Decision,
    ExecutionState,
    Item,
    Metrics,
    Phase,
    TestsStatus,
)

PART: Final = "holdfast.progress"
MAX_ENTRIES: Final = 500
"""How many items, decisions, files … there may be of each kind."""
MAX_BYTES: Final = 256 * 1024
"""How large all of it may be: it is stored anew whenever it changes."""

_LISTS: Final = ("completed_items", "pending_items", "blocked_items")
T = TypeVar("T")


class StoredProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored. `finished_phase` is the phase that was finished in this context, if any.

    `risks` are what may go wrong; schema 1.0 has no field for them, the continuation prompt does.
    """

    execution_state: ExecutionState = ExecutionState()
    context_summary: ContextSummary = ContextSummary()
    metrics: Metrics = Metrics()
    finished_phase: str = ""
    risks: tuple[str, ...] = ()


def work_of(stored: object) -> StoredProgress:
    """The progress of a run from the part of its state; empty if the agent reported nothing."""
    return type_conversion.convert(stored or {}, StoredProgress, what=PART)


class Progress:
    """How far the work of a run is, what was decided on the way, and what it took.

    An item is pending, blocked or completed; its id is in one of these lists only.
    """

    def __init__(self, held: LeasedRun, *, counts: bool = False) -> None:
        """`counts`: count tokens and tools also if the agent says nothing."""
        self.value = Value(held, PART, StoredProgress, StoredProgress())
        self._is_used = counts or held.part(PART) is not None

    @property
    def state(self) -> StoredProgress:
        """All of it, in its current state."""
        return self.value.get()

    @property
    def phase(self) -> Phase:
        return self.state.execution_state.phase

    @property
    def is_used(self) -> bool:
        """Whether tokens and tools are counted in it."""
        return self._is_used

    def complete(self, id: str, text: str = "") -> None:
        """Mark an item as done, whether it was pending, blocked or never named before."""
        self._move(_named(id, text), "completed_items")

    def pend(self, id: str, text: str = "") -> None:
        """Mark an item as pending; one that was blocked or completed is open again."""
        self._move(_named(id, text), "pending_items")

    def block(self, id: str, *, blocker: str, text: str = "") -> None:
        """Mark an item as blocked, with the reason."""
        if not _text(blocker, "the blocker of an item").strip():
            raise MisuseError(f"say what blocks item {id!r}")
        item = _named(id, text)
        self._move(msgspec.structs.replace(item, blocker=blocker), "blocked_items")

    def focus(self, id: str) -> None:
        """Set the item that is worked on: one that is pending or blocked, or "" for none."""
        state = self.state.execution_state
        if id and not any(item.id == id for item in (*state.pending_items, *state.blocked_items)):
            raise MisuseError(f"there is no open item {id!r}; say run.progress.pend({id!r}) first")
        self._set_execution(current_focus=id)

    def decide(self, text: str, reason: str = "") -> None:
        """Add a decision; the same again only changes its reason."""
        decision = Decision(_said(text, "a decision"), _text(reason, "a reason"))
        known = self.state.context_summary.key_decisions
        others = [known_one for known_one in known if known_one.text != text]
        at = next((n for n, known_one in enumerate(known) if known_one.text == text), len(others))
        others.insert(at, decision)
        self._set_summary(key_decisions=_bounded(others, "decisions"))

    def assume(self, text: str) -> None:
        """Add an assumption that was not checked."""
        self._add("assumptions", text)

    def constrain(self, text: str) -> None:
        """Add a constraint to keep to."""
        self._add("constraints", text)

    def depend(self, text: str) -> None:
        """Add an external dependency of the work."""
        self._add("external_dependencies", text)

    def risk(self, text: str) -> None:
        """Add something that may go wrong, for the continuation prompt of the next context."""
        texts = dict.fromkeys([*self.state.risks, _said(text, "a risk")])
        self._set(risks=_bounded(texts, "risks"))

    def files(self, *paths: str) -> None:
        """Add files that were changed."""
        added = [_said(path, "the path of a file") for path in paths]
        known = self.state.metrics.files_modified
        self._set_metrics(files_modified=_bounded(dict.fromkeys([*known, *added]), "files"))

    def tests(
        self,
        *,
        passed: int | None = None,
        failed: int | None = None,
        skipped: int | None = None,
        coverage_percent: float | None = None,
    ) -> None:
        """Report the state of the tests; what is left out stays as it was."""
        counts = {"passed": passed, "failed": failed, "skipped": skipped}
        fields: dict[str, int | float] = {
            name: names.check_count(count, what=f"tests that {name}")
            for name, count in counts.items()
            if count is not None
        }
        if coverage_percent is not None:
            if not isinstance(coverage_percent, int | float) or not 0 <= coverage_percent <= 100:  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
                raise MisuseError(f"coverage_percent is from 0 to 100, not {coverage_percent!r}")
            fields["coverage_percent"] = float(coverage_percent)
        status: TestsStatus = msgspec.structs.replace(self.state.metrics.tests_status, **fields)
        self._set_metrics(tests_status=status)

    def enter_phase(self, phase: Phase | str) -> None:
        """Enter a phase: planning, implementing, testing, reviewing, complete."""
        self._set_execution(phase=_phase(phase))

    def finish_phase(self, next: Phase | str) -> None:
        """Finish the phase and enter `next`: a good place for a fresh context."""
        entered = _phase(next)
        if entered is self.phase:
            raise MisuseError(f"the phase {entered} is not over if {entered} is next")
        finished = self.phase.value
        self._set_execution(phase=entered)
        self._set(finished_phase=finished)

    def count(self, *, tokens: int = 0, tools: int = 0) -> None:
        """Add to the tokens and tools used, if they are counted."""
        if self._is_used and (tokens or tools):
            metrics = self.state.metrics
            self._set_metrics(
                tokens_consumed=metrics.tokens_consumed + tokens,
                tools_invoked=metrics.tools_invoked + tools,
            )

    def begin_context(self) -> None:
        """Begin a fresh context: reset what is counted for each, keep the work."""
        if self.value.get() != StoredProgress():
            self._set(metrics=Metrics(), finished_phase="")

    def _move(self, item: Item, to: str) -> None:
        state = self.state.execution_state
        known = next((i for name in _LISTS for i in getattr(state, name) if i.id == item.id), None)
        if known is not None and not item.text:
            item = msgspec.structs.replace(item, text=known.text)
        changed = {name: _without(getattr(state, name), item.id) for name in _LISTS}
        there: tuple[Item, ...] = getattr(state, to)
        at = next((n for n, i in enumerate(there) if i.id == item.id), len(changed[to]))
        changed[to].insert(at, item)
        is_left = to == "completed_items" and state.current_focus == item.id
        focus = "" if is_left else state.current_focus
        lists = {name: _bounded(found, "items") for name, found in changed.items()}
        self._set_execution(current_focus=focus, **lists)

    def _add(self, field: str, text: str) -> None:
        known: tuple[str, ...] = getattr(self.state.context_summary, field)
        texts = dict.fromkeys([*known, _said(text, f"one of the {field}")])
        self._set_summary(**{field: _bounded(texts, field)})

    def _set_execution(self, **changes: object) -> None:
        self._set(execution_state=msgspec.structs.replace(self.state.execution_state, **changes))

    def _set_summary(self, **changes: object) -> None:
        self._set(context_summary=msgspec.structs.replace(self.state.context_summary, **changes))

    def _set_metrics(self, **changes: object) -> None:
        self._set(metrics=msgspec.structs.replace(self.state.metrics, **changes))

    def _set(self, **changes: object) -> None:
        """Change it; what is refused leaves it as it was."""
        changed: StoredProgress = msgspec.structs.replace(self.state, **changes)
        if changed == self.state:
            return
        size = len(codec.encode(changed, name=PART))
        if size > MAX_BYTES:
            raise ValueTooLarge(
                f"the progress of a run has at most {MAX_BYTES} bytes, and this would make it "
                f"{size}: say it in fewer words, or keep it in a part of your own"
            )
        self.value.set(changed)
        self._is_used = True


def _named(id: str, text: str) -> Item:
    return Item(
        names.check(id, what="the id of an item"),
        text=_text(text, "the text of an item"),
    )


def _said(text: str, what: str) -> str:
    if not _text(text, what).strip():
        raise MisuseError(f"{what} needs a text")
    return text


def _text(text: str, what: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(f"{what} is a text, not {text!r}")
    return names.check_text(text, what=what)


def _phase(phase: Phase | str) -> Phase:
    known = [known for known in Phase if known is not Phase.HANDOFF]
    if phase in known:
        return Phase(phase)
    raise MisuseError(f"a phase is one of {', '.join(known)}, not {phase!r}")


def _without(items: Iterable[Item], id: str) -> list[Item]:
    return [item for item in items if item.id != id]


def _bounded(entries: Iterable[T], what: str) -> tuple[T, ...]:
    bounded = tuple(entries)
    if len(bounded) > MAX_ENTRIES:
        raise ValueTooLarge(f"the progress of a run has at most {MAX_ENTRIES} {what} of a kind")
    return bounded
