"""Bringing a store's schema up to date: numbered steps, forward only, a transaction each.

A step that only adds leaves older versions working: workers are upgraded one by one. What it
replaces goes in a later, breaking step, once none of them is left.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import SchemaMismatch
from holdfast.stores.sqlfiles import Migration


class AppliedMigration(NamedTuple):
    """A step that a store has gone through, as stored in its table."""

    number: int
    name: str
    is_breaking: bool


def pending(known: Sequence[Migration], applied: Sequence[AppliedMigration]) -> list[Migration]:
    """The migrations a store still lacks; raises SchemaMismatch if this code cannot use it."""
    names = {migration.number: migration.name for migration in known}
    done = {step.number for step in applied}
    for step in sorted(applied):
        if step.number not in names and step.is_breaking:
            raise SchemaMismatch(
                f"the store has migration {step.number} ({step.name}), after which this version of "
                "Holdfast cannot use it: a newer one has. Upgrade Holdfast here, or restore a copy "
                "of the store from before the upgrade"
            )
        if step.number in names and names[step.number] != step.name:
            raise SchemaMismatch(
                f"migration {step.number} is {step.name!r} in the store and "
                f"{names[step.number]!r} here: this is not a Holdfast store, or not of this edition"
            )
    return [migration for migration in known if migration.number not in done]
