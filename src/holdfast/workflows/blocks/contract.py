"""What a type of blocks is: a shape of inputs, and a coroutine that carries a block out.

    class Greet:
        name = "Greet"
        inputs = GreetInputs        # a msgspec.Struct: what is given is checked against it
        waits = False
        takes_secrets = False

        async def execute(self, block: BlockRun, inputs: GreetInputs) -> dict[str, Any]:
            return {"text": await block.run.step(greet, inputs.who)}

After a crash, and after each pause, a block that has not ended is carried out again: what must not
be repeated is a step, an effect or a wait of `block.run`, which returns the recorded result.
"""

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn, Protocol

import msgspec

from holdfast.agents.definitions.agent import Agent
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.exits.exit_reasons import BlockExit as Blocked
from holdfast.agents.run import Run, turn_of
from holdfast.kernel.runs import BlockedReason
from holdfast.workflows.access.files import Folder
from holdfast.workflows.access.networks import Networks
from holdfast.workflows.access.secrets import Secrets

DEFAULT_SECONDS: Final = 300.0
"""How long a block that reaches outside may take, if it does not say."""

LONG_SECONDS: Final = 10 * 365 * 86_400.0
"""How long a workflow waits for another, or for a loop: those have their own limits."""


class BlockRun(msgspec.Struct, frozen=True, kw_only=True):
    """A running block, as its type sees it."""

    run: Run
    id: str
    path: str
    """What names it in its tree of runs: `deploy/approve`, and `deploy[eu]/approve` in a loop."""
    timeout: float | None = None
    attempt: int = 0
    secrets: Secrets
    folder: Folder
    networks: Networks
    """Which addresses its requests may go to."""
    tools: dict[str, Tool[..., Any]]
    nested: "Callable[[str, dict[str, Any]], tuple[Agent[..., Any], dict[str, Any]]]"
    """The agent and its input that carry out another workflow of the same library."""

    def leave_to_others(self, what: str) -> NoReturn:
        """Leave the run to a worker that has what is missing here."""
        note = (
            f"this process has no {what}, which block {self.path} needs; go on in one that has it, "
            f"or start a worker that does, after `holdfast runs unblock {self.run.run_id}`"
        )
        turn_of(self.run).gate.suspend(Blocked(BlockedReason.NO_AGENT, note))

    @property
    def key(self) -> str:
        """The idempotency key of all its attempts, for services outside."""
        return hashlib.sha256(f"{self.run.run_id}\n{self.path}".encode()).hexdigest()

    @property
    def asks_as(self) -> str:
        """The name of its questions: an answer to one attempt does not answer the next."""
        return path_of_attempt(self.path, self.attempt)

    @property
    def seconds(self) -> float:
        return DEFAULT_SECONDS if self.timeout is None else self.timeout


def path_of_attempt(path: str, attempt: int) -> str:
    """Return the path of a block, from the second attempt on with the attempt's number."""
    return f"{path}~{attempt + 1}" if attempt else path


class BlockType(Protocol):
    """A type of blocks. One that `waits` may leave the run to a person, a peer or a moment."""

    name: ClassVar[str]
    inputs: ClassVar[type[msgspec.Struct]]
    waits: ClassVar[bool]
    takes_secrets: ClassVar[bool]

    async def execute(self, block: BlockRun, inputs: Any) -> Any:
        """Carry out a block; return its outputs, which are plain data.

        Raises BlockFailed, or anything else, if it fails.
        """
        ...
