"""Recovery policy of an agent: what happens to a run whose agent raises or takes too long.

Without one an error ends the run as failed. With one the run resumes from its last checkpoint after
a pause, a few times; then it is blocked, which is reported to people.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from holdfast import names
from holdfast.agents.exits.containment import is_exit
from holdfast.errors import MisuseError, TurnDiverged
from holdfast.kernel.recoveries import BACKOFF_SECONDS, TRIES, Cause


class TurnTimedOut(Exception):
    """A turn took longer than the agent's recovery policy allows."""


class RecoveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often an agent that fails is tried again, and for which errors.

    `tries` in a row without a new checkpoint, after pauses that double from `backoff_seconds` on.
    Errors that are not among `errors`, or are among `give_up_on`, end the run as failed at once. A
    turn that takes more than `turn_seconds` is broken off, and counts as an error. `sys.exit()` and
    a BaseException class of the agent are always tried again.
    """

    tries: int = TRIES
    backoff_seconds: float = BACKOFF_SECONDS
    errors: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()
    turn_seconds: float | None = None

    def __post_init__(self) -> None:
        if names.check_count(self.tries, what="tries") < 1:
            raise MisuseError("tries must be 1 or more")
        for name in ("backoff_seconds", "turn_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 2**31:
                raise MisuseError(f"{name} must be above 0, not {value!r}")
        for name in ("errors", "give_up_on"):
            kinds: object = getattr(self, name)
            is_fit = isinstance(kinds, tuple) and all(
                isinstance(kind, type) and issubclass(kind, Exception)
                for kind in kinds  # pyright: ignore[reportUnknownVariableType] - checked for users without a type checker
            )
            if not is_fit:
                raise MisuseError(f"{name} is a tuple of exceptions, as in (ValueError,)")

    def cause_of(self, error: BaseException) -> Cause | None:
        """How a run failed that may be tried again; None if it may not."""
        if isinstance(error, TurnTimedOut):
            return Cause.TIMEOUT
        if is_exit(error):
            return Cause.ERROR  # it says nothing about the run, so it may not end the run
        if isinstance(error, (TurnDiverged, *self.give_up_on)) or not isinstance(
            error, self.errors
        ):
            return None
        return Cause.ERROR


def check_policy(given: RecoveryPolicy | None) -> RecoveryPolicy | None:
    if given is None or isinstance(given, RecoveryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        return given
    raise MisuseError(f"recovery is a holdfast.RecoveryPolicy, not {given!r}")


class TurnClock:
    """Breaks off a turn that takes too long; each end of a turn starts it anew."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Limit the turns of what is done inside; raises TurnTimedOut."""
        try:
            async with asyncio.timeout(self._seconds) as self._limit:
                yield
        except TimeoutError as error:
            if self._limit is None or not self._limit.expired():
                raise
            message = f"a turn took more than {self._seconds:g} seconds"
            raise TurnTimedOut(message) from error

    def begin_turn(self) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)
