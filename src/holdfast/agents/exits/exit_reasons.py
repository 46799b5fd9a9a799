"""How an agent's code is left before it ends, and who may do so.

Leaving raises `Suspend`, a BaseException: `except Exception` does not stop it, and code
that catches it meets it again at the next call of the run. Nothing is written until the code is
left; what it changed since the last checkpoint is then forgotten, and repeated on resume.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from holdfast.engine.waits import WaitSpec
from holdfast.errors import MisuseError
from holdfast.kernel.runs import BlockedReason


class BlockExit(msgspec.Struct, frozen=True):
    """An operator must act first. `budgets` are those without room, and when they were set.

    `specs` is what other branches are to wait for, and is opened meanwhile.
    """

    reason: BlockedReason
    note: str
    effect_ids: tuple[UUID, ...] = ()
    budgets: tuple[tuple[str, int], ...] = ()
    specs: tuple[WaitSpec, ...] = ()


class DelayExit(msgspec.Struct, frozen=True):
    """Nothing can be done before a moment (microseconds since 1970). `specs` as of Block."""

    until: int
    note: str
    specs: tuple[WaitSpec, ...] = ()


class HandBackExit(msgspec.Struct, frozen=True):
    """Another worker is to continue."""

    note: str


class WaitExit(msgspec.Struct, frozen=True):
    """All of this must come from outside first; `groups` are those that are waited for already."""

    specs: tuple[WaitSpec, ...] = ()
    groups: tuple[str, ...] = ()


class HandedOverExit(msgspec.Struct, frozen=True):
    """The run was given to another context, and is not held here any more."""


ExitReason = BlockExit | DelayExit | HandBackExit | HandedOverExit | WaitExit


class Suspend(BaseException):
    """The agent's code is left here, and entered again when the run resumes. Let it pass."""

    def __init__(self, way: ExitReason) -> None:
        super().__init__(f"the run is left here: {type(way).__name__}")
        self.way = way


def first_exit(ways: Sequence[ExitReason]) -> ExitReason:
    """Return the exit that decides when several calls want to leave at once."""
    others = [way for way in ways if not isinstance(way, HandBackExit | HandedOverExit)]
    asked = {id(spec): spec for way in others for spec in way.specs}
    specs = tuple(asked.values())
    blocks = [way for way in ways if isinstance(way, BlockExit)]
    if blocks:
        notes = "; ".join(dict.fromkeys(block.note for block in blocks))
        waited_for = tuple(effect_id for block in blocks for effect_id in block.effect_ids)
        budgets = tuple(known for block in blocks for known in block.budgets)
        return BlockExit(blocks[0].reason, notes, waited_for, budgets, specs)
    delays = [way for way in ways if isinstance(way, DelayExit)]
    if delays:
        last = max(delays, key=lambda delay: delay.until)
        return DelayExit(last.until, last.note, specs)
    waits = [way for way in ways if isinstance(way, WaitExit)]
    if not waits:
        return ways[0]
    groups = dict.fromkeys(group for way in waits for group in way.groups)
    return WaitExit(specs, tuple(groups))


async def end_all(tasks: Sequence[asyncio.Task[Any]]) -> list[BaseException]:
    """Wait until all tasks have ended; return what they raised. Cancelling this cancels them."""
    if not tasks:
        return []
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in tasks:
                task.cancel(*error.args)
    if cancelled is not None:
        raise cancelled
    return [error for task in tasks if (error := _error_of(task)) is not None]


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def exit_reasons_of(errors: Sequence[BaseException]) -> list[ExitReason]:
    """How those of them that are suspensions want to leave."""
    return [error.way for error in errors if isinstance(error, Suspend)]


class Gate:
    """Knows which tasks are the agent's own, and whether it is being left."""

    def __init__(self) -> None:
        self._agent_task: asyncio.Task[Any] | None = None
        self._branches: set[asyncio.Task[Any]] = set()
        self.branch_ways: list[ExitReason] = []
        self.leaving: BaseException | None = None
        self.is_closed = False
        """Whether the agent's code has ended."""

    @property
    def is_concurrent(self) -> bool:
        """Whether branches of a gather run just now."""
        # One that has ended may not have been taken out yet, if the gather was cancelled.
        return any(not branch.done() for branch in self._branches)

    def open(self) -> None:
        """Register the present task as the agent's."""
        self._agent_task = asyncio.current_task()

    def close(self) -> None:
        """The agent's code has ended: a task that it left behind can do nothing more."""
        self.is_closed = True

    def check_open(self, call: str) -> None:
        """Refuse a call of a task that outlived the agent's code."""
        if self.is_closed:
            raise MisuseError(
                f"{call} of a run was used after its agent's code had ended; nothing was stored. "
                "Await every task that uses the run before the agent returns"
            )

    def check(self, call: str = "a call") -> None:
        """Raise again what the agent is being left by; MisuseError if its code has ended."""
        if isinstance(self.leaving, Suspend):
            raise Suspend(self.leaving.way)
        if self.leaving is not None:
            raise self.leaving
        if self.is_closed:
            self.check_open(call)

    def check_own_task(self, call: str, *, in_branch: bool = True) -> None:
        """Refuse a call that may suspend where the suspension could be lost."""
        if self.leaving is not None or self.is_closed:
            self.check(call)
        task = asyncio.current_task()
        if task is self._agent_task or (in_branch and task in self._branches):
            return
        raise MisuseError(
            f"{call} was called outside the agent's own task, where it could not suspend the run; "
            "nothing was done. Await it directly, or several at once with run.gather()"
            if in_branch
            else f"{call} is called in the agent's own code only, not in a branch of run.gather()"
        )

    def leave(self, error: BaseException) -> NoReturn:
        """Leave the agent by this, now and at every later call."""
        if self.leaving is None:
            self.leaving = error
        self.check()
        raise error

    def suspend(self, way: ExitReason) -> NoReturn:
        """Leave the agent this way; from a branch of a gather when the others have ended too."""
        if not self.is_concurrent:
            self.leave(Suspend(way))
        self.branch_ways.append(way)
        raise Suspend(way)

    def add_branch(self, task: asyncio.Task[Any]) -> None:
        self._branches.add(task)
        task.add_done_callback(self._branches.discard)
