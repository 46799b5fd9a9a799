"""SQL lives in named files: each query has a purpose and a user, and no Python holds any."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
SQL_FOLDERS = sorted(folder for folder in SOURCE.glob("stores/*/sql") if folder.is_dir())
SQL_FILES = [file for folder in SQL_FOLDERS for file in sorted(folder.glob("*.sql"))]
# Databases of other libraries, which are only read: their tables are not ours, so neither are the
# files' names, and each dialect has its own queries.
FOREIGN_FILES = sorted(SOURCE.glob("integrations/*/sources/sql/*.sql"))
# The shipped tests damage stored rows on purpose, which no named query does.
FILES = sorted(
    file for file in SOURCE.rglob("*.py") if file.relative_to(SOURCE).parts[0] != "testing"
)

PRIMITIVES = {"runs", "journal", "checkpoints", "effects", "waits", "signals", "budgets", "leases"}
PRIMITIVES |= {"marks", "records", "writes", "messages", "store", "commits"}
ONLY = {"sqlite": "-- SQLite only", "postgres": "-- PostgreSQL only"}
TRANSACTION = ("PRAGMA ", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT ", "RELEASE ")
STATEMENT = re.compile(
    r"\bSELECT\b.*\bFROM\b|\bINSERT\b.*\bINTO\b|\bUPDATE\b.*\bSET\b|\bDELETE\b.*\bFROM\b"
    r"|\bCREATE (?:UNIQUE )?(?:TABLE|INDEX)\b|\bDROP (?:TABLE|INDEX)\b|\bALTER TABLE\b",
    re.DOTALL,
)
OPENING = re.compile(
    r"\s*(?:select|insert\s+into|update|delete\s+from|with|replace\s+into)\s", re.I
)


def queries() -> dict[tuple[str, str], str]:
    """Each named query of each backend, and the lines between its name and its statement."""
    found: dict[tuple[str, str], str] = {}
    for file in SQL_FILES:
        for block in re.split(r"(?m)^-- name: ", file.read_text(encoding="utf-8"))[1:]:
            name, _, rest = block.partition("\n")
            comment = re.match(r"(?:--.*\n)*", rest)
            found[file.parent.parent.name, name] = comment.group() if comment else ""
    return found


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line; the literal parts of an f-string as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, text_of(node)


def text_of(node: ast.JoinedStr) -> str:
    parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return "".join(str(part) for part in parts)


def executed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Literals that are handed to a connection."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if called.lstrip("_") not in ("execute", "executemany"):
            continue
        first = node.args[0]
        if isinstance(first, ast.JoinedStr):
            yield first.lineno, text_of(first)
        elif isinstance(first, ast.Constant):
            yield first.lineno, str(first.value)


def sql_in(source: str) -> list[str]:
    """The strings of a module that are SQL and should be a named query instead."""
    tree = ast.parse(source)
    found = {(line, text) for line, text in strings(tree) if STATEMENT.search(text)}
    for line, text in executed(tree):
        if OPENING.match(text) or not text.startswith(TRANSACTION):
            found.add((line, text))
    return [f"line {line}: {text[:60]!r}" for line, text in sorted(found)]


def constants_of_the_code() -> set[str]:
    return {
        text for file in FILES for _, text in strings(ast.parse(file.read_text(encoding="utf-8")))
    }


def test_there_are_queries() -> None:
    assert len(queries()) > 30


@pytest.mark.parametrize(("backend", "name"), sorted(queries()))
def test_query_says_its_purpose(backend: str, name: str) -> None:
    purpose = queries()[backend, name]
    assert re.match(r"-- [A-Z].*\S", purpose), f"{name} has no line that says what it is for"


def test_backends_have_the_same_queries_but_those_that_say_why_not() -> None:
    found = queries()
    for backend, name in found:
        others = {(other, name) for other in ONLY} - {(backend, name)}
        is_alone = not others & found.keys()
        says_so = found[backend, name].startswith(ONLY[backend])
        assert is_alone == says_so, f"{name} of {backend}: in one backend only, or not, and why?"


def test_backends_have_the_same_migrations() -> None:
    names = [
        sorted(file.name for file in (folder.parent / "migrations").iterdir())
        for folder in SQL_FOLDERS
    ]
    assert len(names) == 2
    assert names[0] == names[1]


def test_every_query_is_used() -> None:
    used = constants_of_the_code()
    # A sweep names what it finds; its query is called find_ and that.
    used |= {f"find_{name}" for name in used if re.fullmatch(r"[a-z_]+", name)}
    # The parts of a commit are told of by queries named after them.
    used |= {f"tell_{name}" for name in used if re.fullmatch(r"[a-z_]+", name)}
    assert sorted({name for _, name in queries()} - used) == []


def test_queries_of_foreign_databases_read_only_and_are_used() -> None:
    used = constants_of_the_code()
    assert FOREIGN_FILES
    for file in FOREIGN_FILES:
        blocks = re.split(r"(?m)^-- name: ", file.read_text(encoding="utf-8"))[1:]
        for name, statement in (block.split("\n", 1) for block in blocks):
            assert name in used
            assert re.match(r"(?:-- [A-Z].*\n)+SELECT ", statement), f"{name} is no SELECT"


def test_files_are_named_after_primitives() -> None:
    assert {file.stem for file in SQL_FILES} <= PRIMITIVES


def test_every_statement_has_a_name() -> None:
    for file in SQL_FILES:
        assert file.read_text(encoding="utf-8").startswith("-- name: "), file.name


@pytest.mark.parametrize("folder", [f.parent for f in SQL_FOLDERS], ids=lambda folder: folder.name)
def test_migrations_are_numbered_without_a_gap(folder: Path) -> None:
    names = sorted(file.name for file in (folder / "migrations").iterdir())
    assert names
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", name) for name in names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_module_holds_no_sql(file: Path) -> None:
    assert sql_in(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        'x = "SELECT a FROM b"',
        'x = "INSERT OR IGNORE INTO b VALUES (1)"',
        'x = f"UPDATE {table} SET a = 1"',
        'x = "DELETE FROM b"',
        'connection.execute("select a from b")',
        'self._execute(f"delete from {table}")',
        'connection.execute("VACUUM")',
    ],
)
def test_sql_is_found(source: str) -> None:
    assert sql_in(source)


@pytest.mark.parametrize(
    "source",
    [
        'connection.execute("BEGIN IMMEDIATE")',
        'connection.execute(f"PRAGMA page_size = {size}")',
        'connection.execute("ROLLBACK TO one_commit")',
        'connection.execute(SQL["get_run"], row)',
        'x = "select the newest from the list"',
    ],
)
def test_what_is_no_query_is_left_alone(source: str) -> None:
    assert sql_in(source) == []
