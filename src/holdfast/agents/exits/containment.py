"""Code of others that raises what would end its worker, as `sys.exit()` does: only it fails.

Exceptions in PASSING are no failures of the code: they stop it on behalf of somebody else.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from holdfast.agents.exits.exit_reasons import Suspend

T = TypeVar("T")

PASSING: tuple[type[BaseException], ...] = (asyncio.CancelledError, KeyboardInterrupt, Suspend)


class CodeExited(Exception):
    """Carries an exit out of a task: a task that raised SystemExit would stop the event loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CancelledItself(BaseException):
    """Code cancelled the task that it ran in, and nobody else wanted that task to end."""


def is_exit(error: BaseException) -> bool:
    """Whether the code that raised this failed with a BaseException: SystemExit, or its own class.

    False for an Exception, cancellation, Ctrl-C, and the suspension of a run.
    """
    if isinstance(error, (Exception, *PASSING)):
        return False
    if isinstance(error, GeneratorExit):
        return not _is_being_closed()
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(PASSING) is None
    return True


@contextmanager
def exits_as_errors() -> Generator[None]:
    """Raise a RuntimeError in place of what would end the worker, and the runs of others with it.

    Cancellation, Ctrl-C and the suspension of a run pass.
    """
    try:
        yield
    except BaseException as error:
        raise_exit_as_error(error)
        raise


def raise_exit_as_error(error: BaseException) -> None:
    """Raise a RuntimeError in place of what would end the worker; return for all else."""
    if is_exit(error):
        raise RuntimeError(
            f"it raised {type(error).__name__}: {error}, and so it alone was ended"
        ) from error


async def carried(code: Coroutine[Any, Any, T]) -> T:
    """Run code in a separate task; raises CodeExited in place of an exit."""
    try:
        return await code
    except BaseException as error:
        if is_exit(error):
            raise CodeExited(error) from error
        raise


async def run_apart(code: Callable[..., Coroutine[Any, Any, T]], *args: Any, name: str) -> T:
    """Run `code(*args)` in its own task, to its end. Cancelling the present task cancels the code.

    Raises CancelledItself if the code cancelled its task, and the present task was not cancelled.
    """
    present = asyncio.current_task()
    assert present is not None, "a coroutine runs in a task"
    cancelled_before = present.cancelling()
    task = asyncio.create_task(_carried_to_its_end(code, *args), name=name)
    try:
        return await task
    except CodeExited as exited:
        error = exited.error
    except asyncio.CancelledError:
        if not task.cancelled():  # it has just ended: the cancellation comes after it
            task.exception()  # else asyncio logs that nobody has seen it
        elif present.cancelling() == cancelled_before:
            raise CancelledItself from None
        raise
    raise error


async def _carried_to_its_end(code: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run code; Ctrl-C in it ends its task only, and is raised again in the one that waits."""
    try:
        return await code(*args)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or is_exit(error):
            raise CodeExited(error) from error
        raise


def first_error(errors: Sequence[BaseException]) -> BaseException:
    """Return the first of the errors of such tasks, an exit as it was raised."""
    return errors[0].error if isinstance(errors[0], CodeExited) else errors[0]


def _is_being_closed() -> bool:
    """Whether the coroutine is being closed outside its task: then report nothing."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
