"""`Workflow`: carries out another workflow, in a run of its own below this one."""

from typing import Any, ClassVar

import msgspec

from holdfast.workflows.blocks.contract import LONG_SECONDS, BlockRun


class NestedInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`workflow` names another definition, `inputs` is what that is given."""

    workflow: str
    inputs: dict[str, Any] = {}


class Nested:
    name: ClassVar[str] = "Workflow"
    inputs: ClassVar[type[msgspec.Struct]] = NestedInputs
    waits: ClassVar[bool] = True
    takes_secrets: ClassVar[bool] = False

    async def execute(self, block: BlockRun, inputs: NestedInputs) -> Any:
        agent, given = block.nested(inputs.workflow, inputs.inputs)
        seconds = LONG_SECONDS if block.timeout is None else block.timeout
        return await block.run.peer(agent, given, timeout=seconds, subject=inputs.workflow)
