"""The named statements of this backend, the shapes of its rows, and statements made of parts.

A commit is one statement, however many runs it is for: `append_first_entry` says whose entries are
stored, every other part does its work for those runs only. A statement has just the parts that its
commits need. A part names its parameters (`:runs`); they are numbered when the parts are joined.
"""

import re
from functools import lru_cache
from typing import Final, LiteralString, NamedTuple, cast

from holdfast.stores.rows import Shapes
from holdfast.stores.sqlfiles import load_migrations, load_queries

PACKAGE: Final = "holdfast.stores.postgres"
SQL: Final = load_queries(PACKAGE)
MIGRATIONS: Final = load_migrations(PACKAGE)
SHAPES: Final = Shapes(uuid_as_bytes=False)

PARTS: Final = (
    "append_entry",
    "put_run",
    "add_checkpoint",
    "add_mark",
    "add_writes",
    "put_record",
    "add_revision",
    "drop_checkpoints",
    "drop_records",
    "drop_revisions",
    "drop_marks",
    "drop_writes",
    "erase_bodies",
    "move_base",
    "add_effect",
    "restore_effect",
    "settle_effect_once",
    "add_group",
    "add_wait",
    "settle_wait_once",
    "add_signal",
    "take_signal_once",
    "add_budget",
    "draw_budget",
    "add_reservation",
    "drop_reservation",
    "count_group",
    "add_message",
    "begin_journal",
    "begin_runs",
    "owe_cancels_of_group",
    "cancel_waits_of_group",
    "cancel_groups_of_run",
    "owe_cancels_of_run",
    "cancel_waits_of_run",
)
CONDITIONAL: Final = frozenset(
    {
        "add_mark",
        "add_effect",
        "settle_effect_once",
        "add_group",
        "add_wait",
        "settle_wait_once",
        "add_signal",
        "take_signal_once",
        "add_budget",
        "draw_budget",
        "add_reservation",
        "drop_reservation",
    }
)
# In this order, each after what else is done to the same rows.
CLOSING: Final = (
    "owe_cancels_of_group",
    "cancel_waits_of_group",
    "cancel_groups_of_run",
    "owe_cancels_of_run",
    "cancel_waits_of_run",
)

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


class Statement(NamedTuple):
    """A statement, and the names of its parameters in order."""

    sql: LiteralString
    parameters: tuple[str, ...]


@lru_cache(maxsize=256)
def commit_statement(parts: frozenset[str]) -> Statement:
    """Append entries, and do what `parts` say to the indexes of the runs whose entries went in."""
    steps: dict[str, str] = {
        "locked": SQL["lock_before_commit"],
        "stored": SQL["append_first_entry"],
    }
    steps |= {part: SQL[part] for part in PARTS if part in parts}
    conditions = [part for part in PARTS if part in parts & CONDITIONAL]
    if not conditions:
        return _numbered(_joined(steps, SQL["tell_stored"]))
    tells: list[str] = [SQL["tell_stored"], *(SQL[f"tell_{part}"] for part in conditions)]
    steps["outcomes"] = _united(tells)
    return _numbered(_joined(steps, _united([SQL["tell_all"], SQL["refuse"]])))


@lru_cache(maxsize=64)
def change_statement(parts: frozenset[str]) -> Statement:
    """Do what `parts` say to the indexes of given runs, and report which conditions held."""
    steps: dict[str, str] = {"stored": SQL["given_runs"]}
    steps |= {part: SQL[part] for part in PARTS if part in parts}
    tells: list[str] = [SQL[f"tell_{part}"] for part in PARTS if part in parts & CONDITIONAL]
    return _numbered(_joined(steps, _united([SQL["tell_stored"], *tells])))


def _joined(steps: dict[str, str], last: str) -> str:
    return "WITH " + ",\n".join(f"{name} AS ({sql})" for name, sql in steps.items()) + "\n" + last


def _united(selects: list[str]) -> str:
    return "\nUNION ALL\n".join(selects)


def _numbered(sql: str) -> Statement:
    names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    # Made of this package's files alone, so as literal as they are.
    return Statement(
        cast(LiteralString, _PARAMETER.sub(lambda found: numbers[found[1]], sql)), names
    )
