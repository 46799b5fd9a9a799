"""The types of blocks that come with Holdfast."""

from typing import Final

from holdfast.workflows.blocks.agent import AgentBlock
from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.blocks.files import CreateFile, EditFile, ReadFiles
from holdfast.workflows.blocks.http import HttpCall
from holdfast.workflows.blocks.nested import Nested
from holdfast.workflows.blocks.prompt import Prompt
from holdfast.workflows.blocks.shell import Shell
from holdfast.workflows.blocks.tool import ToolBlock
from holdfast.workflows.blocks.wait import WaitBlock

BUILT_IN: Final[tuple[BlockType, ...]] = (
    Prompt(),
    ToolBlock(),
    AgentBlock(),
    Nested(),
    WaitBlock(),
    Shell(),
    HttpCall(),
    ReadFiles(),
    CreateFile(),
    EditFile(),
)

NEEDS_FOLDER: Final = frozenset({"Shell", "ReadFiles", "CreateFile", "EditFile"})
"""Those that reach files: where there is no such folder, they are left to other workers."""
