"""Peers as a model sees them: tools named `peer_NAME`.

They are not called like others: the run waits for the peer's answer, as with `run.peer`.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from holdfast import names
from holdfast.agents.definitions.tools import Tool, tool
from holdfast.errors import MisuseError

TOOL_PREFIX: Final = "peer_"


class Peer(msgspec.Struct, frozen=True):
    """Another agent that may be called, by its name wherever it is served."""

    name: str
    timeout: float | None = None
    description: str = ""
    takes_names: bool = False  # its parameters are known here
    queue_timeout: float | None = None


class KnownAgent(Protocol):
    """An agent whose parameters are known here."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def input_types(self) -> Mapping[str, tuple[Any, Any]]:
        """The type and the default of each parameter."""
        ...


class PeerTool(msgspec.Struct, frozen=True):
    """A peer and the tool that a model calls it by."""

    peer: Peer
    tool: Tool[..., Any]


def peers_by_tool(peers: Iterable[str | Peer | KnownAgent]) -> dict[str, PeerTool]:
    """Peers under the names of their tools."""
    if isinstance(peers, str) or not isinstance(peers, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError("peers is a list of names and agents; give [peer]")
    found: dict[str, PeerTool] = {}
    for given in peers:
        made = _made(given)
        if made.tool.name in found:
            raise MisuseError(f"there are two peers named {made.peer.name!r}")
        found[made.tool.name] = made
    return found


def _made(given: str | Peer | KnownAgent) -> PeerTool:
    types: Mapping[str, tuple[Any, Any]] = {"request": (Any, inspect.Parameter.empty)}
    if isinstance(given, str):
        peer = Peer(given)
    elif isinstance(given, Peer):
        peer = given
    else:
        types = given.input_types
        peer = Peer(given.name, description=given.description, takes_names=True)
    names.check(peer.name, what="a peer's name")
    return PeerTool(peer, _tool_for(peer, types))


def _tool_for(peer: Peer, types: Mapping[str, tuple[Any, Any]]) -> Tool[..., Any]:
    async def call(**_: Any) -> Any:
        raise MisuseError(f"{peer.name} is a peer: models call it by run.tools, code by run.peer()")

    call.__annotations__ = {name: kind for name, (kind, _) in types.items()}
    call.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, (_, default) in types.items()
        ]
    )
    description = peer.description or f"Ask the agent {peer.name} to do something, and wait for it."
    return tool(effect="read", name=TOOL_PREFIX + peer.name, description=description)(call)
