"""Input of a held run from outside: signals to take or answer, and waits to suspend for."""

from collections.abc import Sequence

from holdfast import codec, names
from holdfast.engine.context import Context
from holdfast.engine.waits import WaitSpec, opening
from holdfast.engine.writing.checkpoint_saver import About, CheckpointSaver
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter, WritePlan
from holdfast.errors import IllegalMove
from holdfast.kernel import runs, signals
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal


class Inbox:
    """The signals of one run, for its holder."""

    def __init__(self, context: Context, writer: RunWriter, saver: CheckpointSaver) -> None:
        self._context = context
        self._writer = writer
        self._saver = saver

    async def next(self, name: str) -> Signal | None:
        """Return the oldest signal of a name that was not taken yet."""
        found = await self._context.store.signals.untaken(self._writer.run.run_id, name, limit=1)
        return found[0] if found else None

    async def answer(self, signal_id: str, value: object = None) -> None:
        """Take a signal: its answer and the edits, as a checkpoint before it, are one commit."""
        body = codec.encode(value, name="answer", limit=self._context.settings.max_body_bytes)
        names.check(signal_id, what="signal id")
        try:
            await self._saver.save(About(), then=(signals.take(signal_id, body),))
        except ConditionFailed as failed:
            raise IllegalMove(f"signal {signal_id} was taken before, or never sent") from failed

    async def take(self, signal_id: str, *, place: bytes) -> bool:
        """Take a signal for the code at a place of the turn; False if it was taken meanwhile."""
        body = codec.encode({"place": place}, name="place")

        def decide(run: RunRow, seq: int) -> WritePlan:
            runs.check_leased(run)
            return WritePlan((signals.take(signal_id, body),))

        try:
            await self._writer.advance_patiently(decide)
        except ConditionFailed:
            return False
        return True

    async def wait(self, *wanted: str) -> bool:
        """Suspend the run until a signal of one of these names comes.

        False, and the run stays held, if one came meanwhile.
        """
        specs = [WaitSpec(kind=signals.WAIT_KIND, name=name) for name in wanted]
        return await self.leave_to(specs, mode="any")

    async def leave_to(self, specs: Sequence[WaitSpec], *, mode: str | int = "all") -> bool:
        """Suspend the run for a group of waits, opened in the same commit.

        False, and the run stays held, if a signal that one of them is for came meanwhile.
        """
        wanted = {spec.name for spec in specs if spec.kind == signals.WAIT_KIND}
        heard = dict(self._writer.signalled)
        for name in wanted:
            if await self.next(name) is not None:
                return False
        run, now = self._writer.run, self._context.now()
        opened = opening(specs, run_id=run.run_id, owner=run.owner, mode=mode, now=now)

        def decide(run: RunRow, seq: int) -> WritePlan:
            runs.check_leased(run)
            if any(self._writer.signalled.get(name) != heard.get(name) for name in wanted):
                return WritePlan(())
            waiting = Draft(Kind.RUN_WAITING, runs.Suspended(opened.group_id))
            return WritePlan((opened.draft, waiting), begins=opened.begins)

        return bool(await self._writer.advance_patiently(decide))
