"""`Agent`: lets an agent work on an input, as a peer: in this store, or wherever it is served."""

from typing import Any, ClassVar

import msgspec

from holdfast.workflows.blocks.contract import BlockRun


class AgentInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name of the agent, and what it is given."""

    agent: str
    input: Any = None


class AgentBlock:
    name: ClassVar[str] = "Agent"
    inputs: ClassVar[type[msgspec.Struct]] = AgentInputs
    waits: ClassVar[bool] = True
    takes_secrets: ClassVar[bool] = False

    async def execute(self, block: BlockRun, inputs: AgentInputs) -> dict[str, Any]:
        asked = block.run.peer(
            inputs.agent, inputs.input, timeout=block.timeout, subject=block.asks_as
        )
        return {"result": await asked}
