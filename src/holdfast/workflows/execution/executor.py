"""A workflow as an agent: one turn for each wave, its results stored at the end of the turn.

After a crash, and after each pause, the wave that has not ended is entered again. Its blocks get
back what they did from the record, so each resumes where it was.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import clock
from holdfast.agents.conversion import type_conversion
from holdfast.agents.exits.containment import exits_as_errors
from holdfast.agents.exits.exit_reasons import Suspend
from holdfast.agents.run import Run, turn_of
from holdfast.errors import (
    BlockFailed,
    ConflictError,
    IntegrityError,
    NoAnswer,
    PeerFailed,
    TurnDiverged,
    UnavailableError,
    UnsupportedValue,
    WorkflowFailed,
    WorkflowInvalid,
)
from holdfast.workflows.access.secrets import Secrets, named_in
from holdfast.workflows.blocks import NEEDS_FOLDER
from holdfast.workflows.blocks.contract import LONG_SECONDS, BlockRun, BlockType, path_of_attempt
from holdfast.workflows.definitions import expressions, inputs
from holdfast.workflows.definitions.definition import Block, Workflow
from holdfast.workflows.definitions.waves import waves_of
from holdfast.workflows.execution import output_pruner
from holdfast.workflows.execution.events import (
    BlockBegan,
    BlockEnded,
    BlockWaits,
    LoopBegan,
    WaveBegan,
)
from holdfast.workflows.execution.rounds import LoopRound, rounds_of
from holdfast.workflows.execution.scope import Scope
from holdfast.workflows.execution.state import (
    ENDED,
    BlockResult,
    EndedBlock,
    Loop,
    LoopItem,
    Start,
    part_of,
)

if TYPE_CHECKING:
    from holdfast.workflows.execution.kit import Kit

_DEEPEST: Final = 20
_LONGEST_PAUSE: Final = 30.0
_LONGEST_PATH: Final = 200


def _ordinary_parallel() -> int:
    """How many blocks are carried out at once if the workflow does not say."""
    return max(8, 4 * (os.cpu_count() or 1))


class Execution:
    """One pass over a workflow's run."""

    def __init__(self, kit: "Kit", run: Run, start: Start, root: Start) -> None:
        self._kit = kit
        self._run = run
        self._start = start
        self._root = root
        self._root_id = start.root or run.run_id
        self._folder = kit.folder_of(root)
        self._secrets = Secrets(kit.secrets, start.seal, named=named_in(root.library))
        self._room = kit.limit(_ordinary_parallel())

    async def go(self) -> Any:
        """Carry out what the run was started with."""
        if self._start.depth > _DEEPEST:
            raise WorkflowFailed(
                f"workflows are nested deeper than {_DEEPEST}: does one begin itself without end?"
            )
        if self._start.loop is not None:
            return await self._make_rounds(self._start.loop)
        workflow = self._kit.definition(self._root, self._start.workflow)
        return await self._carry_out(workflow)

    async def _carry_out(self, workflow: Workflow) -> dict[str, Any]:
        try:
            given = inputs.complete(workflow, self._start.inputs)
        except WorkflowInvalid as error:
            raise WorkflowFailed(f"workflow {workflow.name}: {error}") from error
        if workflow.max_parallel is not None:
            self._room = self._kit.limit(workflow.max_parallel)
        waves = waves_of(workflow.blocks)
        parts = {b.id: self._run.value(part_of(b.id), BlockResult) for b in workflow.blocks}
        results = {name: part.get() for name, part in parts.items() if part.is_set}
        has_now = output_pruner.uses_now(workflow)
        uses = output_pruner.OutputUses(workflow) if self._kit.prunes else None
        ended = list(results)
        for number, wave in enumerate(waves):
            left = [name for name in wave if name not in results]
            if not left:
                continue
            self._tell(WaveBegan(self._run.run_id, self._start.path, number + 1, len(waves), left))
            now = await self._run.step(self._read_clock) if has_now else None
            scope = Scope(given, results, self._secrets, now)
            made = await self._make_wave(workflow, left, results, scope)
            results |= made
            for name, result in made.items():
                parts[name].set(result)
            ended += made
            if uses is not None:
                for name in uses.end(ended):
                    if results[name].is_to_be_pruned:
                        results[name] = output_pruner.pruned(results[name])
                        parts[name].set(results[name])
                ended.clear()
            await self._run.checkpoint(phase=f"wave {number + 1} of {len(waves)}")
        self._check_all(workflow, results)
        now = await self._run.step(self._read_clock) if has_now else None
        return self._outputs(workflow, Scope(given, results, self._secrets, now))

    async def _make_wave(
        self, workflow: Workflow, wave: Sequence[str], results: dict[str, BlockResult], scope: Scope
    ) -> dict[str, BlockResult]:
        """Carry out blocks concurrently, and also the rounds of parallel loops."""
        pardoned = {block.id for block in workflow.blocks if block.continue_on_error}
        plans: dict[str, _BlockPlan] = {}
        for name in wave:
            block = workflow.block(name)
            why = _why_skipped(block, results, pardoned)
            skipped = _BlockPlan(result=BlockResult(status="skipped", error=why))
            plans[name] = skipped if why else self._plan(block, scope)
        made = iter(
            await self._run.gather(*(each for plan in plans.values() for each in plan.calls))
        )
        found = {
            name: plan.result or plan.joined([next(made) for _ in plan.calls])
            for name, plan in plans.items()
        }
        for name, plan in plans.items():
            if not plan.tells_its_end:
                self._tell_end(self._path(name), found[name])
        return found

    def _plan(self, block: Block, scope: Scope) -> "_BlockPlan":
        try:
            if not block.is_loop:
                if not _holds(block, scope.names):
                    return _BlockPlan(result=_not_wanted())
                return _BlockPlan(calls=[self._make(block, scope.names, self._path(block.id))])
            rounds, keys = rounds_of(block, scope)
            self._tell(LoopBegan(self._run.run_id, self._path(block.id), len(rounds)))
        except BlockFailed as error:
            return _BlockPlan(
                result=BlockResult(status="failed", error=self._secrets.redact(str(error)))
            )
        kind = self._kit.types.get(block.type)
        if block.for_each_mode == "parallel":
            limit = self._kit.limit(block.max_parallel)
            return _BlockPlan(
                calls=[self._make_round(block, each, limit) for each in rounds],
                keys=keys,
                is_loop=True,
            )
        if kind is not None and kind.waits:
            return _BlockPlan(
                calls=[self._make_below(block, rounds)], keys=keys, is_whole_loop=True
            )
        return _BlockPlan(calls=[self._make_in_turn(block, rounds)], keys=keys, is_whole_loop=True)

    async def _make_round(self, block: Block, each: LoopRound, limit: Any = None) -> BlockResult:
        path = self._path(f"{block.id}[{each.label}]")
        if each.failed or each.skipped:
            self._tell_end(path, each.result())
            return each.result()
        if limit is None:
            return await self._make(block, each.names, path, each.inputs)
        async with limit:
            return await self._make(block, each.names, path, each.inputs)

    async def _make_in_turn(self, block: Block, rounds: Sequence[LoopRound]) -> BlockResult:
        """Run the rounds of a loop one after another, in this run."""
        made: list[BlockResult] = []
        for each in rounds:
            if _is_broken_off(block, made):
                made.append(BlockResult(status="skipped", error="an earlier round failed"))
            else:
                made.append(await self._make_round(block, each))
        return BlockResult(status="completed", rounds=made)

    async def _make_below(self, block: Block, rounds: Sequence[LoopRound]) -> BlockResult:
        """Run the rounds in a child run, which may wait at each without holding up this wave."""
        items = [each.item(block, self._secrets) for each in rounds]
        start = self._below(loop=Loop(block=block, items=items))
        try:
            found = await self._run.peer(
                self._kit.agent,
                {"start": type_conversion.plain(start)},
                timeout=LONG_SECONDS,
                subject=self._start.workflow,
            )
        except PeerFailed as error:
            return self._failed(error, 0)
        return BlockResult(status="completed", rounds=msgspec.convert(found, list[BlockResult]))

    async def _make_rounds(self, loop: Loop) -> list[Any]:
        """Carry out a run that is a loop: a turn for each round."""
        made: list[BlockResult] = []
        for at, item in enumerate(loop.items):
            part = self._run.value(f"round.{at}", BlockResult)
            if not part.is_set:
                part.set(await self._make_item(loop.block, item, made))
                await self._run.checkpoint(phase=f"round {at + 1} of {len(loop.items)}")
            made.append(part.get())
        return type_conversion.plain(made)

    async def _make_item(
        self, block: Block, item: LoopItem, made: list[BlockResult]
    ) -> BlockResult:
        if _is_broken_off(block, made):
            return BlockResult(status="skipped", error="an earlier round failed")
        each = LoopRound(
            key=item.key,
            label=item.label,
            inputs=item.inputs,
            skipped=item.skipped,
            failed=item.failed,
        )
        return await self._make_round(block, each)

    async def _make(
        self, block: Block, names: expressions.Scope, path: str, given: dict[str, Any] | None = None
    ) -> BlockResult:
        """Carry out one block; retry it as often as it allows."""
        began = time.monotonic()
        self._tell(BlockBegan(self._run.run_id, path, block.type))
        try:
            result = await self._try(block, names, path, given)
        except Suspend:
            self._tell(BlockWaits(self._run.run_id, path))
            raise
        seconds = round(time.monotonic() - began, 3)
        # Recorded, so that it is known while the rest of the wave waits, and never changes.
        ended = await self._run.step(_ended(path, result, seconds))
        if ended.status == "failed" and result.status != "failed":
            result = BlockResult(status="failed", error=ended.error)  # recorded before: final
        result = msgspec.structs.replace(result, seconds=ended.seconds)
        self._tell_end(path, result)
        return result

    async def _try(
        self, block: Block, names: expressions.Scope, path: str, given: dict[str, Any] | None
    ) -> BlockResult:
        for attempt in range(block.retries + 1):
            try:
                kind = self._type_of(block)
                rendered = self._rendered(block, names) if given is None else given
                self._secrets.check(rendered)
                self._check_is_here(block, path, rendered)
                shaped = _shaped(kind, rendered)
                async with self._room:
                    with exits_as_errors():
                        outputs = await kind.execute(self._block_run(block, path, attempt), shaped)
                return BlockResult(
                    status="completed",
                    outputs=self._secrets.redact(
                        type_conversion.plain(outputs, what="its outputs")
                    ),
                    attempts=attempt + 1,
                )
            except (ConflictError, UnavailableError, IntegrityError, TurnDiverged) as error:
                if not isinstance(error, NoAnswer):
                    raise
                failed = self._failed(error, attempt)
            except Exception as error:
                if turn_of(self._run).gate.leaving is error:
                    raise
                failed = self._failed(error, attempt)
                if isinstance(error, BlockFailed) and error.is_final:
                    break
            if attempt < block.retries:
                await self._pause(attempt)
        return failed  # pyright: ignore[reportPossiblyUnboundVariable] - there is one attempt at least

    def _rendered(self, block: Block, names: expressions.Scope) -> dict[str, Any]:
        return self._secrets.sealed(expressions.render(block.inputs, names))

    async def _pause(self, attempt: int) -> None:
        """Wait before the next attempt, counted from the failure: no later pass waits again."""
        failed_at = await self._run.step(self._read_clock)
        passed = (await self._read_clock() - failed_at).total_seconds()
        left = min(_LONGEST_PAUSE, 0.5 * 2**attempt) - max(0.0, passed)
        await asyncio.sleep(max(0.0, left))

    def _type_of(self, block: Block) -> BlockType:
        """Return the type of a block. If it is unknown here, leave the run to other workers."""
        found = self._kit.types.get(block.type)
        if found is None:
            self._block_run(block, self._path(block.id), 0).leave_to_others(
                f"block type {block.type!r}"
            )
        return found

    def _check_is_here(self, block: Block, path: str, rendered: dict[str, Any]) -> None:
        """Leave a block to other workers if this process lacks its secrets or folder."""
        for name in sorted(self._secrets.names_in(rendered)):
            if self._kit.secrets(name) is None:
                self._block_run(block, path, 0).leave_to_others(
                    f"secret {name!r} (HOLDFAST_SECRET_{name.upper()}, a folder, or Kit(secrets=…))"
                )
        if block.type in NEEDS_FOLDER and not self._folder.root.is_dir():
            self._block_run(block, path, 0).leave_to_others(f"folder {self._folder.root}")

    def _failed(self, error: Exception, attempt: int) -> BlockResult:
        outputs = error.outputs if isinstance(error, BlockFailed) else None
        return BlockResult(
            status="failed",
            outputs=self._secrets.redact(outputs),
            error=self._secrets.redact(_error_text(error)),
            attempts=attempt + 1,
        )

    def _block_run(self, block: Block, path: str, attempt: int) -> BlockRun:
        return BlockRun(
            run=self._run,
            id=block.id,
            path=path,
            timeout=block.timeout,
            attempt=attempt,
            secrets=self._secrets,
            folder=self._folder,
            networks=self._kit.networks,
            tools=self._kit.tools,
            nested=lambda name, given: self._nested(name, given, path_of_attempt(path, attempt)),
        )

    def _nested(self, name: str, given: dict[str, Any], path: str) -> tuple[Any, Any]:
        self._kit.definition(self._root, name)
        start = self._below(workflow=name, inputs=given, path=path)
        return self._kit.agent, {"start": type_conversion.plain(start)}

    def _below(self, **changes: Any) -> Start:
        start = Start(
            workflow=self._start.workflow,
            seal=self._start.seal,
            root=self._root_id,
            path=self._start.path,
            depth=self._start.depth + 1,
        )
        return msgspec.structs.replace(start, **changes)

    def _path(self, name: str) -> str:
        whole = f"{self._start.path}/{name}" if self._start.path else name
        if len(whole) <= _LONGEST_PATH:
            return whole
        return f"{whole[:_LONGEST_PATH]}~{hashlib.sha256(whole.encode()).hexdigest()[:16]}"

    def _check_all(self, workflow: Workflow, results: dict[str, BlockResult]) -> None:
        failed = [
            f"block {block.id} failed: {results[block.id].error}"
            for block in workflow.blocks
            if results[block.id].status == "failed" and not block.continue_on_error
        ]
        if failed:
            raise WorkflowFailed(f"workflow {workflow.name}: {'; '.join(failed)}")

    def _outputs(self, workflow: Workflow, scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, spec in workflow.output_specs.items():
            try:
                value = expressions.render(spec.value, scope.names)
                found[name] = inputs.typed(value, spec.type, what=f"output {name}")
            except (BlockFailed, UnsupportedValue) as error:
                raise WorkflowFailed(f"workflow {workflow.name}: output {name}: {error}") from error
        if self._secrets.names_in(found):
            raise WorkflowFailed(f"workflow {workflow.name}: an output would tell a secret")
        return found

    async def _read_clock(self) -> datetime:
        return clock.to_datetime(turn_of(self._run).context.now())

    def _tell_end(self, path: str, result: BlockResult) -> None:
        event = BlockEnded(self._run.run_id, path, result.status, result.seconds, result.error)
        self._tell(event)

    def _tell(self, event: Any) -> None:
        self._kit.tell(turn_of(self._run).context, self._root_id, event)


class _BlockPlan(msgspec.Struct, kw_only=True):
    """The plan of a block in its wave: a known result, or calls that make one."""

    result: BlockResult | None = None
    calls: list[Coroutine[Any, Any, BlockResult]] = []
    keys: list[str] | None = None
    is_loop: bool = False
    is_whole_loop: bool = False

    @property
    def tells_its_end(self) -> bool:
        return self.result is None and not self.is_loop and not self.is_whole_loop

    def joined(self, made: list[BlockResult]) -> BlockResult:
        if not self.is_loop and not self.is_whole_loop:
            return made[0]
        rounds = made if self.is_loop else made[0].rounds
        if rounds is None:
            return made[0]  # the loop itself failed
        failed = [each for each in rounds if each.status == "failed"]
        return BlockResult(
            status="failed" if failed else "completed",
            error=f"{len(failed)} of {len(rounds)} rounds failed: {failed[0].error}"
            if failed
            else "",
            seconds=sum(each.seconds for each in rounds),
            rounds=rounds,
            keys=self.keys,
        )


def _ended(path: str, result: BlockResult, seconds: float) -> Callable[[], Awaitable[EndedBlock]]:
    """Return the step that records the end of a block, named by the block's path."""

    async def ended() -> EndedBlock:
        return EndedBlock(status=result.status, seconds=seconds, error=result.error)

    ended.__name__ = ended.__qualname__ = f"{ENDED}{path}"
    return ended


def _why_skipped(block: Block, results: dict[str, BlockResult], pardoned: set[str]) -> str:
    for each in block.dependencies:
        before = results[each.block].status
        if each.required and before == "skipped":
            return f"{each.block} was skipped"
        if each.required and before == "failed" and each.block not in pardoned:
            return f"{each.block} failed"
    return ""


def _holds(block: Block, names: expressions.Scope) -> bool:
    return block.condition is None or expressions.is_true(block.condition, names)


def _not_wanted() -> BlockResult:
    return BlockResult(status="skipped", error="its condition does not hold")


def _is_broken_off(block: Block, made: Sequence[BlockResult]) -> bool:
    return not block.continue_on_error and any(each.status == "failed" for each in made)


def _shaped(kind: BlockType, rendered: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(rendered, kind.inputs)
    except msgspec.ValidationError as error:
        raise BlockFailed(f"its inputs do not fit a {kind.name} block: {error}") from error


def _error_text(error: Exception) -> str:
    if isinstance(error, PeerFailed):
        text = str(error).partition(" failed: ")[2] or str(error)
        return text.removeprefix("WorkflowFailed: ")
    return str(error) or type(error).__name__
