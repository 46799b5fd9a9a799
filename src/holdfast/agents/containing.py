"""Code of others that would end the whole process, as `sys.exit()` does: only its call fails."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.agents.leaving import Suspend


@contextmanager
def contained() -> Generator[None]:
    """What would end the worker, and the runs of others with it, is a RuntimeError outside this.

    Cancellation, Ctrl-C and the leaving of a run pass.
    """
    try:
        yield
    except SystemExit as error:
        raise _told(error) from error
    except GeneratorExit as error:
        if _is_being_closed():
            raise
        raise _told(error) from error
    except BaseExceptionGroup as group:
        passing = (Exception, asyncio.CancelledError, KeyboardInterrupt, Suspend)
        if isinstance(group, passing) or group.subgroup(passing[1:]) is not None:
            raise
        raise _told(group) from group


def _told(error: BaseException) -> RuntimeError:
    return RuntimeError(f"it raised {type(error).__name__}: {error}, and so it alone was ended")


def _is_being_closed() -> bool:
    """Whether the coroutine is taken away from its task: then nobody is to be told anything."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
