"""The checkpointer: durable sessions for people who bring their own loop.

A session is a run, its versions are the run's checkpoints, its tool calls are effects. Everything
that a call returns is on disk, and several processes may use one session at once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from holdfast.agents.conversion import type_conversion
from holdfast.agents.turn.calls import usable_id
from holdfast.compat.loops.call_log import CallLog, as_json, iso, storable
from holdfast.compat.loops.held_sessions import Engine, HeldSessions, OwnEngine, check_is_session
from holdfast.engine.checkpoints import State
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import ConflictError, InputDiffers, MisuseError, RunNotFound, StoreClosed
from holdfast.kernel import effects
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import EffectStatus
from holdfast.kernel.runs import ENDED, RunRow
from holdfast.settings import Settings, locate_store, store_url

Ending = Literal["completed", "failed", "cancelled"]

_ENDINGS: Final = ("completed", "failed", "cancelled")
_PAGE: Final = 1000


class _Opened(NamedTuple):
    """An open store and what is held of it; `own` is closed with the checkpointer."""

    engine: Engine
    sessions: HeldSessions
    calls: CallLog
    own: OwnEngine | None


class Checkpointer:
    """Sessions, their checkpoints and their tool calls, in a file or a PostgreSQL database.

    It opens at the first call; `async with` or `close()` ends it. With `hf` it uses a Holdfast that
    is open already, and leaves it open. Any number of tasks and processes may use one session.
    """

    def __init__(
        self,
        db_path: str | Path | None = None,
        *,
        settings: Settings | None = None,
        hf: Engine | None = None,
    ) -> None:
        if hf is not None and (db_path is not None or settings is not None):
            raise MisuseError("give a path or URL (and settings), or an open Holdfast, not both")
        self._where = store_url(None if db_path is None else str(db_path))
        self._settings = settings or Settings()
        self._shared = hf
        self._opened: _Opened | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        if hf is None:
            _make_folder(self._where)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the sessions and close the store; calls from then on raise StoreClosed."""
        async with self._opening:
            self._is_closed = True
            opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            await opened.sessions.close()
        finally:
            if opened.own is not None:
                await opened.own.close()

    async def start_session(
        self,
        session_id: str,
        user_message: str = "",
        system_prompt: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a session, or continue one: `created_at` stays, `updated_at` moves.

        `metadata` is kept from the first start on; another one later raises InputDiffers. A session
        that has ended raises RunEnded. The message and the prompt are not stored here: they belong
        to the transcript.
        """
        engine, sessions, *_ = await self._open()

        async def hold(held: LeasedRun) -> None:
            """Taking the run is all there is to do."""

        await sessions.advance(session_id, hold, metadata=metadata, anew=True)
        if metadata is None:
            return
        kept = (await engine.runs.input(session_id))["metadata"]
        if kept != type_conversion.plain(dict(metadata), what="metadata"):
            raise InputDiffers(f"session {session_id!r} was begun with other metadata: {kept!r}")

    async def end_session(self, session_id: str, status: Ending = "completed") -> None:
        """End a session for good. Ending it the same way again changes nothing."""
        engine, sessions, *_ = await self._open()
        if status not in _ENDINGS:
            raise MisuseError(f"a session ends as one of {', '.join(_ENDINGS)}, not {status!r}")

        async def end(held: LeasedRun) -> None:
            if status == "failed":
                await held.fail("its loop ended it as failed")
            else:
                await held.complete()

        run = await engine.runs.get(session_id)
        check_is_session(run)
        if run.status == status:
            return
        if status == "cancelled":
            await engine.runs.cancel(session_id)
        else:
            await sessions.advance(session_id, end, anew=True)

    async def get_session(self, session_id: str) -> dict[str, Any]:
        """What a session is: its times, its status, its metadata. Raises RunNotFound."""
        engine = (await self._open()).engine
        run = await engine.runs.get(session_id)
        check_is_session(run)
        return {
            "session_id": session_id,
            "created_at": iso(run.created_at),
            "updated_at": iso(await _changed_at(engine, run)),
            "status": str(run.status) if run.status in ENDED else "active",
            "blocked_reason": run.blocked_reason,
            "metadata": (await engine.runs.input(session_id))["metadata"],
        }

    async def save_checkpoint(
        self,
        session_id: str,
        transcript: Sequence[Mapping[str, Any]],
        plan: Mapping[str, Any] | None,
        budget_spent_usd: float,
    ) -> int:
        """Store the whole state as the next version, and return its number: 1, 2, 3 …

        Only what differs from the last version is written. An unknown session is started.
        """
        sessions = (await self._open()).sessions
        state: dict[str, object] = {
            "transcript": list(transcript),
            "plan": plan,
            "budget_spent_usd": float(budget_spent_usd),
        }

        async def save(held: LeasedRun) -> int:
            return (await held.save(state)).version

        return await sessions.advance(session_id, save)

    async def load_latest(self, session_id: str) -> dict[str, Any] | None:
        """Return the newest version or None: transcript, plan, budget_spent_usd, version.

        Raises CheckpointCorrupted rather than return anything that was not saved.
        """
        engine = (await self._open()).engine
        try:
            state = await engine.checkpoints.load(session_id)
        except RunNotFound:
            return None
        return _shown(state) if state.version else None

    async def load_newest_intact(self, session_id: str) -> dict[str, Any] | None:
        """Return the newest version that is intact; record that others were skipped."""
        engine = (await self._open()).engine
        try:
            state = await engine.checkpoints.load_newest_intact(session_id)
        except RunNotFound:
            return None
        return _shown(state) if state.version else None

    async def load_version(self, session_id: str, version: int) -> dict[str, Any]:
        """Any version as it was saved; raises CheckpointNotFound or RunNotFound."""
        engine = (await self._open()).engine
        return _shown(await engine.checkpoints.load(session_id, version))

    async def latest_version(self, session_id: str) -> int:
        """The number of the newest version; 0 if nothing was saved yet."""
        engine = (await self._open()).engine
        newest = await engine.checkpoints.history(session_id, limit=1)
        return newest[0].version if newest else 0

    async def list_versions(self, session_id: str) -> list[dict[str, Any]]:
        """Every version of a session, oldest first: session_id, version, created_at."""
        engine = (await self._open()).engine
        found: list[Checkpoint] = []
        before = None
        while page := await engine.checkpoints.history(session_id, limit=_PAGE, before=before):
            found += page
            before = page[-1].version
        return [
            {"session_id": session_id, "version": c.version, "created_at": iso(c.created_at)}
            for c in reversed(found)
        ]

    async def delete_version(self, session_id: str, version: int, *, note: str = "") -> None:
        """Put a tombstone on a version: it is not loaded any more, later ones are; the last stays.

        Deleting rows instead is found as damage, and nothing is returned in their place.
        """
        engine = (await self._open()).engine
        await engine.checkpoints.delete(session_id, version, note=note)

    async def record_tool_call_issued(
        self,
        session_id: str,
        call_id: str,
        tool_name: str,
        args: Mapping[str, Any],
        idempotency_key: str,
        *,
        limit_seconds: float = 300.0,
    ) -> None:
        """Record the intent of a call. If this returns, the call is yours to make.

        Raises ConflictError if the key is taken: the operation was issued before and may have
        happened, or has happened. Do not make the call then. Nothing is changed by asking again.
        """
        calls = await self.calls()
        request = EffectRequest(
            tool=tool_name,
            args=dict(args),
            call_id=usable_id(call_id),
            key=idempotency_key,
            limit_seconds=limit_seconds,
        )
        begun = await calls.begin(session_id, request)
        if begun.answer != "fresh":
            raise ConflictError(_why_not(begun))

    async def record_tool_call_result(
        self,
        session_id: str,
        call_id: str,
        result_text: str,
        success: bool,
        *,
        idempotency_key: str | None = None,
    ) -> None:
        """Record how a call ended; the same again changes nothing, another end raises IllegalMove.

        `success=False` says that it did not happen: its key is free again. If that is not known,
        leave the call pending, and settle it with `resolve_pending` when somebody knows.
        """
        calls = await self.calls()
        effect = await calls.pick(session_id, call_id, idempotency_key, here=True)
        status = EffectStatus.COMPLETED if success else EffectStatus.NOT_DONE
        if effect.status is status and await calls.text_of(effect) == storable(result_text):
            return
        await calls.settle(effect, status, result_text)

    async def find_completed_call(self, idempotency_key: str) -> dict[str, Any] | None:
        """The call that has done this operation, with its result; None if none has."""
        calls = await self.calls()
        begun = await calls.find(idempotency_key)
        if begun is None or begun.answer != "done":
            return None
        shown = await calls.shown(begun.effect)
        wanted = ("call_id", "tool_name", "args_json", "result_text", "status")
        return {name: shown[name] for name in wanted}

    async def list_tool_calls(self, session_id: str) -> list[dict[str, Any]]:
        """All tool calls of a session, in the order they were issued.

        `status` is issued, completed, failed (it did not happen), or unknown (nobody can tell).
        """
        calls = await self.calls()
        return [await calls.shown(effect) for effect in await calls.of_session(session_id)]

    async def resolve_pending(
        self,
        session_id: str,
        call_id: str,
        *,
        happened: bool,
        result_text: str | None = None,
        idempotency_key: str | None = None,
        by: str = "",
    ) -> None:
        """Record the outcome of a call whose end is unknown; also after its session has ended.

        A call that happened is never repeated and returns its result; one that did not may be made.
        """
        calls = await self.calls()
        effect = await calls.pick(session_id, call_id, idempotency_key, here=False)
        status = EffectStatus.COMPLETED if happened else EffectStatus.NOT_DONE
        text = (result_text or "") if happened else result_text
        await calls.settle(effect, status, text, by=by, note="resolved")

    async def calls(self) -> CallLog:
        """Return the tool calls, for loops and registries that decide by what is recorded."""
        return (await self._open()).calls

    async def _open(self) -> _Opened:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._is_closed:
                raise StoreClosed("this checkpointer was closed; make another one")
            if self._opened is None:
                self._opened = await self._open_once()
            return self._opened

    async def _open_once(self) -> _Opened:
        own = None if self._shared else OwnEngine(self._where, self._settings)
        if own is not None:
            await own.open()
        engine = self._shared or own
        assert engine is not None, "it is shared or its own"
        sessions = HeldSessions(engine)
        return _Opened(engine, sessions, CallLog(engine, sessions), own)


async def check_pending_tool_calls(
    checkpointer: Checkpointer, session_id: str
) -> list[dict[str, Any]]:
    """Calls that were issued and whose outcome is not known: call_id, tool_name, args_json and
    started_at. Verify each, or settle it with `resolve_pending`, before the loop continues."""
    calls = await checkpointer.calls()
    return [
        {
            "call_id": effect.call_id,
            "tool_name": effect.tool,
            "args_json": as_json(await calls.args_of(effect)),
            "started_at": iso(effect.issued_at),
        }
        for effect in await calls.of_session(session_id)
        if effect.status not in effects.SETTLED
    ]


def _make_folder(where: str) -> None:
    backend, path = locate_store(where)
    if backend == "sqlite" and path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def _shown(state: State) -> dict[str, Any]:
    return {
        "transcript": state.get("transcript", []),
        "plan": state.get("plan"),
        "budget_spent_usd": state.get("budget_spent_usd", 0.0),
        "version": state.version,
    }


async def _changed_at(engine: Engine, run: RunRow) -> int:
    """Return when the last entry was written; reads from the last position in an index."""
    newest = await engine.checkpoints.history(run.run_id, limit=1)
    after = max(1, run.lease_seq, run.result_seq, newest[0].seq if newest else 0) - 1
    at = run.created_at
    while page := await engine.journal.read(run.run_id, after=after, limit=_PAGE):
        at, after = page[-1].at, page[-1].seq
    return at


def _why_not(begun: Begun) -> str:
    effect = begun.effect
    what = f"call {effect.call_id!r} ({effect.tool}) of session {effect.run_id!r}"
    if begun.answer == "done":
        return f"{what} has done this already; find_completed_call() gives its result"
    return (
        f"{what} was issued with this key at {iso(effect.issued_at)}, and may have happened. Find "
        "out, then call resolve_pending() with happened=True or happened=False"
    )
