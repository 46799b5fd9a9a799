"""Calls that blocks make outside, as effects: on record before and after, and never blindly again.

What is stored of a call has references in place of secrets: their values are put in by its
function, and taken out of what it returns and raises.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

from holdfast.agents.definitions.tools import Policy, Tool, text_of
from holdfast.errors import BlockFailed, NotDone, ToolFailed
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.blocks.contract import BlockRun

EffectClass = Literal["read", "idempotent", "mutate"]
MARGIN_SECONDS: Final = 6.0
"""How much later than the block itself its call is given up: doubt is for crashes only."""

VERIFY_SECONDS: Final = 300.0
"""How long a `verify` that cannot tell is asked again before a person is asked."""


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
    """Make a call that is on record; raises ToolFailed with what it raised if it did not happen.

    A function that raises BlockFailed or NotDone has done nothing outside.
    """
    policy = Policy(
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
    """The outputs of a call; what a person said of it (`effects resolve --happened`) among them."""
    if isinstance(found, dict):
        return {**form, **cast("dict[str, Any]", found)}
    told = found if isinstance(found, str) else "" if found is None else text_of(found)
    return {**form, text: told}


@contextmanager
def telling_no(secrets: Secrets) -> Generator[None]:
    """Nothing is raised out of this that tells a secret."""
    try:
        yield
    except Exception as error:
        raise secrets.redact_error(error) from None
