"""The handoff protocol: thirteen steps over the store (seed 003, FR-004).

    giver          1 trigger  2 continuation prompt  3 last checkpoint  4 AGENT_HANDOFF
    orchestrator   5 receives it  6 verifies  7 selects  8, 9 assigns the run to the receiver
    receiver      10 reads  11 acknowledges  12 continues  13 its own checkpoint

Steps 3 and 4 are one commit, and steps 5 to 9 are another. Step 11 and the checkpoint that begins
the fresh context are one commit. After each commit the journal shows which agent owns the run.
"""

from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import codec, faults, ids, names
from holdfast.agents.definitions.agent import Agents
from holdfast.agents.definitions.handoff_policy import Chosen, HandoffPolicy, SuccessorChoice
from holdfast.agents.definitions.handoff_triggers import Trigger
from holdfast.agents.definitions.model_windows import window_of
from holdfast.agents.definitions.session_input import is_session
from holdfast.agents.definitions.versions import PART as VERSIONS
from holdfast.agents.exits.containment import exits_as_errors
from holdfast.agents.handoff.handoff_record import HandoffRecorder, summary_of
from holdfast.agents.run import Run as AgentRun
from holdfast.agents.run import items_of, turn_of
from holdfast.agents.turn.calls import describe, storable_text
from holdfast.agents.turn.context_usage import CONTEXT, WISH
from holdfast.agents.turn.handoff_exit import PART, TAKEN, PreviousContext
from holdfast.agents.turn.progress import PART as WORK
from holdfast.agents.turn.progress import Progress, work_of
from holdfast.agents.turn.turn import Turn
from holdfast.engine.context import Context
from holdfast.engine.handoffs import HandoffReceipt, Handoffs, Offering
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.messages.outbox import NotHere
from holdfast.engine.messages.replies import intact_entry
from holdfast.engine.reading import turns
from holdfast.engine.reading.versions import load_parts
from holdfast.engine.writing.outages import retry_while_unavailable
from holdfast.errors import (
    CheckpointNotFound,
    ContextTooSmall,
    Fenced,
    HoldfastError,
    IntegrityError,
    MisuseError,
    UnsupportedValue,
)
from holdfast.kernel import indexes, record_proofs, record_schema, records, runs
from holdfast.kernel.handoffs import HandoffProgress, Selection, Verification
from holdfast.kernel.journal import Kind
from holdfast.kernel.records import Record
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.travel import FRESH
from holdfast.telemetry import log

_OF_A_CONTEXT: Final = (CONTEXT, WISH, VERSIONS, "holdfast.repeats")
_DEFAULT: Final = HandoffPolicy()


class HandoffProtocol:
    """Hands runs over, chooses the agent that continues, and takes runs over for it."""

    def __init__(self, context: Context, agents: Agents) -> None:
        self._context = context
        self._agents = agents
        self._handoffs = Handoffs(context)

    async def give(self, giver: AgentRun, trigger: Trigger, *, label: str = "") -> None:
        """Do steps 1 to 4 in the process that holds the run, then try steps 5 to 9.

        Steps 3 and 4 are one commit, which ends this context; steps 5 to 9 are another.
        """
        faults.point("handoff.detected")
        turn = turn_of(giver)
        held, usage = turn.held, turn.context_usage
        policy = usage.rules or _DEFAULT
        # The record must include the results of this turn's tool calls.
        await retry_while_unavailable(self._context, held.stage.flush)
        checkpoint_id = ids.uuid7()
        leaving = HandoffRecorder(giver, policy, why=trigger.text)
        record = await retry_while_unavailable(self._context, lambda: leaving.record(checkpoint_id))
        faults.point("handoff.prompted")
        talk = [item for name in policy.context_parts for item in items_of(giver, name)]
        left = PreviousContext(
            giver=held.run.agent,
            trigger=trigger.kind,
            note=trigger.text,
            context_parts=policy.context_parts,
            prompt=record.recovery.continuation_prompt,
            context=held.run.contexts + 1,
        )
        held.set(records.PART, record_schema.fields_of(record))
        held.set(PART, left)
        if held.part(TAKEN):
            held.drop(TAKEN)  # if the handoff is reverted, the giver must not get its own prompt
        offering = Offering(
            checkpoint_id=checkpoint_id,
            trigger=trigger.kind,
            seconds=policy.acknowledge_seconds,
            to=trigger.to,
            note=trigger.text,
            label=label,
            agent_type=policy.agent_type,
            summary=summary_of(turn.progress.state),
            hash=record.compliance.hash,
            tokens=usage.used(talk),
            window=self._window_of(turn),
        )
        given = await held.handoffs.give(offering)
        faults.point("handoff.given")
        log.info("run %s was handed over: %s", held.run_id, trigger.text)
        await self._orchestrate_at_once(held.run_id, given)

    def _window_of(self, turn: Turn) -> int:
        rules = turn.context_usage.rules
        if rules is not None:
            return rules.window_tokens
        return window_of(turn.rules.versions.model, self._context.settings.windows)

    async def _orchestrate_at_once(self, run_id: str, given: HandoffReceipt) -> None:
        """Try steps 5 to 9 here and now. If that fails, the stored message is delivered later."""
        try:
            await self.orchestrate(run_id, given.handoff_id, given.seq)
        except HoldfastError as error:
            log.warning("who goes on with run %s is decided later: %s", run_id, error)

    async def take(self, held: LeasedRun) -> None:
        """Do steps 10 and 11, in the process that holds the run for the receiver."""
        faults.point("handoff.read")
        await self._refuse_unless_fit(held)
        stored = held.part(PART)
        parts = _DEFAULT.context_parts
        if stored is not None:
            parts = msgspec.convert(stored, PreviousContext).context_parts
        for name in (*parts, *_OF_A_CONTEXT):
            if held.part(name) is not None:
                held.drop(name)
        Progress(held).begin_context()
        held.set(TAKEN, True)
        held.set(FRESH, "start")
        await held.handoffs.acknowledge()
        faults.point("handoff.acknowledged")

    async def _refuse_unless_fit(self, held: LeasedRun) -> None:
        """Return the run to its giver and raise Fenced if the receiver cannot take the input.

        The orchestrator's process may not have known the receiver's parameters.
        """
        run = held.run
        try:
            await self._check_takes(run, run.agent)
        except UnsupportedValue as error:
            await self._handoffs.refuse(run.run_id, run.handoff, str(error)[:1000])
            raise Fenced(f"run {run.run_id} was given back to {run.giver!r}: {error}") from error

    async def orchestrate(self, run_id: str, handoff_id: str, seq: int) -> None:
        """Do steps 5 to 9; repeating them is harmless.

        Raises NotHere if no receiver is named and this process does not serve the giver's agent.
        """
        faults.point("handoff.received")
        run = await self._context.store.runs.get(run_id)
        if run is None or run.handoff != handoff_id or run.status is not RunStatus.WAITING:
            return
        given = await self._given(run_id, handoff_id, seq)
        if not given.giver and not given.to:
            return  # a task outside: the agent that continues it acknowledges the handoff
        if run.agent and not given.to and run.agent not in self._agents:
            raise NotHere(f"agent {run.agent!r} is not known here")
        findings = HandoffProgress(received_at=self._context.now())
        try:
            record = await self._verified(run_id, given, findings)
            faults.point("handoff.verified")
            to = await self._select(run, given, record, findings)
            await self._check_takes(run, to)
            self._check_fits(to, record)
            faults.point("handoff.selected")
        except (IntegrityError, CheckpointNotFound, MisuseError) as error:
            log.error("handoff %s of run %s is refused: %s", handoff_id, run_id, error)
            await self._handoffs.refuse(run_id, handoff_id, str(error)[:1000], findings=findings)
            return
        await self._handoffs.assign(run_id, handoff_id, to, findings=findings)
        faults.point("handoff.assigned")

    async def _given(self, run_id: str, handoff_id: str, seq: int) -> runs.AgentHandoff:
        entry = await intact_entry(self._context, run_id, seq)
        facts: Any = indexes.facts_of(entry)
        if entry.kind != Kind.AGENT_HANDOFF or facts.handoff_id != handoff_id:
            raise IntegrityError(f"entry {seq} of run {run_id} does not tell of this handoff")
        return facts

    async def _verified(
        self, run_id: str, given: runs.AgentHandoff, findings: HandoffProgress
    ) -> Record | None:
        """Verify the giver's checkpoint, and return its record; None if it has none.

        Raises CheckpointNotFound or IntegrityError if the checkpoint is not what was stored.
        """
        checkpoint = await self._context.store.checkpoints.get(run_id, given.version)
        if checkpoint is None or checkpoint.checkpoint_id != UUID(str(given.checkpoint_id)):
            raise CheckpointNotFound(f"run {run_id} has no version {given.version} any more")
        parts = await load_parts(self._context, checkpoint)
        fields: Any = parts.decode_part(records.PART)
        seen = Verification(checkpoint.checkpoint_id, checkpoint.version, "")
        findings.verified = seen
        if fields is None:
            return None
        findings.verified = None
        record = record_proofs.verified(codec.encode(fields))
        findings.verified = msgspec.structs.replace(seen, hash=record.compliance.hash)
        # The checkpoint's phase is `handoff`; the receiver continues with the phase of the work.
        work = work_of(parts.decode_part(WORK))
        state = msgspec.structs.replace(record.execution_state, phase=work.execution_state.phase)
        return msgspec.structs.replace(record, execution_state=state)

    async def _select(
        self,
        run: RunRow,
        given: runs.AgentHandoff,
        record: Record | None,
        findings: HandoffProgress,
    ) -> str:
        """Choose the agent that continues, and note the reason in `findings`."""
        if given.to:
            chosen = Chosen(given.to, "it was asked for by name")
        else:
            chosen = await self._chosen_by_policy(run, given, record)
        to = names.check(chosen.to, what="the agent that was chosen to go on")
        findings.selected = Selection(to, chosen.reason, self._types.get(to, ""))
        return to

    async def _chosen_by_policy(
        self, run: RunRow, given: runs.AgentHandoff, record: Record | None
    ) -> Chosen:
        policy = self._agents.get(run.agent).rules.handoff or _DEFAULT
        succession = SuccessorChoice(
            run_id=run.run_id,
            giver=given.giver,
            trigger=given.trigger,
            record=record or Record(),
            agents=tuple(self._agents.names),
            agent_types=self._types,
        )
        try:
            with exits_as_errors():
                return await policy.successor(succession)
        except Exception as error:
            message = f"who goes on could not be chosen: {describe(error)}"
            raise UnsupportedValue(storable_text(message)) from error

    @property
    def _types(self) -> dict[str, str]:
        """The types of the agents that this process knows and that have a policy, by name."""
        rules = {name: self._agents.get(name).rules.handoff for name in self._agents.names}
        return {name: policy.agent_type for name, policy in rules.items() if policy is not None}

    def _check_fits(self, to: str, record: Record | None) -> None:
        """Raise if the prompt leaves the receiver no room.

        Skipped if this process does not know the receiver's policy.
        """
        agent = self._agents.get(to).rules if to in self._agents else None
        if record is None or agent is None or agent.handoff is None:
            return
        rules = agent.handoff.for_model(agent.versions.model, self._context.settings.windows)
        try:
            with exits_as_errors():
                fixed = rules.tokens_of(agent.fixed_text)
                needed = rules.tokens_of(record.recovery.continuation_prompt) + fixed
        except Exception as error:
            message = f"the tokens of its prompt could not be counted: {describe(error)}"
            raise UnsupportedValue(storable_text(message)) from error
        if needed >= rules.limit_tokens:
            raise ContextTooSmall(
                f"the continuation prompt, with the system prompt and tools of agent {to!r}, has "
                f"{needed} tokens, and it may use {rules.limit_tokens}: give it a larger window, "
                "or its giver fewer prompt_tokens"
            )

    async def _check_takes(self, run: RunRow, to: str) -> None:
        """Raise if the receiver cannot take the run's input. Skipped if it is not known here."""
        if to not in self._agents:
            return
        agent = self._agents.get(to)
        given = await turns.input_of(self._context, run.run_id)
        if not is_session(given):
            agent.arguments_of(given, from_other_agent=True)
        elif not agent.takes_one_input:
            raise UnsupportedValue(
                f"run {run.run_id} is a session, and agent {to} cannot be given one message: it "
                f"takes {', '.join(agent.parameters) or 'no input'}"
            )
