"""What only one room does. The order of the rooms is kept by import-linter (`make check`)."""

import re
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent


def test_one_room_above_the_stores_builds_commits() -> None:
    """What is stored is decided in many places, and put together in one."""
    building = {
        file.relative_to(SOURCE).parent.as_posix()
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in ("stores", "testing")
        and re.search(r"\bCommit\(", file.read_text(encoding="utf-8"))
    }
    assert building == {"engine/writing"}
