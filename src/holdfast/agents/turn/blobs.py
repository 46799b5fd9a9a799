"""Results too long for a model: it reads the beginning, the whole is kept on the run's record."""

from typing import Final

from holdfast import codec
from holdfast.agents.turn.turn import Turn
from holdfast.engine.reading import turns
from holdfast.errors import MisuseError, NotFoundError

_PREFIX: Final = "blob:"


class Blobs:
    """The long results of one run, and of those it was forked from.

    A blob's id is the seq of its entry; in a fork its run's id precedes it.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._context = turn.context
        self._held = turn.held

    async def cut(self, name: str, text: str, limit: int) -> str:
        """Return a tool's result as a model is given it: at most `limit` characters of it."""
        if len(text) <= limit:
            return text
        seq = await self._keep(f"{_PREFIX}{name}"[:255], text)
        return (
            f"{text[:limit]}\n[{limit:,} of {len(text):,} characters are shown; the whole is kept "
            f"as blob {self._id_of(seq)}]"
        )

    def _id_of(self, seq: int) -> str:
        run = self._held.run
        return f"{run.run_id}:{seq}" if run.forked_from else str(seq)

    async def read(self, blob_id: str) -> str:
        run_id, _, seq = blob_id.rpartition(":")
        if not seq.isdecimal():
            raise MisuseError(f"{blob_id!r} is not a blob's id; it is what is shown after `blob`")
        source = await self._source(run_id)
        return await turns.step_result(self._context, source, int(seq), prefix=_PREFIX)

    async def _source(self, wanted: str) -> str:
        """The run that a blob is of: the named one of those it was forked from, or the first."""
        run = self._held.run
        while run.forked_from and run.run_id != wanted:
            origin = await self._context.store.runs.get(run.forked_from)
            if origin is None:
                raise NotFoundError(f"there is no run {run.forked_from!r}, which has the blob")
            run = origin
        if wanted and run.run_id != wanted:
            raise NotFoundError(f"{wanted!r} is not a run that {self._held.run_id} was forked from")
        return run.run_id

    async def _keep(self, name: str, text: str) -> int:
        digest = codec.sha256(text.encode("utf-8", "replace"))
        recorded = self._turn.memo.step(name, digest)
        if recorded is not None:
            return recorded.seq
        ref = self._turn.stage_step(name, text, args_digest=digest)
        await self._held.stage.flush()
        return self._held.stage.seq_of(ref)
