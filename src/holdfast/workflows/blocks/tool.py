"""`Tool`: calls a registered tool. Its own policy says how the call is made safe."""

import functools
from typing import Any, ClassVar

import msgspec

from holdfast.agents import shapes
from holdfast.agents.tools import Tool
from holdfast.errors import BlockFailed, MisuseError
from holdfast.workflows.blocks.contract import BlockRun
from holdfast.workflows.secrets import Secrets


class ToolInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name of the tool, and its arguments."""

    tool: str
    args: dict[str, Any] = {}


class ToolBlock:
    name: ClassVar[str] = "Tool"
    inputs: ClassVar[type[msgspec.Struct]] = ToolInputs
    waits: ClassVar[bool] = True  # a person may have to permit the call
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: ToolInputs) -> dict[str, Any]:
        found = block.tools.get(inputs.tool)
        if found is None:
            block.leave_to_others(f"tool {inputs.tool!r}")
        tool = _of_block(found, block)
        try:
            return {"result": await block.run.call(tool, **inputs.args)}
        except MisuseError as error:
            raise BlockFailed(str(error)) from error


def _of_block(tool: Tool[..., Any], block: BlockRun) -> Tool[..., Any]:
    """A tool as a block calls it: given the values of secrets, and giving none of them back.

    Two blocks that call it with the same arguments mean two calls, unless its own key says else.
    """
    policy, secrets = tool.policy, block.secrets
    if block.timeout is not None:
        policy = msgspec.structs.replace(policy, limit_seconds=block.timeout)
    if policy.key is None and policy.effect != "read":
        policy = msgspec.structs.replace(policy, repeat=True)
    if policy.verify is not None:
        policy = msgspec.structs.replace(policy, verify=_revealing(policy.verify, secrets))
    return Tool(
        _revealing(tool.function, secrets),
        name=tool.name,
        description=tool.description,
        policy=policy,
    )


def _revealing(function: Any, secrets: Secrets) -> Any:
    if shapes.is_async(function):

        @functools.wraps(function)
        async def call(**given: Any) -> Any:
            try:
                return secrets.redact(await function(**secrets.reveal(given)))
            except Exception as error:
                raise _redacted(error, secrets) from None

        return call

    @functools.wraps(function)
    def call_blocking(**given: Any) -> Any:
        try:
            return secrets.redact(function(**secrets.reveal(given)))
        except Exception as error:
            raise _redacted(error, secrets) from None

    return call_blocking


def _redacted(error: Exception, secrets: Secrets) -> Exception:
    """An error without secrets in what it says."""
    error.args = tuple(secrets.redact(list(error.args)))
    return error
