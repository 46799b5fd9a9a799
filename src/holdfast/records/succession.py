"""Handing over and recovering tasks by their checkpoints, for the service of seed 003."""

from collections.abc import Sequence

import msgspec

from holdfast import clock, ids
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.handoff.continuation import continuation_of
from holdfast.engine.context import Context
from holdfast.engine.handoffs import Handoffs
from holdfast.engine.maintenance import gaps
from holdfast.engine.maintenance.recoveries import Recoveries, check_accepted
from holdfast.engine.reading import proved_checkpoints
from holdfast.errors import ConflictError, IllegalMove, JournalCorrupted
from holdfast.kernel import handoffs
from holdfast.kernel.handoffs import HandoffProgress, Offer, Selection, Verification
from holdfast.kernel.journal import Draft
from holdfast.kernel.records import Phase
from holdfast.records.owners import Owners
from holdfast.records.record_loader import RecordLoader
from holdfast.records.record_writer import RecordWriter
from holdfast.records.stored import HandoffResult, RecoveryResult, StoredRecord
from holdfast.stores.reads import FoundRecord, RunAtHead

_NO_LIMIT = 2**62


class Succession:
    """Hands over and recovers tasks."""

    def __init__(
        self, context: Context, reading: RecordLoader, writing: RecordWriter, owners: Owners
    ) -> None:
        self._context = context
        self._reading = reading
        self._writing = writing
        self._owners = owners
        self._handoffs = Handoffs(context)
        self._recoveries = Recoveries(context)

    async def initiate(
        self, found: FoundRecord, *, to: str, seconds: float, note: str, by: str
    ) -> HandoffResult:
        """Hand over a task from its newest checkpoint; for an agent's run, ask the agent to."""
        task_id = found.checkpoint.run_id
        run = await self._context.store.runs.get(task_id)
        if run is not None and run.agent:
            await self._handoffs.request(task_id, to=to, by=by, note=note)
            return _result(found, "requested", from_agent=run.agent, to_agent=to)
        handoff_id = str(ids.uuid7())
        made: list[HandoffResult] = []

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            present = await self._newest(found)
            drafts, record = await self._writing.finalizing(
                present, head, Phase.HANDOFF, _prompt_of, by=by
            )
            until = now + clock.seconds(seconds)
            offer = Offer(
                handoff_id=handoff_id,
                checkpoint_id=present.checkpoint.checkpoint_id,
                version=present.checkpoint.version,
                to=to,
                trigger="explicit",
                until=until,
                note=note,
            )
            result = _result(
                present,
                "given",
                from_agent=record.metadata.agent_id,
                to_agent=to,
                handoff_id=handoff_id,
                continuation_prompt=record.recovery.continuation_prompt,
                until=until,
            )
            made[:] = [result]
            return [*drafts, *handoffs.give(head.run, offer)]

        await self._writing.decide(task_id, plan, by=by)
        return made[0]

    async def acknowledge(self, found: FoundRecord, new_agent_id: str) -> None:
        """Record that an agent continues from the checkpoint of a handoff; once per handoff."""
        task_id, version = found.checkpoint.run_id, found.checkpoint.version
        await self._owners.expire_handoff(task_id)
        known = [each for each in await self._handoffs.of_run(task_id) if each.version == version]
        if not known:
            raise IllegalMove(
                f"checkpoint {found.checkpoint.checkpoint_id} was not handed over; "
                "initiate_handoff() does that"
            )
        handoff = known[-1]
        if handoff.status in ("given", "assigned"):
            findings = await self._findings(found, new_agent_id)
            await self._handoffs.acknowledge(
                task_id, handoff.handoff_id, new_agent_id, findings=findings
            )
            return
        if handoff.status == "acknowledged" and new_agent_id in (handoff.to, handoff.worker):
            return
        is_over = handoff.status == "reverted"
        who = (handoff.giver or "its giver") if is_over else (handoff.to or handoff.worker)
        raise ConflictError(
            f"the handoff of checkpoint {found.checkpoint.checkpoint_id} was {handoff.status}: "
            f"{who} goes on"
        )

    async def _findings(self, found: FoundRecord, new_agent_id: str) -> HandoffProgress:
        """Verify the checkpoint for the acknowledging agent. Raises if it is not as stored."""
        received_at = self._context.now()
        record = await self._reading.one(found)
        checkpoint = found.checkpoint
        digest = record.compliance.hash
        return HandoffProgress(
            received_at=received_at,
            verified=Verification(checkpoint.checkpoint_id, checkpoint.version, digest),
            selected=Selection(new_agent_id, "it acknowledged the handoff of a task outside"),
        )

    async def recovery_point(self, task_id: str) -> StoredRecord | None:
        """Return the newest checkpoint that a task can resume from, or None."""
        await gaps.check_whole(self._context, task_id)
        point = await self._recoveries.find_point(task_id)
        if point.checkpoint_id is None or point.is_over:
            return None
        if point.why_not:
            raise JournalCorrupted(
                f"task {task_id} has no checkpoint that anybody may go on from: {point.why_not}; "
                f"a person decides, `holdfast runs recover {task_id} --plan` shows what there is"
            )
        await check_accepted(self._context, point)
        found = await self._context.store.records.by_id(point.checkpoint_id)
        if found is None:
            return None
        record = await self._reading.one(found)
        return msgspec.structs.replace(record, skipped=tuple(map(str, point.skipped)))

    async def recover(self, found: FoundRecord, *, by: str, note: str) -> RecoveryResult:
        """Resume a task from a checkpoint."""
        checkpoint = found.checkpoint
        run = await self._recoveries.execute(
            checkpoint.run_id, version=checkpoint.version, by=by, note=note
        )
        newest = await self._context.store.checkpoints.page(run.run_id, before=_NO_LIMIT, limit=1)
        return RecoveryResult(
            task_id=run.run_id,
            checkpoint_id=str(checkpoint.checkpoint_id),
            status=run.status.value,
            version=newest[0].version if newest else 0,
        )

    async def _newest(self, found: FoundRecord) -> FoundRecord:
        task_id = found.checkpoint.run_id
        (newest,) = await self._context.store.records.page(task_id, before=_NO_LIMIT, limit=1)
        await proved_checkpoints.check_newest(self._context, task_id, newest.checkpoint)
        if newest.checkpoint.version != found.checkpoint.version:
            raise ConflictError(
                f"checkpoint {found.checkpoint.checkpoint_id} is not the latest of task {task_id}: "
                f"{newest.checkpoint.checkpoint_id} is; hand over from that one"
            )
        return newest


def _prompt_of(record: StoredRecord) -> str:
    """Return the continuation prompt for a task that was worked on outside."""
    policy = HandoffPolicy()
    whole = continuation_of(record, task=record.metadata.task_id, version=record.run_version)
    return whole.fitted(policy.prompt_limit(), policy.tokens_of).text


def _result(
    found: FoundRecord,
    status: str,
    *,
    from_agent: str,
    to_agent: str,
    handoff_id: str = "",
    continuation_prompt: str = "",
    until: int = 0,
) -> HandoffResult:
    return HandoffResult(
        task_id=found.checkpoint.run_id,
        checkpoint_id=str(found.checkpoint.checkpoint_id),
        status=status,
        handoff_id=handoff_id,
        from_agent=from_agent,
        to_agent=to_agent,
        continuation_prompt=continuation_prompt,
        until=clock.to_datetime(until).isoformat() if until else "",
    )
