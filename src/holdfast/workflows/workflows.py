"""Start workflows, show their status, answer their questions and resume them."""

import asyncio
import secrets as random_secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import APPROVAL
from holdfast.agents.work.approvals import Approvals, Asked, is_said, verdict_of
from holdfast.agents.work.run_advancer import advance
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
    InputDiffers,
    MisuseError,
    RunNotFound,
    WaitNotFound,
)
from holdfast.kernel import indexes, journal
from holdfast.kernel.checkpoints import Step
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import WaitStatus
from holdfast.workflows.checks import library
from holdfast.workflows.definitions import definition, inputs
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.definitions.waves import waves_of
from holdfast.workflows.execution.events import Observer
from holdfast.workflows.execution.expiry import MAX_AGE_HOURS, remove_expired
from holdfast.workflows.execution.kit import AGENT, Kit
from holdfast.workflows.execution.outcome import Outcome, Waiting
from holdfast.workflows.execution.question_names import meant, questions_of
from holdfast.workflows.execution.state import (
    ENDED,
    BlockResult,
    EndedBlock,
    Start,
    block_of,
    part_of,
)


class Workflows:
    """The workflows in a store. Any worker may run them."""

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
        """Start a workflow, given as a definition or a file: store its run for the workers.

        Raises WorkflowInvalid with every problem of it, and of all workflows that it may call.
        The workers have the tools, so a missing tool is found only when a block calls it.

        The same `run_id` with the same definition and inputs returns the existing run, unless it
        has another owner. `owner` owns the run and all that it starts.
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
        """Start or resume a workflow; return when it ends, needs a person or `timeout` is over.

        `observe` receives the events that happen in this process meanwhile.
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
        """Answer blocks' questions, by their paths, and resume until the run ends or asks again.

        Repeating an answer changes nothing. Raises AnswerRefused if an answer does not fit its
        question, and then stores none; AlreadyAnswered if a question has a different answer.
        """
        await self.answer(run_id, answers or {}, by=by)
        return await self._advance(run_id, timeout, observe)

    async def answer(self, run_id: str, answers: Mapping[str, Any], *, by: str = "") -> None:
        """Answer blocks' questions, by their paths, and let the workers resume the run."""
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
        # Settled questions first: a conflict is raised before any new answer is stored.
        for question, value in sorted(asked, key=lambda each: each[0].status is WaitStatus.OPEN):
            await self._give(question, value, by or self._context.worker)

    async def asked(self, run_id: str, path: str) -> Asked:
        """Return the question of a block: the open one, or else the last one it asked.

        Raises WaitNotFound, which lists the blocks that ask, and AnswerRefused if several open
        questions have the name.
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
        """Return the status of a workflow: what it waits for, and the results of its blocks."""
        run = await self._workflow_run(run_id)
        start = await self._start_in(run)
        workflow = await self._definition_in(start)
        state = await self._checkpoints.load(run_id)
        blocks = await self._ended_lately(run_id, start) | {
            name: msgspec.convert(part, BlockResult)
            for key, part in state.parts.items()
            if (name := block_of(key)) is not None
        }
        waves = waves_of(workflow.blocks)
        has_ended = run.status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
        has_error = run.status in (RunStatus.FAILED, RunStatus.BLOCKED)
        return Outcome(
            run_id=run_id,
            workflow=start.workflow,
            status=run.status.value,
            waiting=[] if has_ended else await self._waiting(run_id),
            outputs=await self._runs.result(run_id) if run.status is RunStatus.COMPLETED else None,
            error=await self._error(run_id) if has_error else "",
            blocks={b.id: blocks[b.id] for b in workflow.blocks if b.id in blocks},
            waves=waves,
            completed_waves=sum(all(part_of(n) in state.parts for n in wave) for wave in waves),
        )

    async def _error(self, run_id: str) -> str:
        note = await turns.last_note(self._context, run_id)
        return note.removeprefix("WorkflowFailed: ")

    async def _ended_lately(self, run_id: str, start: Start) -> dict[str, BlockResult]:
        """Return the blocks that ended in the current wave, whose outputs are not stored yet."""
        found: dict[str, BlockResult] = {}
        before = f"{ENDED}{start.path}/" if start.path else ENDED
        for entry in await turns.entries_since_checkpoint(self._context, run_id):
            facts = indexes.facts_of(entry)
            if isinstance(facts, Step) and facts.name.startswith(before):
                ended = msgspec.convert(codec.decode(journal.body_of(entry)), EndedBlock)
                result = BlockResult(status=ended.status, seconds=ended.seconds)
                found[facts.name.removeprefix(before)] = result
        return found

    async def definition(self, run_id: str) -> Workflow:
        """Return the definition a run was started with, even if its file changed or is gone."""
        return await self._definition_in(await self._start_of(run_id))

    async def _definition_in(self, start: Start) -> Workflow:
        return definition.of_plain((await self._root_of(start)).library[start.workflow])

    async def _root_of(self, start: Start) -> Start:
        """Return the `Start` of the first run in a tree."""
        return await self._start_of(start.root) if start.root else start

    async def list(
        self,
        workflow: str | None = None,
        *,
        status: RunStatus | str | None = None,
        nested: bool = False,
        limit: int = 100,
        before: RunRow | None = None,
    ) -> "list[RunRow]":
        """Return the runs of one workflow, by its name, or of all, newest first.

        Runs below others are included only with `nested`.
        """
        names.check_count(limit, what="limit")
        found: list[RunRow] = []
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

        Raises RunEnded, and changes nothing, if it has ended.
        """
        await self._workflow_run(run_id)
        await self._runs.cancel(run_id, by=by, note=note)

    def work_here(self) -> None:
        """Let workers created later in this process run workflows, with this kit."""
        self._work.agents.add(self.kit.agent)

    async def cleanup_expired(self, max_age_hours: float = MAX_AGE_HOURS) -> int:
        """Erase the data of workflows that ended longer ago than this; return their number.

        A workflow that waits, is blocked or still runs is never touched, however old it is.
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
    ) -> RunRow:
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
        try:
            return await self._work.create(
                self.kit.agent,
                {"start": type_conversion.plain(start, what="inputs")},
                run_id,
                subject=workflow.name,
                owner=owner,
            )
        except InputDiffers as error:
            # The owner of another run is told nothing of it.
            is_own = run_id is not None and (await self._runs.get(run_id)).owner == owner
            what = _what_differs(known, start) if known is not None and is_own else ""
            if not what:
                raise
            raise InputDiffers(
                f"run {run_id!r} was started with {what}. It keeps what it was started with; "
                f"`holdfast workflows resume {run_id}` resumes it, and another run id starts a "
                "new run"
            ) from error

    async def _known(self, run_id: str | None) -> Start | None:
        """Return the `Start` of an existing workflow run; None if there is no such run."""
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
        # The list omits the questions of blocked runs below this one.
        return [
            _waiting_of(known.get(at) or await self._approvals.get(at), each.name)
            for each in found
            if each.is_open and (at := each.wait.wait_id)
        ]

    async def _give(self, asked: Asked, value: Any, by: str) -> None:
        """Answer a question; do nothing if it already has the same answer."""
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

    async def _workflow_run(self, run_id: str) -> RunRow:
        run = await self._runs.get(run_id)
        if run.agent != AGENT:
            raise RunNotFound(f"run {run_id!r} is no workflow, but a run of agent {run.agent!r}")
        return run

    async def _start_of(self, run_id: str) -> Start:
        return await self._start_in(await self._workflow_run(run_id))

    async def _start_in(self, run: RunRow) -> Start:
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


def _what_differs(known: Start, start: Start) -> str:
    """Return what a run was started with instead; nothing if it is the same."""
    if known.workflow != start.workflow:
        return f"workflow {known.workflow!r}, not {start.workflow!r}"
    changed = [
        name
        for name in sorted({*known.library, *start.library})
        if known.library.get(name) != start.library.get(name)
    ]
    if changed:
        return f"another definition: {', '.join(map(repr, changed))} changed since"
    if known.inputs != start.inputs:
        names = sorted({*known.inputs, *start.inputs})
        other = [name for name in names if known.inputs.get(name) != start.inputs.get(name)]
        return f"other inputs: {', '.join(map(repr, other))}"
    return ""


def _why_refused(asked: Asked, value: Any) -> str:
    """Return why a value is refused as an answer; an empty text if it is not.

    An approval takes a yes or a no. Any other question checks the value only while it is open.
    """
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
