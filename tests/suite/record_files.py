"""The files in which runs of the suite are recorded, and the commit that they are of.

This is no plugin of pytest, so that whoever starts pytest in its own process can read them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

FILE = ".campaign.jsonl"
MARKED_FILE = ".marked.jsonl"


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line in one write, so that shards may run at the same time."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(record).encode() + b"\n")
    finally:
        os.close(file)


def commit_of(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD")


def is_dirty(root: Path, *folders: str) -> bool:
    """Whether there are changes that are not committed, anywhere or in some folders."""
    return bool(_git(root, "status", "--porcelain", "--", *folders))


def _git(root: Path, *words: str) -> str:
    """What git says; nothing if there is no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
