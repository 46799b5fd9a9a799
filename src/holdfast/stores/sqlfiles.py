"""Named SQL: `-- name: verb` and its purpose above each statement, one file per primitive."""

import re
from importlib import resources
from typing import LiteralString, NamedTuple, cast

_NAME = re.compile(r"^-- name: ([a-z_]+)\n((?:-- .+\n)+)", re.MULTILINE)


class Migration(NamedTuple):
    """One numbered step of the schema. After a breaking one, older versions cannot continue."""

    number: int
    name: str
    sql: LiteralString
    is_breaking: bool = False


def load_queries(package: str) -> dict[str, LiteralString]:
    """The statements in a backend's `sql` folder, by name."""
    queries: dict[str, LiteralString] = {}
    for file in sorted(resources.files(package).joinpath("sql").iterdir(), key=lambda f: f.name):
        parts = _NAME.split(file.read_text())
        if parts[0].strip():
            raise ValueError(f"{file.name} begins with something that has no name and purpose")
        for name, _purpose, sql in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            if name in queries:
                raise ValueError(f"query {name} is defined twice")
            # Files of this package are as literal as text in its modules.
            queries[name] = cast(LiteralString, sql.strip().removesuffix(";"))
    return queries


def load_migrations(package: str) -> list[Migration]:
    """A backend's migrations in order; their numbers have no gap."""
    files = resources.files(package).joinpath("migrations").iterdir()
    found = [
        _migration(file.name, cast(LiteralString, file.read_text()))
        for file in files
        if file.name.endswith(".sql")
    ]
    found.sort()
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered 1, 2, 3, …")
    return found


def _migration(file_name: str, sql: LiteralString) -> Migration:
    """A migration that begins with `-- breaking: why` is one."""
    is_breaking = sql.startswith("-- breaking: ")
    return Migration(int(file_name[:4]), file_name[5:-4], sql, is_breaking)
