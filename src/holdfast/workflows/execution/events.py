"""The events of a running workflow, for observers in the same process."""

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
    """A block begins, or is entered again after a pause."""

    run_id: str
    path: str
    type: str


class LoopBegan(msgspec.Struct, frozen=True):
    """A loop begins, or is entered again after a pause; its rounds are reported as blocks."""

    run_id: str
    path: str
    rounds: int


class BlockEnded(msgspec.Struct, frozen=True):
    """A block, or a loop as a whole, has ended here; `BlockWaits` reports one that waits."""

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
