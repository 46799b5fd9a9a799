"""What is told while a workflow runs, to whoever watches in the same process."""

from collections.abc import Callable

import msgspec


class WaveBegan(msgspec.Struct, frozen=True):
    """The blocks of a wave begin; `path` is that of the workflow, empty for the one started."""

    run_id: str
    path: str
    wave: int
    waves: int
    blocks: list[str]


class BlockBegan(msgspec.Struct, frozen=True):
    """A block begins, or is looked at again after a pause."""

    run_id: str
    path: str
    type: str


class LoopBegan(msgspec.Struct, frozen=True):
    """A loop begins, or is looked at again after a pause; its rounds are told as blocks."""

    run_id: str
    path: str
    rounds: int


class BlockEnded(msgspec.Struct, frozen=True):
    """A block has ended here, a loop as a whole too; one that waits is told by `BlockWaits`."""

    run_id: str
    path: str
    status: str
    seconds: float
    error: str = ""


class BlockWaits(msgspec.Struct, frozen=True):
    """A block waits for a person, a peer or a moment."""

    run_id: str
    path: str


Event = WaveBegan | BlockBegan | LoopBegan | BlockEnded | BlockWaits
Observer = Callable[[Event], None]
