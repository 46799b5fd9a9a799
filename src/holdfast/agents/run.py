"""A run as its agent sees it: state, recorded calls, tools, and the boundary of a turn.

After a crash the agent is called again with the state of its last checkpoint. What it did since is
on record, and given back: between checkpoints it must make the same calls again, nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from functools import cached_property, partial, wraps
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from holdfast import codec, faults
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent
from holdfast.agents.definitions.messages import (
    WITHOUT_USAGE,
    Message,
    ToolCall,
    Usage,
    usage_of,
)
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.exits.containment import carried, first_error
from holdfast.agents.exits.exit_reasons import Suspend, end_all, exit_reasons_of, first_exit
from holdfast.agents.exits.interruptions import finish_first
from holdfast.agents.exits.unawaited import RunCall
from holdfast.agents.turn.blobs import Blobs
from holdfast.agents.turn.call_budget import CallBudget
from holdfast.agents.turn.call_positions import enter_branch
from holdfast.agents.turn.calls import TurnCall
from holdfast.agents.turn.effects import TurnEffects
from holdfast.agents.turn.handoff_exit import HandoffExit, previous_context
from holdfast.agents.turn.peers import Peers
from holdfast.agents.turn.progress import Progress
from holdfast.agents.turn.replayed_calls import take_freshness
from holdfast.agents.turn.requests import Requests
from holdfast.agents.turn.steps import Steps
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.turn_waits import TurnWaits
from holdfast.agents.turn.views import UNSET, Log, Value
from holdfast.engine.writing.outages import retry_while_unavailable
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IntegrityError,
    KeyReused,
    MisuseError,
    NoAnswer,
    OutcomeUnknown,
    ToolFailed,
    TurnDiverged,
    UnavailableError,
    UnsupportedValue,
)
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.edits import OWN_PARTS
from holdfast.telemetry import log

P = ParamSpec("P")
T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

_USAGE: Final = "holdfast.usage"


def _noticed(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a verb's calls be noticed if they are not awaited.

    Not those of steps and models, which may be made in tasks: libraries want a real coroutine.
    """
    name = f"run.{verb.__name__}(…)"

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        turn = turn_of(cast(Run, args[0]))
        return RunCall(verb(*args, **kwargs), name, turn.unawaited)

    return call


class Run:
    """One pass of an agent over its run. Its methods are used in the agent's own task."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._held = held = turn.held
        self._gate = turn.gate
        self._views: dict[str, Log[Any] | Value[Any]] = {}
        self.continuation = previous_context(held) if held.version else None
        """What the previous context left, if it handed the run over; else None."""
        is_at_start = held.version == 0 or take_freshness(held) == "start"
        self._is_fresh = turn.memo.answered or is_at_start

    @cached_property
    def _exit(self) -> HandoffExit:
        return HandoffExit(self._turn, self)

    @cached_property
    def _usage(self) -> Value[Usage]:
        return Value(self._held, _USAGE, Usage, Usage())

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self._turn, self._spending)

    @cached_property
    def _spending(self) -> CallBudget:
        return CallBudget(self._turn)

    @cached_property
    def _waiting(self) -> TurnWaits:
        return TurnWaits(self._turn)

    @cached_property
    def _peers(self) -> Peers:
        return Peers(self._turn, self._waiting)

    @cached_property
    def _effects(self) -> TurnEffects:
        return TurnEffects(self._turn, self._spending)

    @cached_property
    def _requests(self) -> Requests:
        return Requests(self._turn, self._effects, self._waiting, self._peers)

    @property
    def progress(self) -> Progress:
        """How far the work is, for the context that continues it."""
        return self._turn.progress

    @property
    def run_id(self) -> str:
        return self._held.run_id

    @property
    def version(self) -> int:
        """The version of the last checkpoint; 0 before the first."""
        return self._held.version

    @property
    def is_spooled(self) -> bool:
        """Whether the last of what it stored is on this machine's disk only: the store is away.

        Until it is back, effects, waits and the end of the run wait for it.
        """
        return self._held.is_spooled

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was stored yet since this input (or message of a session) came."""
        return self._is_fresh

    @property
    def usage(self) -> Usage:
        """What the model's replies have cost in this run so far."""
        return self._usage.get()

    def log(self, name: str, kind: type[T]) -> Log[T]:
        """A part of the state that is a list of `kind`."""
        view = self._view(name, kind, Log)
        if view is not None:
            return view
        return self._remember(name, Log(self._held, name, kind, self._steps.stored_as))

    @overload
    def value(self, name: str, kind: type[T]) -> Value[T]: ...
    @overload
    def value(self, name: str, kind: type[T], default: T) -> Value[T]: ...
    def value(self, name: str, kind: type[T], default: T = UNSET) -> Value[T]:
        """A part of the state that is one `kind`."""
        view = self._view(name, kind, Value)
        if view is not None:
            return view
        return self._remember(name, Value(self._held, name, kind, default))

    async def step(
        self,
        function: Callable[P, Awaitable[T]] | Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function once: its result is staged, and on disk before what follows from it."""
        return await self._step("", function, args, kwargs)

    async def model(
        self,
        function: Callable[P, Awaitable[T]] | Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a model, and count its usage: its reply is staged as the result of a step is."""
        reply = await self._step("model:", function, args, kwargs)
        used = None if type(reply) in WITHOUT_USAGE else usage_of(reply)
        if used is not None:
            self._usage.set(self._usage.get() + used)
        if self._turn.is_counted:
            self._turn.context_usage.count_reply(reply, used, args, kwargs)
        return reply

    async def tools(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Make the calls a model asked for, at the same time; a message for each, in order.

        A call that is refused, or a tool that raises, is answered with an error the model reads.
        The intents are on disk before a tool is called; returns when the outcomes are staged.
        """
        self._gate.check_own_task("run.tools()")
        return await self._requests.make_all(calls)

    @overload
    async def call(self, tool: Tool[..., Awaitable[T]], *args: Any, **kw: Any) -> T: ...
    @overload
    async def call(self, tool: Tool[..., T], *args: Any, **kw: Any) -> T: ...
    @_noticed
    async def call(self, tool: Tool[..., Any], *args: Any, **kw: Any) -> Any:
        """Call one tool from the agent's own code; raises ToolFailed with what a model would read.

        The intent is on disk before the tool is called; returns when the outcome is staged.
        Raises KeyReused if a call with other arguments already uses the tool's own `key=`.
        The key of the call is given by Holdfast.
        """
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"{tool!r} is not a tool; make it one with @holdfast.tool")
        self._gate.check_own_task("run.call()")
        call = TurnCall(tool, tool.bind(args, kw))
        self._effects.place(call)
        if tool.policy.approval is not None:
            await self._requests.check_permitted(call)
        outcome = await self._effects.make(call)
        if isinstance(outcome.cause, KeyReused):
            raise outcome.cause
        if outcome.error is not None:
            raise ToolFailed(outcome.error) from outcome.cause
        try:
            return type_conversion.convert(
                outcome.value, tool.returns, what=f"the result of {tool.name}"
            )
        except UnsupportedValue as error:
            raise ToolFailed(f"{tool.name} happened, but {error}") from error

    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: type[T],
        timeout: float | None = None,
        default: T = UNSET,
        name: str = "",
    ) -> T: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        choices: Sequence[T],
        timeout: float | None = None,
        default: T = UNSET,
        name: str = "",
    ) -> T: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        timeout: float | None = None,
        default: Any = UNSET,
        name: str = "",
    ) -> Any: ...
    @_noticed
    async def ask(
        self,
        prompt: str,
        *,
        schema: Any = None,
        choices: Sequence[Any] | None = None,
        timeout: float | None = None,
        default: Any = UNSET,
        name: str = "",
    ) -> Any:
        """Ask a person, and resume when there is an answer; nothing is held meanwhile.

        `schema` is the type (or JSON Schema) of an answer, `choices` are all that can be answered.
        After `timeout` seconds `default` is the answer; without one NoAnswer is raised. The
        question is listed with its `name`, for those who answer by program.
        """
        self._gate.check_own_task("run.ask()")
        return await self._waited(
            self._waiting.ask(
                prompt, schema=schema, choices=choices, timeout=timeout, default=default, name=name
            )
        )

    @_noticed
    async def sleep(self, *, seconds: float | None = None, until: datetime | None = None) -> None:
        """Resume later, after seconds or months, on any worker."""
        self._gate.check_own_task("run.sleep()")
        await self._waited(self._waiting.sleep(seconds=seconds, until=until))

    @overload
    async def signal(
        self,
        name: str,
        kind: type[T],
        *,
        timeout: float | None = None,
        until: datetime | None = None,
        default: T = UNSET,
    ) -> T: ...
    @overload
    async def signal(
        self,
        name: str,
        *,
        timeout: float | None = None,
        until: datetime | None = None,
        default: Any = UNSET,
    ) -> Any: ...
    @_noticed
    async def signal(
        self,
        name: str,
        kind: Any = Any,
        *,
        timeout: float | None = None,
        until: datetime | None = None,
        default: Any = UNSET,
    ) -> Any:
        """Return the next value sent with `hf.signal(run_id, name, value)`, early ones first.

        After `timeout` seconds, or at `until`, it is `default`; without one NoAnswer is raised.
        """
        self._gate.check_own_task("run.signal()")
        return await self._waited(
            self._waiting.signal(name, kind=kind, timeout=timeout, until=until, default=default)
        )

    @overload
    async def peer(
        self,
        peer: Agent[..., T],
        given: Any = None,
        /,
        *,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        subject: str = "",
    ) -> T: ...
    @overload
    async def peer(
        self,
        peer: str,
        given: Any = None,
        /,
        *,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        subject: str = "",
    ) -> Any: ...
    @_noticed
    async def peer(
        self,
        peer: str | Agent[..., Any],
        given: Any = None,
        /,
        *,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        subject: str = "",
    ) -> Any:
        """Let another agent work on an input, and return its result.

        Nothing is held meanwhile. After `timeout` seconds (setting peer_timeout_seconds) without
        a sign of life PeerTimedOut is raised, and the peer is asked to stop. They begin when a
        worker takes the peer's run, and anew with each of its checkpoints; `queue_timeout` bounds
        the time before. `subject` is what its run is about, to list runs of one store by.
        """
        self._gate.check_own_task("run.peer()")
        call = self._peers.call(
            peer, given, timeout=timeout, queue_timeout=queue_timeout, subject=subject
        )
        return await self._waited(call)

    async def report(self, said: object) -> bool:
        """Report to the caller of this run how far it is; the caller waits longer from now on.

        False if nobody waits for it. What is said is not kept on the journal.
        """
        self._gate.check()
        return await self._peers.report(said)

    @property
    def artifacts(self) -> Log[Any]:
        """What this run and its peers have produced, in the order of the calls.

        The caller of this run gets it with the answer.
        """
        return self._peers.artifacts

    @property
    def flags(self) -> Value[dict[str, Any]]:
        """What this run and its peers have noted by name; given to its caller too."""
        return self._peers.flags

    @overload
    async def gather(
        self, one: Coroutine[Any, Any, T], two: Coroutine[Any, Any, T2], /
    ) -> tuple[T, T2]: ...
    @overload
    async def gather(
        self,
        one: Coroutine[Any, Any, T],
        two: Coroutine[Any, Any, T2],
        three: Coroutine[Any, Any, T3],
        /,
    ) -> tuple[T, T2, T3]: ...
    @overload
    async def gather(self, *calls: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...
    async def gather(self, *calls: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
        """Make several calls of the run at once; all of them end before one suspends the run."""
        self._gate.check_own_task("run.gather()")
        gather = self._turn.places.next_gather()
        tasks = [asyncio.create_task(_branch(call, gather, at)) for at, call in enumerate(calls)]
        for task in tasks:
            self._gate.add_branch(task)
        errors = await end_all(tasks)
        ways = [*self._gate.branch_ways, *exit_reasons_of(errors)]
        if ways:
            self._gate.leaving = Suspend(first_exit(ways))
            self._gate.check()
        if errors:
            raise first_error(errors)
        return tuple(task.result() for task in tasks)

    async def checkpoint(self, *, phase: str = "", label: str = "") -> Checkpoint | None:
        """End the turn: store what changed. From here on the run begins after a crash.

        None if the agent's cadence passes over this end, and the turn continues; never so for a
        checkpoint with a label. A checkpoint that was begun is stored, also if a time limit
        (`asyncio.timeout`) ends the call: only the answer is lost.
        """
        self._gate.check_own_task("run.checkpoint()", in_branch=False)
        if self._gate.is_concurrent:
            raise MisuseError("run.checkpoint() cannot end a turn while run.gather() works")
        with self._held.stage.joining():
            return await finish_first(self._end_turn(phase, label))

    async def _end_turn(self, phase: str, label: str) -> Checkpoint | None:
        turn = self._turn
        if turn.is_counted:
            turn.context_usage.end_turn()
        trigger = self._exit.due() if turn.may_hand_over else None
        must = bool(label or turn.stop_note or trigger)
        if not (turn.is_due_always or turn.pace.end_turn(must=must)):
            turn.leave_if_stopping()
            return None
        try:
            turn.check_claimed()
            if not turn.past.is_blank:
                await turn.past.give_up_kept(turn.context)
            if trigger is not None:
                await self._exit.leave(trigger, label)
            store = self._store_or_keep if turn.keeps_in_memory else self._held.checkpoint
            stored = await store(phase=phase, label=label)
        except HoldfastError as error:
            self._gate.leave(error)
        if stored is None:
            turn.pace.pass_over()
            turn.leave_if_stopping()
            return None
        if self._is_fresh and self.continuation is not None:
            faults.point("handoff.continued")
        self._is_fresh = False
        turn.begin_next()
        # Somebody may have asked for it meanwhile: the commit was the first to see that.
        self._exit.is_clean = True
        if turn.may_hand_over:
            await self._exit.leave_between_turns()
        if turn.stop_note:
            turn.leave_if_stopping()
        return stored

    async def _store_or_keep(self, *, phase: str, label: str) -> Checkpoint | None:
        """Store the turn; None if the store is away, and the run continues without it."""
        try:
            return await self._held.checkpoint(phase=phase, label=label)
        except OutcomeUnknown:
            # Nothing can be added to what may be stored.
            stored = partial(self._held.checkpoint, phase=phase, label=label)
            return await retry_while_unavailable(self._turn.context, stored)
        except UnavailableError as error:
            log.warning("run %s goes on in memory, the store is away: %s", self.run_id, error)
            return None

    def hand_over(self, to: str = "", note: str = "") -> None:
        """Ask that a fresh context continues after this turn, of this agent or the one named."""
        self._gate.check()
        self._turn.context_usage.wish.ask(to, note)

    async def blob(self, blob_id: str) -> str:
        """The whole text of a result that was cut because it was long."""
        self._gate.check()
        return await Blobs(self._turn).read(blob_id)

    async def _step(
        self,
        kind: str,
        function: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        gate = self._gate
        if gate.leaving is not None or gate.is_closed:
            gate.check("run.model()" if kind else "run.step()")
        result = await self._steps.call(kind, function, args, kwargs)
        if gate.leaving is not None or gate.is_closed:
            gate.check()
        return result

    async def _waited(self, waiting: Coroutine[Any, Any, T]) -> T:
        try:
            return await waiting
        except (ConflictError, UnavailableError, IntegrityError, TurnDiverged) as error:
            if isinstance(error, NoAnswer):
                raise
            self._gate.leave(error)

    def _view(self, name: str, kind: Any, form: type[Any]) -> Any:
        if name.startswith(OWN_PARTS):
            raise MisuseError(f"parts named {OWN_PARTS}… are kept by Holdfast; choose another name")
        view = self._views.get(name)
        if view is None:
            return None
        if not isinstance(view, form) or view.kind != kind:
            raise MisuseError(
                f"{name!r} was used as {view!r} of {type_conversion.shown(view.kind)} before"
            )
        return view

    def _remember(self, name: str, view: T) -> T:
        self._views[name] = view  # pyright: ignore[reportArgumentType] - a log or a value
        self._turn.views.append(view)  # pyright: ignore[reportArgumentType] - a log or a value
        return view


def turn_of(run: Run) -> Turn:
    """The turn of a run, for what Holdfast itself does in an agent's code."""
    return run._turn  # pyright: ignore[reportPrivateUsage] - its own module


async def make_room(run: Run, talk: object) -> None:
    """Leave the run to a fresh context if a model that is given `talk` would see too much."""
    await run._exit.make_room(talk)  # pyright: ignore[reportPrivateUsage] - its own module


async def leave_if_due(run: Run) -> None:
    """Leave the run to a fresh context before its first turn, if there is a reason."""
    await run._exit.leave_if_due()  # pyright: ignore[reportPrivateUsage] - its own module


def items_of(run: Run, name: str) -> list[Any]:
    """Return the current items of a run's log, also those of this turn, as plain data."""
    view = run._views.get(name)  # pyright: ignore[reportPrivateUsage] - its own module
    if isinstance(view, Log):
        return [codec.decode(codec.encode(item)) for item in view]
    stored = run._held.part(name)  # pyright: ignore[reportPrivateUsage] - its own module
    return cast("list[Any]", stored) if isinstance(stored, list) else []


async def _branch(call: Coroutine[Any, Any, T], gather: int, index: int) -> T:
    enter_branch(gather, index)
    return await carried(call)
