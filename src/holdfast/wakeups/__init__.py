"""Wake-ups: hints that shorten a wait. `open_wakeups` chooses the kind that fits a store."""

from holdfast.settings import locate_store
from holdfast.wakeups.contract import LookForForeign, Wakeups
from holdfast.wakeups.local import LocalWakeups


def open_wakeups(url: str, look_for_foreign: LookForForeign | None = None) -> Wakeups:
    """Wake-ups for the store that a URL or path names; across processes where it is shared.

    Where commits are found by polling, `look_for_foreign` tells those of other processes apart.
    """
    backend, location = locate_store(url)
    if backend == "postgres":
        from holdfast.wakeups.postgres import PostgresWakeups

        return PostgresWakeups(location)
    if not location:
        return LocalWakeups()
    from holdfast.wakeups.sqlite import SQLiteWakeups

    return SQLiteWakeups(location, look_for_foreign)
