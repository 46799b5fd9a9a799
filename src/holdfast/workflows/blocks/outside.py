"""External calls of blocks, as effects: recorded before and after, never blindly repeated.

The record of a call has references in place of secrets. Its function puts their values in, and
removes them from what it returns and raises.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

from holdfast.agents.definitions.tool_policy import ToolPolicy
from holdfast.agents.definitions.tools import Tool, text_of
from holdfast.errors import BlockFailed, NotDone, ToolFailed
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.blocks.contract import BlockRun

EffectClass = Literal["read", "idempotent", "mutate"]
MARGIN_SECONDS: Final = 6.0
"""How much later than the block its call times out: only a crash leaves its outcome open."""

VERIFY_SECONDS: Final = 300.0
"""How long an inconclusive `verify` is retried before a person is asked."""


class CutOff(Exception):
    """A call was seen to end, but not by itself: what it had done by then is not known."""


async def call(
    block: BlockRun,
    function: Callable[..., Any],
    *,
    name: str,
    effect: EffectClass,
    verify: Callable[..., Any] | None = None,
    given: Mapping[str, Any],
) -> Any:
    """Make a recorded call. Raises ToolFailed with what it raised if it did not happen.

    A function that raises BlockFailed or NotDone has done nothing outside.
    """
    policy = ToolPolicy(
        effect=effect,
        repeat=effect != "read",
        verify=verify,
        not_done_on=(BlockFailed,),
        limit_seconds=block.seconds + MARGIN_SECONDS,
        verify_seconds=VERIFY_SECONDS,
    )
    tool = Tool(function, name=name, description=f"A {name} block.", policy=policy)
    try:
        return await block.run.call(tool, **given)
    except ToolFailed as error:
        said = str(error).removeprefix(f"{name} raised ")
        for kind in (NotDone, BlockFailed, CutOff):
            said = said.removeprefix(f"{kind.__name__}: ")
        raise ToolFailed(said) from error


def in_form(found: Any, form: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the outputs of a call, or what a person reported (`effects resolve --happened`)."""
    if isinstance(found, dict):
        return {**form, **cast("dict[str, Any]", found)}
    content = found if isinstance(found, str) else "" if found is None else text_of(found)
    return {**form, text: content}


@contextmanager
def telling_no(secrets: Secrets) -> Generator[None]:
    """Redact the secrets in every error that is raised inside."""
    try:
        yield
    except Exception as error:
        raise secrets.redact_error(error) from None
