"""The verbs of workflows: start one, see where it stands, answer what it asks, go on."""

import asyncio
import secrets as random_secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.conversion import shapes
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import APPROVAL
from holdfast.agents.work.advancing import advance
from holdfast.agents.work.approvals import Approvals, Asked, is_said, verdict_of
from holdfast.agents.work.work import Work
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.reading import turns
from holdfast.engine.runs import Runs
from holdfast.engine.waits import Waits
from holdfast.errors import (
    AlreadyAnswered,
    AnswerRefused,
    BodyErased,
    MisuseError,
    RunNotFound,
    WaitNotFound,
)
from holdfast.kernel import indexes, journal
from holdfast.kernel.checkpoints import Step
from holdfast.kernel.runs import Run, Status
from holdfast.kernel.waits import WaitStatus
from holdfast.workflows.checks import library
from holdfast.workflows.definitions import definition, inputs
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.definitions.waves import waves_of
from holdfast.workflows.execution.asking import meant, questions_of
from holdfast.workflows.execution.events import Observer
from holdfast.workflows.execution.expiring import MAX_AGE_HOURS, remove_expired
from holdfast.workflows.execution.kit import AGENT, Kit
from holdfast.workflows.execution.outcome import Outcome, Waiting
from holdfast.workflows.execution.state import ENDED, Ended, Result, Start, block_of, part_of


class Workflows:
    """Workflows in a store, whoever works on them."""

    def __init__(self, context: Context, work: Work, runs: Runs, kit: Kit) -> None:
        self._context = context
        self._work = work
        self._runs = runs
        self._waits = Waits(context)
        self._approvals = Approvals(context)
        self._checkpoints = Checkpoints(context)
        self.kit = kit

    async def start(
        self,
        workflow: Workflow | str | Path,
        given: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        owner: str = "",
    ) -> Outcome:
        """Start a workflow, or the file of one, and leave it to the workers.

        Raises WorkflowInvalid with every problem of it, and of all that it may come to. Tools are
        those of the workers: whether they are there is seen when they are called.

        The same `run_id` with the same definition and inputs is the run that is there, unless it
        is another's: `owner` is whose it is, and all that it begins.
        """
        run = await self._create(workflow, given or {}, run_id, owner=owner, tools=None)
        return await self.status(run.run_id)

    async def run(
        self,
        workflow: Workflow | str | Path,
        given: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        owner: str = "",
        timeout: float | None = None,
        observe: Observer | None = None,
    ) -> Outcome:
        """Start a workflow, or go on with it, until it has ended or only a person can help.

        `observe` is told what happens meanwhile, as far as it happens in this process.
        """
        run = await self._create(workflow, given or {}, run_id, owner=owner, tools=self.kit.tools)
        return await self._advance(run.run_id, timeout, observe)

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        by: str = "",
        timeout: float | None = None,
        observe: Observer | None = None,
    ) -> Outcome:
        """Answer what blocks ask, by their paths, and go on until it ends or asks again.

        The same answer again changes nothing. If one of the answers does not fit its question none
        is given: raises AnswerRefused, and AlreadyAnswered if another one was given before.
        """
        await self.answer(run_id, answers or {}, by=by)
        return await self._advance(run_id, timeout, observe)

    async def answer(self, run_id: str, answers: Mapping[str, Any], *, by: str = "") -> None:
        """Answer what blocks ask, by their paths, and leave the rest to the workers."""
        await self._workflow_run(run_id)
        if answers:
            await self._waits.expire_due()
        asked = [(await self.asked(run_id, path), value) for path, value in answers.items()]
        refused = [
            f"{path}: {why}"
            for path, (question, value) in zip(answers, asked, strict=True)
            if (why := _why_refused(question, value))
        ]
        if refused:
            raise AnswerRefused("; ".join(refused))
        # Those that are settled first: a conflict is told before any other answer is given.
        for question, value in sorted(asked, key=lambda each: each[0].status is WaitStatus.OPEN):
            await self._give(question, value, by or self._context.worker)

    async def asked(self, run_id: str, path: str) -> Asked:
        """The question of a block: the one that is open, or else the last one it asked.

        Raises WaitNotFound, which names those that ask, and AnswerRefused if several that are open
        have the name.
        """
        found = await questions_of(self._runs, self._waits, run_id)
        named = [each for each in found if each.is_called(path)]
        if not named:
            known = sorted({each.name for each in found if each.is_open})
            listed = f"these ask: {', '.join(known)}" if known else "no block asks anything"
            raise WaitNotFound(f"no block {path!r} of run {run_id} asks anything; {listed}")
        asked = meant(named)
        shown = await self._approvals.get(asked.wait.wait_id)
        return msgspec.structs.replace(shown, name=asked.name)

    async def status(self, run_id: str) -> Outcome:
        """Where a workflow stands: what it waits for, and what has become of its blocks."""
        run = await self._workflow_run(run_id)
        start = await self._start_in(run)
        workflow = await self._definition_in(start)
        state = await self._checkpoints.load(run_id)
        blocks = await self._ended_lately(run_id, start) | {
            name: msgspec.convert(part, Result)
            for key, part in state.parts.items()
            if (name := block_of(key)) is not None
        }
        waves = waves_of(workflow.blocks)
        has_ended = run.status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
        is_told = run.status in (Status.FAILED, Status.BLOCKED)
        return Outcome(
            run_id=run_id,
            workflow=start.workflow,
            status=run.status.value,
            waiting=[] if has_ended else await self._waiting(run_id),
            outputs=await self._runs.result(run_id) if run.status is Status.COMPLETED else None,
            error=await self._error(run_id) if is_told else "",
            blocks={b.id: blocks[b.id] for b in workflow.blocks if b.id in blocks},
            waves=waves,
            completed_waves=sum(all(part_of(n) in state.parts for n in wave) for wave in waves),
        )

    async def _error(self, run_id: str) -> str:
        told = await turns.last_note(self._context, run_id)
        return told.removeprefix("WorkflowFailed: ")

    async def _ended_lately(self, run_id: str, start: Start) -> dict[str, Result]:
        """Blocks that have ended in the present wave: their outputs are not stored yet."""
        found: dict[str, Result] = {}
        before = f"{ENDED}{start.path}/" if start.path else ENDED
        for entry in await turns.entries_since_checkpoint(self._context, run_id):
            facts = indexes.facts_of(entry)
            if isinstance(facts, Step) and facts.name.startswith(before):
                told = msgspec.convert(codec.decode(journal.body_of(entry)), Ended)
                result = Result(status=told.status, seconds=told.seconds)
                found[facts.name.removeprefix(before)] = result
        return found

    async def definition(self, run_id: str) -> Workflow:
        """The definition that a run was started with, whatever became of its file."""
        return await self._definition_in(await self._start_of(run_id))

    async def _definition_in(self, start: Start) -> Workflow:
        return definition.of_plain((await self._root_of(start)).library[start.workflow])

    async def _root_of(self, start: Start) -> Start:
        """How the first run of a tree was started."""
        return await self._start_of(start.root) if start.root else start

    async def list(
        self,
        workflow: str | None = None,
        *,
        status: Status | str | None = None,
        nested: bool = False,
        limit: int = 100,
        before: Run | None = None,
    ) -> "list[Run]":
        """Runs of workflows, of one by its name or of all, newest first.

        Those that are below others only if they are wanted: `nested`.
        """
        names.check_count(limit, what="limit")
        found: list[Run] = []
        while len(found) < limit:
            page = await self._runs.list(
                agent=AGENT, subject=workflow, status=status, limit=max(limit, 100), before=before
            )
            found += [run for run in page if nested or not run.parent_id]
            if len(page) < max(limit, 100):
                break
            before = page[-1]
        return found[:limit]

    async def cancel(self, run_id: str, *, by: str = "", note: str = "") -> None:
        """End a workflow and all that it waits for.

        One that has ended stays as it is: raises RunEnded.
        """
        await self._workflow_run(run_id)
        await self._runs.cancel(run_id, by=by, note=note)

    def work_here(self) -> None:
        """Let workers of this process that begin from now on work on workflows, with this kit."""
        self._work.agents.add(self.kit.agent)

    async def cleanup_expired(self, max_age_hours: float = MAX_AGE_HOURS) -> int:
        """Erase what workflows held that ended longer ago than this; how many there were.

        One that waits, is blocked or goes on is never touched, however old it is.
        """
        return await remove_expired(self._context, max_age_hours)

    async def _create(
        self,
        source: Workflow | str | Path,
        given: Mapping[str, Any],
        run_id: str | None,
        *,
        owner: str,
        tools: Collection[str] | None,
    ) -> Run:
        examined = await asyncio.to_thread(self._examined, source, tools)
        found = examined.checked()
        workflow = found[examined.name]
        complete = inputs.complete(workflow, given)
        stored = {name: definition.plain(each) for name, each in found.items()}
        known = await self._known(run_id)
        start = Start(
            workflow=workflow.name,
            seal=random_secrets.token_hex(8) if known is None else known.seal,
            inputs=complete,
            library=stored,
            folder=str(self.kit.folder.root.resolve()) if known is None else known.folder,
        )
        return await self._work.create(
            self.kit.agent,
            {"start": shapes.plain(start, what="inputs")},
            run_id,
            subject=workflow.name,
            owner=owner,
        )

    async def _known(self, run_id: str | None) -> Start | None:
        """How the run was started that is there, if there is one."""
        if run_id is None:
            return None
        try:
            return await self._start_of(run_id)
        except (RunNotFound, MisuseError):
            return None

    def _examined(
        self, source: Workflow | str | Path, tools: Collection[str] | None
    ) -> library.Found:
        return library.examine(source, self.kit.definitions, types=self.kit.types, tools=tools)

    async def _advance(
        self, run_id: str, timeout: float | None, observe: Observer | None
    ) -> Outcome:
        await self._workflow_run(run_id)
        if lacks := self.kit.lacks(await self._root_of(await self._start_of(run_id))):
            return msgspec.structs.replace(await self.status(run_id), lacks=lacks)
        self._work.agents.add(self.kit.agent)
        await self._waits.expire_due()
        stop = None if observe is None else self.kit.observe(self._context, run_id, observe)
        try:
            await advance(
                self._work,
                self._runs,
                run_id,
                timeout=timeout,
                until=self._approvals.needs_a_person,
            )
        finally:
            if stop is not None:
                stop()
        return await self.status(run_id)

    async def _waiting(self, run_id: str) -> "list[Waiting]":
        listed = await self._approvals.list(run_id=run_id, limit=10_000)
        known = {asked.wait_id: asked for asked in listed}
        found = await questions_of(self._runs, self._waits, run_id, ended=False)
        found.sort(key=lambda each: (each.wait.opened_at, each.wait.wait_id))
        # Those of runs that are blocked are not listed with the others.
        return [
            _waiting_of(known.get(at) or await self._approvals.get(at), each.name)
            for each in found
            if each.is_open and (at := each.wait.wait_id)
        ]

    async def _give(self, asked: Asked, value: Any, by: str) -> None:
        """Answer a question, unless the same was answered before."""
        if is_said(asked, value):
            return
        try:
            if asked.kind != APPROVAL:
                await self._approvals.answer(asked.wait_id, value, by=by)
            elif verdict_of(value):
                await self._approvals.approve(asked.wait_id, by=by)
            else:
                await self._approvals.reject(asked.wait_id, by=by)
        except AlreadyAnswered:
            if not is_said(await self._approvals.get(asked.wait_id), value):
                raise

    async def _workflow_run(self, run_id: str) -> Run:
        run = await self._runs.get(run_id)
        if run.agent != AGENT:
            raise RunNotFound(f"run {run_id!r} is no workflow, but a run of agent {run.agent!r}")
        return run

    async def _start_of(self, run_id: str) -> Start:
        return await self._start_in(await self._workflow_run(run_id))

    async def _start_in(self, run: Run) -> Start:
        run_id = run.run_id
        try:
            given = await self._runs.input(run_id)
        except BodyErased as error:
            raise BodyErased(
                f"workflow {run_id} has ended and expired; what it held was erased, its record is "
                "kept"
            ) from error
        try:
            return msgspec.convert(given["start"], Start)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise MisuseError(f"run {run_id!r} was not started as a workflow: {error}") from error


def _why_refused(asked: Asked, value: Any) -> str:
    """Why a value is no verdict, or no answer to a question that is open; empty if it is one."""
    if asked.kind == APPROVAL:
        return (
            ""
            if verdict_of(value) is not None
            else f"{asked.prompt} Say yes or no, not {value!r:.80}"
        )
    if asked.status is not WaitStatus.OPEN:
        return ""
    try:
        questions.check_answer(value, schema=asked.schema, choices=asked.choices)
    except AnswerRefused as refused:
        return str(refused)
    return ""


def _waiting_of(asked: Asked, name: str) -> Waiting:
    return Waiting(
        block=name,
        prompt=asked.prompt,
        schema=asked.schema,
        choices=asked.choices,
        deadline=clock.to_datetime(asked.deadline) if asked.deadline else None,
        wait_id=asked.wait_id,
        run_id=asked.run_id,
        kind=asked.kind,
        problem=asked.problem,
    )
