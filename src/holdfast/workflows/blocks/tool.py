"""`Tool`: calls a registered tool. Its own policy says how the call is made safe."""

import functools
from typing import Any, ClassVar, cast

import msgspec

from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.tools import Happened, Tool
from holdfast.errors import BlockFailed, MisuseError, NotDone, UnsupportedValue
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.blocks.contract import BlockRun


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
    """Return a tool as a block calls it: it gets the values of secrets, and returns none of them.

    Two blocks that call it with the same arguments make two calls, unless its own key says else;
    approving one of them answers that block.
    """
    policy, secrets = tool.policy, block.secrets
    if block.timeout is not None:
        policy = msgspec.structs.replace(policy, limit_seconds=block.timeout)
    if policy.key is None and policy.effect != "read":
        policy = msgspec.structs.replace(policy, repeat=True)
    if policy.approval is not None:
        named = msgspec.structs.replace(policy.approval, name=block.asks_as)
        policy = msgspec.structs.replace(policy, approval=named)
    if policy.verify is not None:
        policy = msgspec.structs.replace(policy, verify=_revealing(policy.verify, secrets))
    return Tool(
        _revealing(tool.function, secrets),
        name=tool.name,
        description=tool.description,
        policy=policy,
        takes=tool.takes,
    )


def _revealing(function: Any, secrets: Secrets) -> Any:
    if type_conversion.is_async(function):

        @functools.wraps(function)
        async def call(**given: Any) -> Any:
            try:
                return _redacted(await function(**_revealed(function, given, secrets)), secrets)
            except Exception as error:
                raise secrets.redact_error(error) from None

        return call

    @functools.wraps(function)
    def call_blocking(**given: Any) -> Any:
        try:
            return _redacted(function(**_revealed(function, given, secrets)), secrets)
        except Exception as error:
            raise secrets.redact_error(error) from None

    return call_blocking


def _revealed(function: Any, given: dict[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Return arguments with the values of secrets, also within models and dataclasses."""
    try:
        return {name: _with_values(function, name, value, secrets) for name, value in given.items()}
    except BlockFailed as error:
        raise NotDone(str(error)) from None


def _with_values(function: Any, name: str, value: Any, secrets: Secrets) -> Any:
    plain = type_conversion.plain(value, what=name)
    secrets.check(plain)
    if not secrets.names_in(plain):
        return value
    kind = type_conversion.hints_of(function, what="the tool").get(name, Any)
    return type_conversion.convert(secrets.reveal(plain), kind, what=name)


def _redacted(result: Any, secrets: Secrets) -> Any:
    """Return a result without secrets, as plain data, or as its text if it is not data."""
    if isinstance(result, NotDone):
        return secrets.redact_error(result)
    if isinstance(result, Happened):
        return Happened(_redacted(cast("Happened[Any]", result).result, secrets))
    try:
        return secrets.redact(type_conversion.plain(result))
    except UnsupportedValue:
        return secrets.redact(str(result))
