"""`Prompt`: asks a person, and gives the answer. It may take days; nothing is held meanwhile."""

from typing import Any, ClassVar

import msgspec

from holdfast.agents.turn.views import UNSET
from holdfast.workflows.blocks.contract import BlockRun


class PromptInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`schema` is the JSON Schema of an answer, `choices` are all that can be answered.

    With a `timeout` of the block, `default` is the answer when the time is over; without one the
    block has failed.
    """

    prompt: str
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    default: Any = msgspec.UNSET


class Prompt:
    name: ClassVar[str] = "Prompt"
    inputs: ClassVar[type[msgspec.Struct]] = PromptInputs
    waits: ClassVar[bool] = True
    takes_secrets: ClassVar[bool] = False

    async def execute(self, block: BlockRun, inputs: PromptInputs) -> dict[str, Any]:
        answer = await block.run.ask(
            inputs.prompt,
            schema=inputs.schema,
            choices=inputs.choices,
            timeout=block.timeout,
            default=UNSET if inputs.default is msgspec.UNSET else inputs.default,
            name=block.asks_as,
        )
        return {"response": answer}
