"""The tools that a server has, by topic."""

from typing import Final

from holdfast.edges.mcp.contract import ServedTool
from holdfast.edges.mcp.tools import approvals, checkpoints, effects, runs, workflows

OWN: Final[tuple[ServedTool, ...]] = (
    *workflows.TOOLS,
    *runs.TOOLS,
    *approvals.TOOLS,
    *effects.TOOLS,
    *checkpoints.TOOLS,
)
"""Those that every server has."""

INLINE: Final[tuple[ServedTool, ...]] = workflows.INLINE
"""Those that carry out what a client brings along, which not every server wants."""
