"""Wake-ups: hints that shorten a wait. `open_wakeups` chooses the kind that fits a store."""

from holdfast.settings import locate_store
from holdfast.wakeups.contract import Wakeups
from holdfast.wakeups.local import LocalWakeups


def open_wakeups(url: str) -> Wakeups:
    """Wake-ups for the store that a URL or path names; across processes where it is shared."""
    path = locate_store(url).location
    if not path:
        return LocalWakeups()
    from holdfast.wakeups.sqlite import SQLiteWakeups

    return SQLiteWakeups(path)
