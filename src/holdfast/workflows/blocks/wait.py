"""`Wait`: goes on at a moment, after a while, or when a signal comes."""

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from holdfast.agents.turn.views import UNSET
from holdfast.errors import BlockFailed
from holdfast.workflows.blocks.contract import BlockRun


class WaitInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `seconds`, `until` (a moment with its time zone) and `signal` (a name).

    With a `timeout` of the block, `default` is what a signal gives when the time is over.
    """

    seconds: float | None = None
    until: datetime | None = None
    signal: str | None = None
    default: Any = msgspec.UNSET


class WaitBlock:
    name: ClassVar[str] = "Wait"
    inputs: ClassVar[type[msgspec.Struct]] = WaitInputs
    waits: ClassVar[bool] = True
    takes_secrets: ClassVar[bool] = False

    async def execute(self, block: BlockRun, inputs: WaitInputs) -> dict[str, Any]:
        given = [each for each in (inputs.seconds, inputs.until, inputs.signal) if each is not None]
        if len(given) != 1:
            raise BlockFailed("a Wait block takes one of seconds, until and signal")
        if inputs.signal is None:
            await block.run.sleep(seconds=inputs.seconds, until=inputs.until)
            return {}
        default = UNSET if inputs.default is msgspec.UNSET else inputs.default
        value = await block.run.signal(inputs.signal, timeout=block.timeout, default=default)
        return {"value": value}
