"""The folder whose files the blocks of workflows may read and write."""

from pathlib import Path

from holdfast.errors import BlockFailed


class Folder:
    """A folder, and nothing outside it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Where a file is; raises BlockFailed for one outside the folder."""
        root = self.root.resolve()
        found = (root / name).resolve()
        if not found.is_relative_to(root):
            raise BlockFailed(f"{name} lies outside the folder of the workflow")
        return found

    def directory(self, name: str) -> Path:
        """Where a folder within it is; raises BlockFailed if there is none."""
        found = self.path(name)
        if not found.is_dir():
            raise BlockFailed(f"there is no folder {name!r} in the folder of the workflow")
        return found
