"""The record that a context leaves: how far the work is, how to undo it, and how to continue."""

import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.questions import FOR_PEOPLE
from holdfast.agents.definitions.session_input import MESSAGE, is_session
from holdfast.agents.definitions.tokens import fitting
from holdfast.agents.exits.containment import exits_as_errors
from holdfast.agents.handoff.continuation import Continuation, Pending, budget_left, continuation_of
from holdfast.agents.handoff.rollback import consequences, rollback_instructions
from holdfast.agents.run import Run, items_of, turn_of
from holdfast.agents.turn.progress import StoredProgress
from holdfast.clock import to_datetime
from holdfast.engine.reading import turns
from holdfast.engine.reading.journal import body_of
from holdfast.engine.reading.proved_budgets import accounts_over
from holdfast.engine.reading.versions import load_entries
from holdfast.engine.signals import Signals
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import SETTLED, Effect, EffectStatus
from holdfast.kernel.record_proofs import with_hash
from holdfast.kernel.records import Metadata, Phase, Record, Recovery
from holdfast.kernel.waits import WaitStatus
from holdfast.telemetry import log

_MAX_WHY: Final = 1000
_MAX_CALLS: Final = 50
_MAX_SHOWN: Final = 200


class HandoffRecorder:
    """What one context leaves behind, put together from its run's state and record."""

    def __init__(self, run: Run, policy: HandoffPolicy, *, why: str) -> None:
        self._run = run
        self._turn = turn_of(run)
        self._context = self._turn.context
        self._held = self._turn.held
        self._why = why[:_MAX_WHY]
        self._policy = policy

    async def record(self, checkpoint_id: UUID) -> Record:
        """Return the record of the last checkpoint with its continuation prompt and its hash."""
        run, work = self._held.run, self._turn.progress.state
        parent = await self._context.store.checkpoints.get(run.run_id, self._held.version)
        effects = await self._context.store.effects.of_run(run.run_id)
        record = Record(
            metadata=Metadata(
                checkpoint_id=str(checkpoint_id),
                task_id=run.run_id,
                agent_id=run.agent,
                agent_type=self._policy.agent_type,
                iteration=run.contexts,
                timestamp=to_datetime(self._context.now()).isoformat(),
            ),
            execution_state=work.execution_state,
            context_summary=work.context_summary,
            metrics=work.metrics,
            recovery=Recovery(
                last_successful_state=str(parent.checkpoint_id) if parent else "",
                rollback_instructions=await self._rollback(effects, parent),
            ),
        )
        prompt = await self._prompt(with_hash(record), effects)
        return with_hash(
            msgspec.structs.replace(
                record,
                execution_state=msgspec.structs.replace(
                    record.execution_state, phase=Phase.HANDOFF
                ),
                recovery=msgspec.structs.replace(record.recovery, continuation_prompt=prompt.text),
            )
        )

    async def _prompt(self, record: Record, effects: Sequence[Effect]) -> Continuation:
        room = self._policy.prompt_limit(self._turn.context_usage.fixed)
        whole = continuation_of(
            record,
            task=self._shortened(await self._task(), room // 4),
            why=self._why,
            version=self._held.version + 1,
            effects=[effect for effect in effects if effect.status not in SETTLED],
            calls=await self._calls(effects),
            pending=await self._pending(),
            budget=await self._budget(),
            risks=self._turn.progress.state.risks,
            summary=await self._summary(record),
        )
        return whole.fitted(room, self._policy.tokens_of)

    def _shortened(self, task: str, tokens: int) -> str:
        """Return the beginning of a long task: the receiver is given all of it as its input."""
        length = fitting(task, tokens, self._policy.tokens_of)
        return task if length == len(task) else f"{task[:length]}… (cut; your input has all of it)"

    async def _task(self) -> str:
        """Return what the run is for; of a session, the message that it answers."""
        run_id = self._held.run_id
        given = await turns.input_of(self._context, run_id)
        if is_session(given):
            message = await self._held.inbox.next(MESSAGE)
            if message is None:
                return ""
            given = await Signals(self._context).value(run_id, message.signal_id)
        return _shown(given)

    async def _calls(self, effects: Sequence[Effect]) -> list[str]:
        """Return the newest calls that have happened, each in a line."""
        made = [effect for effect in effects if effect.status is EffectStatus.COMPLETED][
            -_MAX_CALLS:
        ]
        seqs = {seq for effect in made for seq in (effect.issued_seq, effect.result_seq)}
        entries = await load_entries(self._context, self._held.run_id, sorted(seqs))
        bodies = {entry.seq: body_of(entry) for entry in entries}
        return [
            f"{effect.tool} {_short(bodies[effect.issued_seq])}: "
            f"{_short(bodies[effect.result_seq])}"
            for effect in made
        ]

    async def _summary(self, record: Record) -> str:
        """Return a model's summary of the work, on record as any reply; empty if it fails."""
        if self._policy.summarize is None:
            return ""
        talk = [item for name in self._policy.context_parts for item in items_of(self._run, name)]
        try:
            with exits_as_errors():
                return str(await self._run.model(self._policy.summarize, record, talk))
        except Exception as error:
            log.warning("run %s is handed over without a summary: %r", self._held.run_id, error)
            return ""

    async def _rollback(self, effects: Sequence[Effect], parent: Checkpoint | None) -> str:
        """Return how to undo what was done since the parent, which is the state to go back to."""
        after = parent.seq if parent else 0
        since = [effect for effect in effects if effect.issued_seq > after]
        seqs = {seq for e in since for seq in (e.issued_seq, e.result_seq) if seq}
        entries = await load_entries(self._context, self._held.run_id, sorted(seqs))
        return rollback_instructions(consequences(entries, self._turn.rules.tools))

    async def _pending(self) -> list[Pending]:
        found = await self._context.store.waits.of_run(self._held.run_id)
        asked = [w for w in found if w.kind in FOR_PEOPLE and w.status is WaitStatus.OPEN]
        return [Pending(wait.wait_id, f"{wait.kind} {wait.name}".strip()) for wait in asked]

    async def _budget(self) -> list[str]:
        accounts = await accounts_over(self._context, self._held.run)
        now = self._context.now()
        return [line for account in accounts for line in budget_left(account, now=now)]


def _short(value: Any) -> str:
    text = _shown(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _shown(given: Any) -> str:
    """Return an input as a person would read it."""
    if isinstance(given, dict) and len(given) == 1:  # pyright: ignore[reportUnknownArgumentType] - plain data
        (given,) = given.values()  # pyright: ignore[reportUnknownVariableType] - plain data
    if isinstance(given, str):
        return given
    return json.dumps(given, ensure_ascii=False, default=str)


def summary_of(work: StoredProgress) -> str:
    """How far the work is, in a line; in numbers, because it is kept in the clear."""
    state = work.execution_state
    counted = (
        ("done", state.completed_items),
        ("open", state.pending_items),
        ("blocked", state.blocked_items),
    )
    return ", ".join([f"{state.phase}", *(f"{len(of)} {what}" for what, of in counted if of)])
