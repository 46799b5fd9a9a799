"""The work of one process: create runs, start passes over them, and wait until the passes end.

A pass is one task that works on a held run. This module keeps a strong reference to each task. A
caller that waits for a run holds no lease. It starts a pass only if no other worker holds the run.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from holdfast import codec
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent, Agents
from holdfast.agents.exits.interruptions import ABANDONED
from holdfast.agents.handoff.protocol import HandoffProtocol
from holdfast.agents.turn import child_starts
from holdfast.agents.turn.views import UNSET
from holdfast.agents.work import unstored_run
from holdfast.agents.work.executor import Ending, Pass
from holdfast.agents.work.session_pass import SessionPass
from holdfast.agents.work.suspects import SuspectLane
from holdfast.clock import MICROSECONDS
from holdfast.engine.budgets.costs import Budget
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.heartbeat import CURRENT_RUN
from holdfast.engine.leases.leases import Leases
from holdfast.engine.leases.trials import LOOK_SECONDS
from holdfast.engine.reading import turns
from holdfast.engine.runs import Runs, create_run
from holdfast.engine.writing import unheld_runs
from holdfast.errors import (
    Fenced,
    HoldfastError,
    IllegalMove,
    InputDiffers,
    IntegrityError,
    LeaseHeld,
    RunEnded,
    RunExists,
    UnsupportedValue,
)
from holdfast.kernel import leases as kernel_leases
from holdfast.kernel.journal import Draft
from holdfast.kernel.peers import CANCELS, STORE
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.telemetry import log

_TAKEN: Final = (LeaseHeld, IllegalMove, RunEnded, Fenced)
"""Another caller has just leased, ended or blocked the run."""
_BREAK_OFF_SECONDS: Final = 15.0
_MAX_HELPED_PASSES: Final = 16
_CHILD_SCAN_LIMIT: Final = 1000


class Work:
    """Starts, watches and ends the passes of this process."""

    def __init__(
        self,
        context: Context,
        leases: Leases,
        runs: Runs,
        agents: Agents,
        handoffs: HandoffProtocol | None = None,
    ) -> None:
        self.context = context
        self._handoffs = handoffs
        self.agents = agents
        self._leases = leases
        self._runs = runs
        self._passes: dict[asyncio.Task[Ending], Pass] = {}
        self._helping: dict[asyncio.Task[Ending], str] = {}
        self._taking: set[str] = set()
        self.suspects = SuspectLane(
            self._passes.values(),
            trial_seconds=context.settings.lease_seconds,
            trials=leases.trials,
        )
        self._trials: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def create(
        self,
        agent: Agent[..., Any],
        given: Mapping[str, Any],
        run_id: str | None,
        *,
        parent_id: str = "",
        subject: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> RunRow:
        """Create a run of an agent, or return the existing run if its input is the same.

        Raises InputDiffers if the existing run has another input, agent or owner.
        """
        self.agents.add(agent)
        agent.arguments_of(
            type_conversion.plain(given, what="input")
        )  # raises for invalid input before the id is used
        create = self._runs.create
        if parent_id:
            digest = codec.canonical_digest(given, name="input")
            start = await child_starts.place(parent_id, agent.name, digest, run_id)
            if start is not None and start.exists:
                return await self._runs.get(start.run_id)
            if start is not None:
                run_id, create = start.run_id, partial(create_run, self.context, former=start.item)
        try:
            return await create(
                run_id,
                agent=agent.name,
                input=given,
                parent_id=parent_id,
                subject=subject,
                owner=owner,
                budget=budget,
            )
        except RunExists:
            assert run_id is not None, "an id that was just made is free"
            return await self._existing(agent, given, run_id, subject=subject, owner=owner)

    async def begin(
        self,
        agent: Agent[..., Any],
        given: Mapping[str, Any],
        run_id: str | None,
        *,
        owner: str = "",
        budget: Budget | None = None,
    ) -> "tuple[RunRow, asyncio.Task[Ending] | None]":
        """Create a run as `create` does, and start a pass over it: one commit does both.

        No pass is returned if the run exists, or none may start beside a suspect.
        """
        if self.suspects.is_closed:
            run = await self.create(agent, given, run_id, owner=owner, budget=budget)
            return run, None
        self.agents.add(agent)
        arguments = agent.arguments_of(type_conversion.plain(given, what="input"))
        chosen = unheld_runs.choose_id(run_id)
        self._taking.add(chosen)
        try:
            held = await self._leases.create(
                chosen, agent=agent.name, input=given, owner=owner, budget=budget
            )
        except RunExists:
            return await self._existing(agent, given, chosen, owner=owner), None
        finally:
            self._taking.discard(chosen)
        return held.run, self.start_pass(held, arguments=arguments)

    async def _existing(
        self,
        agent: Agent[..., Any],
        given: Mapping[str, Any],
        run_id: str,
        *,
        subject: str = "",
        owner: str = "",
    ) -> RunRow:
        """Return the run that has an id already, if it was started in the same way."""
        found = await self._runs.get(run_id)
        if owner and found.owner != owner:
            raise InputDiffers(f"the run id {run_id!r} is taken; choose another run_id") from None
        begun_by = await turns.begun_by(self.context, found)
        if begun_by == agent.name and await self._is_same_input(agent, found, given):
            return found
        what = "input" if begun_by == agent.name else f"agent ({begun_by!r})"
        # A run about a subject, such as a workflow's, is not a conversation.
        talk = "" if subject else ", or use hf.session() for a conversation"
        raise InputDiffers(
            f"run {run_id!r} was started with another {what}; choose another run_id{talk}"
        ) from None

    async def _is_same_input(
        self, agent: Agent[..., Any], run: RunRow, given: Mapping[str, Any]
    ) -> bool:
        if run.input_digest == codec.canonical_digest(given, name="input"):
            return True
        # The same input may be stored in another form: a single value without its name.
        try:
            stored = agent.arguments_of(await turns.input_of(self.context, run.run_id))
            asked = agent.arguments_of(type_conversion.plain(given))
            return type_conversion.plain(agent.with_defaults(stored)) == type_conversion.plain(
                agent.with_defaults(asked)
            )
        except UnsupportedValue:
            return False

    async def take_in(self, run_id: str, created: Draft, given: Any) -> bool:
        """Start a pass over a run that is not stored yet, and wait until the run is stored.

        Returns False if the pass ended without storing it, or none may start beside a suspect.
        """
        await self._leases.stay_alive(run_id)
        if self.suspects.is_closed:
            return False
        stored = asyncio.Event()
        held = unstored_run.hold(self.context, run_id, created, on_stored=stored.set)
        self._leases.orphans.held[held] = held.version
        task = self.start_pass(held, type_conversion.plain(given, what="input"))
        waiting = asyncio.create_task(stored.wait())
        try:
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return stored.is_set()

    def start_pass(
        self, held: LeasedRun, given: Any = UNSET, *, arguments: dict[str, Any] | None = None
    ) -> "asyncio.Task[Ending]":
        """Start a pass over a held run, in a separate task.

        The input is read unless it is `given`, or the `arguments` that were made of it are.
        """
        abandon = self._leases.orphans.abandon
        working = SessionPass(
            self.context,
            self.agents,
            held,
            abandon=abandon,
            given=given,
            arguments=arguments,
            handoffs=self._handoffs,
        )
        task = asyncio.create_task(self._play(working), name=f"holdfast run {held.run_id}")
        self._passes[task] = working
        if held.run.lost and kernel_leases.is_suspect(held.run):
            self.suspects.trial = working
            self._trials.add(trial := asyncio.create_task(self._end_trial(held.run_id)))
            trial.add_done_callback(self._trials.discard)
        task.add_done_callback(self._passes.pop)
        if self._watching is None or self._watching.done():
            ticket = self.context.wakeups.ticket(CANCELS[0])
            self._watching = asyncio.create_task(self._watch(ticket))
        return task

    def agent_of(self, task: "asyncio.Task[Ending]") -> str:
        """Return the agent that a running pass works for."""
        return self._passes[task].held.run.agent

    async def _end_trial(self, run_id: str) -> None:
        """Wait until the suspect has proven itself or ended, then end its trial.

        During the trial, a loss of this worker is blamed on that run alone.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.suspects.is_closed:
                return await self._leases.end_trial(run_id)

    async def _play(self, working: Pass) -> Ending:
        """Run a pass. Then keep the state of a waiting run, and deliver a reply or handoff."""
        held, leased = working.held, working.leased
        CURRENT_RUN.set(leased.run_id)
        ending = await working.play()
        run = held.run
        if run.status is RunStatus.WAITING:
            self._leases.warm.keep(run.run_id, held.saver.parts)
        if run.status is RunStatus.COMPLETED and run.reply_to == STORE:
            await self._leases.outbox.deliver_reply(held, leased.lease_seq)
        elif run.reply_to or run.handoff:
            await self._leases.outbox.deliver_if_due()
        return ending

    async def _watch(self, ticket: int) -> None:
        """While passes run, interrupt those whose run was cancelled or taken by another worker.

        Without this, a pass would find that out only at its next commit. `ticket` was taken when
        the first of them began.
        """
        wakeups, pause = self.context.wakeups, self.context.settings.wakeup_poll_seconds
        while True:
            await wakeups.wait(CANCELS[0], ticket, timeout=pause)
            ticket = wakeups.ticket(CANCELS[0])
            if not self._passes:
                return
            try:
                await self._interrupt_lost()
            except HoldfastError as error:
                log.warning("it could not be seen which runs were cancelled: %s", error)

    async def _interrupt_lost(self) -> None:
        held = await self.context.store.runs.held_by(self.context.worker)
        leases = {(run.run_id, run.lease_seq) for run in held}
        for task, working in list(self._passes.items()):
            lease = (working.run_id, working.lease_seq)
            if not working.lease_seq or lease in leases or not await self._is_lost(*lease):
                continue
            if not working.is_interrupted and not working.is_leaving:
                working.is_interrupted = True
                task.cancel()

    async def _is_lost(self, run_id: str, lease_seq: int) -> bool:
        """Return whether a lease was ended from outside its pass: by a takeover or a cancel."""
        run = await self.context.store.runs.get(run_id)
        if run is None:
            return False  # it is not stored yet
        is_taken = run.status is RunStatus.RUNNING and run.lease_seq != lease_seq
        return is_taken or run.status is RunStatus.CANCELLED

    async def try_to_advance(self, run: RunRow) -> "asyncio.Task[Ending] | None":
        """Start a pass over a due run if its agent is known here. Returns None if none starts."""
        if any(working.run_id == run.run_id for working in self._passes.values()):
            return None
        is_due = run.status is RunStatus.READY and run.ready_at <= self.context.now()
        if not is_due or run.agent not in self.agents or run.run_id in self._taking:
            return None
        if not self.suspects.may_begin(run):
            return None
        if kernel_leases.is_suspect(run):
            return await self.try_suspect(run.run_id) if self.may_try_suspects else None
        self._taking.add(run.run_id)
        try:
            return self.start_pass(await self._leases.take(run.run_id, only_ready=True))
        except _TAKEN:
            return None
        finally:
            self._taking.discard(run.run_id)

    @property
    def may_try_suspects(self) -> bool:
        """Whether a suspect may start: each run here has proven itself, and none is being taken."""
        return not self._taking and self.suspects.is_clear and not self.suspects.is_closed

    async def try_suspect(self, run_id: str) -> "asyncio.Task[Ending] | None":
        """Start a pass over a suspect if it is still ready. No other run starts meanwhile."""
        self.suspects.is_reserved = True
        try:
            return self.start_pass(await self._leases.take_suspect(run_id))
        except _TAKEN:
            return None
        finally:
            self.suspects.is_reserved = False

    async def help_peers(self, run: RunRow, topic: str = "") -> None:
        """Start passes over the peers that a run waits for, if their agents are known here."""
        topic = topic or f"run:{run.run_id}"
        if run.status is not RunStatus.WAITING or len(self._passes) >= _MAX_HELPED_PASSES:
            return
        for peer in await self.context.store.runs.of_peers(run.run_id, _CHILD_SCAN_LIMIT):
            await self.help_peers(peer, topic)
            if len(self._passes) >= _MAX_HELPED_PASSES:
                return
            try:
                task = await self.try_to_advance(peer)
            except IntegrityError:
                continue  # the peer's run is damaged, and blocked by now; the caller's is intact
            if task is not None:
                self._helping[task] = topic
                task.add_done_callback(self._helped)

    def _helped(self, task: "asyncio.Task[Ending]") -> None:
        self.context.wakeups.notify([self._helping.pop(task)])

    async def pause(self, run: RunRow, ticket: int, *, at_most: float) -> None:
        """Do the due work of all runs, then wait `at_most` seconds for a change of this run."""
        seconds = min(at_most, await self._leases.tend())
        if run.status is RunStatus.READY and run.ready_at > self.context.now():
            seconds = min(seconds, (run.ready_at - self.context.now()) / MICROSECONDS)
        await self.context.wakeups.wait(f"run:{run.run_id}", ticket, timeout=max(0.001, seconds))

    def hand_back(self, note: str) -> None:
        """Ask every pass to release its run at the end of its turn."""
        for working in self._passes.values():
            working.hand_back(note)

    def hand_back_one(self, task: "asyncio.Task[Ending]", note: str) -> None:
        """Ask a pass that no caller awaits any more to release its run at the end of its turn."""
        if task in self._passes:
            self._passes[task].hand_back(note)
            task.add_done_callback(_log_if_broken)

    def hand_back_helped(self, run_id: str, note: str) -> None:
        """Do the same for the passes over the peers of a run."""
        for task, topic in self._helping.items():
            if topic == f"run:{run_id}":
                self.hand_back_one(task, note)

    async def finish_passes(self, *, timeout: float | None = None) -> bool:
        """Wait until all passes have ended. Returns False if some still run after the timeout."""
        if self._passes:
            await asyncio.wait(set(self._passes), timeout=timeout)
        return not self._passes

    async def cancel_passes(self, reason: str | None = None) -> None:
        """Cancel every pass at once. Mutating calls that are interrupted become unknown.

        Waits for tools that run in threads, unless the reason is ABANDONED.
        """
        for task in self._passes:
            task.cancel(reason)
        await self.finish_passes()

    async def break_off(self) -> None:
        """Cancel every pass. After `_BREAK_OFF_SECONDS`, abandon code that has not stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BREAK_OFF_SECONDS):
                await self.cancel_passes(ABANDONED)
        if left := ", ".join(sorted(working.run_id for working in self._passes.values())):
            log.error("the code of these runs does not stop; it is left behind: %s", left)

    async def close(self) -> None:
        """Let passes end with their turns. After `shutdown_seconds`, cancel the rest."""
        self.hand_back("the process is ending")
        if not await self.finish_passes(timeout=self.context.settings.shutdown_seconds):
            await self.break_off()
        beside = [*self._trials, *([] if self._watching is None else [self._watching])]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def _log_if_broken(task: "asyncio.Task[Ending]") -> None:
    """Log the error of a pass that no caller awaits any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s broke", task.get_name(), exc_info=error)
