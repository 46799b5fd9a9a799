"""Bringing a store's schema up to date: numbered steps, forward only, a transaction each."""

from collections.abc import Iterable, Sequence

from holdfast.errors import SchemaMismatch
from holdfast.stores.sqlfiles import Migration


def pending(known: Sequence[Migration], applied: Iterable[tuple[int, str]]) -> list[Migration]:
    """The migrations a store still lacks; raises SchemaMismatch if it is newer than this code."""
    names = {migration.number: migration.name for migration in known}
    done = dict(applied)
    for number, name in sorted(done.items()):
        if number not in names:
            raise SchemaMismatch(
                f"the store has migration {number} ({name}), which this version of Holdfast does "
                "not know: a newer one has used it. Upgrade Holdfast here, or restore a copy of "
                "the store from before the upgrade"
            )
        if names[number] != name:
            raise SchemaMismatch(
                f"migration {number} is {name!r} in the store and {names[number]!r} here: "
                "this is not a Holdfast store, or not of this edition"
            )
    return [migration for migration in known if migration.number not in done]
