"""Files that are open in this process, so that forks of it are kept from them.

SQLite counts in memory which locks a process has. A fork inherits the counts without the locks: it
would use the file unguarded, and what it commits is lost when its parent closes the file.
"""

import os
from typing import NamedTuple

from holdfast.errors import WrongProcess


class OpenFile(NamedTuple):
    """A file that a store has open."""

    device: int
    inode: int
    pid: int
    store: int


_opened: set[OpenFile] = set()


def check(path: str) -> None:
    """Raise WrongProcess if the file was open when this process was forked."""
    if not os.path.exists(path):
        return
    found = os.stat(path)
    if any(
        (file.device, file.inode) == (found.st_dev, found.st_ino) and file.pid != os.getpid()
        for file in _opened
    ):
        raise WrongProcess(
            f"{path} was open before fork(), and SQLite's locks do not come along; open it after "
            "the fork, or start the process by spawn or forkserver"
        )


def enter(path: str, store: object) -> None:
    found = os.stat(path)
    _opened.add(OpenFile(found.st_dev, found.st_ino, os.getpid(), id(store)))


def leave(store: object) -> None:
    here = (os.getpid(), id(store))
    _opened.difference_update([file for file in _opened if (file.pid, file.store) == here])
