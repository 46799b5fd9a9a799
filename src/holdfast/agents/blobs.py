"""Results too long for a model: it reads the beginning, the whole is kept on the run's record."""

from typing import Any, Final

from holdfast import codec
from holdfast.agents.memo import Memo
from holdfast.agents.record import Record
from holdfast.agents.tools import Tool
from holdfast.engine import turns
from holdfast.engine.context import Context
from holdfast.engine.leased_run import LeasedRun
from holdfast.errors import MisuseError

_PREFIX: Final = "blob:"


class Blobs:
    """The long results of one run. A blob's id is the seq of its entry."""

    def __init__(self, context: Context, held: LeasedRun, record: Record) -> None:
        self._context = context
        self._held = held
        self._record = record
        self._memo = Memo()

    def begin_turn(self, memo: Memo) -> None:
        self._memo = memo

    async def cut(self, tool: Tool[..., Any], text: str) -> str:
        """A result as it is given to a model."""
        limit = tool.policy.max_result_chars
        if len(text) <= limit:
            return text
        seq = await self._keep(f"{_PREFIX}{tool.name}"[:255], text)
        return (
            f"{text[:limit]}\n[{limit:,} of {len(text):,} characters are shown; the whole is kept "
            f"as blob {seq}]"
        )

    async def read(self, blob_id: str) -> str:
        if not blob_id.isdecimal():
            raise MisuseError(f"{blob_id!r} is not a blob's id; it is the number that is shown")
        return await turns.step_result(
            self._context, self._held.run_id, int(blob_id), prefix=_PREFIX
        )

    async def _keep(self, name: str, text: str) -> int:
        digest = codec.sha256(text.encode("utf-8", "replace"))
        recorded = self._memo.step(name, digest)
        if recorded is not None:
            return recorded.seq
        ref = self._record.step(name, text, args_digest=digest)
        await self._held.stage.flush()
        return self._held.stage.seq_of(ref)
