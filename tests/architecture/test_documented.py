"""What the code has, the documentation names: errors, settings, entries, columns, states, links."""

import dataclasses
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from uuid import UUID

import apsw
import msgspec
import pytest

import holdfast
from holdfast import errors, faults, telemetry
from holdfast.agents.work.approvals import Approvals
from holdfast.agents.work.schedules import Schedules
from holdfast.compat.mesh import CheckpointService, TaskExecutionContext
from holdfast.engine.budgets.budgets import Budgets
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.effects import Effects
from holdfast.engine.handoffs import Handoffs
from holdfast.engine.leases.leases import Leases
from holdfast.engine.maintenance.recoveries import Recoveries
from holdfast.engine.messages.outbox_messages import Messages
from holdfast.engine.reading.journal import Journal
from holdfast.engine.runs import Runs
from holdfast.engine.signals import Signals
from holdfast.engine.waits import Waits
from holdfast.kernel import effects, indexes, runs, signals, waits
from holdfast.kernel.indexes import FACTS
from holdfast.kernel.journal import Kind
from holdfast.kernel.waits import WaitFacts
from holdfast.records import CheckpointService as RecordService
from holdfast.settings import Settings
from holdfast.subscribers.webhooks import Webhooks
from tests.docs.examples import ROOT, pages

REFERENCE = ROOT / "docs" / "reference"
CONCEPTS = ROOT / "docs" / "concepts"
PAGES = {page.relative_to(ROOT).as_posix(): page for page in pages()}
PAGES["changelog.d/README.md"] = ROOT / "changelog.d" / "README.md"

ERRORS = [name for name, value in vars(errors).items() if isinstance(value, type)]
FACES = [
    Runs,
    holdfast.LeasedRun,
    Journal,
    Checkpoints,
    Effects,
    Waits,
    Messages,
    Signals,
    Approvals,
    Budgets,
    Leases,
    Schedules,
    Handoffs,
    Recoveries,
    Webhooks,
    CheckpointService,
    RecordService,
    TaskExecutionContext,
    holdfast.Holdfast,
]
VERBS = [
    f"{face.__name__}.{name}" for face in FACES for name in vars(face) if not name.startswith("_")
]
WORDS = """run session journal entry checkpoint version turn effect wait group lease worker handoff
recovery tenant part log value base fork lineage key commit batch signal"""
Arrow = tuple[str, str, str]
EFFECT = effects.Effect(
    tenant="default",
    effect_id=UUID(int=0),
    key="key",
    run_id="run",
    tool="tool",
    call_id="",
    args_digest=b"",
    status=effects.EffectStatus.ISSUED,
    issued_seq=1,
    issued_at=0,
    limit_at=0,
    lease_seq=1,
)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def names_in(text: str) -> set[str]:
    """Every word that stands in code style, with and without what follows its bracket."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return {name for span in spans for name in (span, re.split(r"[(=]", span)[0])}


def rows_of(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by the names in their first column."""
    rows: dict[str, list[str]] = {}
    for line in read(page).splitlines():
        if line.startswith("|"):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`([^`]+)`", first):
                rows[name] = rest
    return rows


# What the code names is in its reference page.


@pytest.mark.mission("S3-205")
@pytest.mark.parametrize("name", ERRORS)
def test_error_is_documented(name: str) -> None:
    assert name in rows_of(REFERENCE / "errors.md") or name == "HoldfastError"
    assert name in names_in(read(REFERENCE / "errors.md"))


def test_errors_page_names_no_error_that_is_gone() -> None:
    named = re.findall(r"^\| `([A-Z]\w+)`", read(REFERENCE / "errors.md"), re.MULTILINE)
    assert set(named) - set(ERRORS) == set()


@pytest.mark.mission("S3-205")
@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_setting_is_documented_with_its_default(field: "dataclasses.Field[object]") -> None:
    default, *_ = rows_of(REFERENCE / "settings.md")[field.name]
    assert default == f"`{field.default!r}`"


@pytest.mark.parametrize("name", telemetry.NAMES)
def test_telemetry_name_is_documented(name: str) -> None:
    assert name in rows_of(REFERENCE / "telemetry.md")


@pytest.mark.parametrize("point", faults.POINTS)
def test_fault_point_is_documented(point: str) -> None:
    assert point in rows_of(REFERENCE / "telemetry.md")
    assert point in names_in(read(CONCEPTS / "durability.md"))


@pytest.mark.mission("S3-205")
@pytest.mark.parametrize("kind", Kind)
def test_entry_kind_is_documented_with_its_facts_in_order(kind: Kind) -> None:
    facts, *_ = rows_of(REFERENCE / "entries.md")[kind]
    expected = list(msgspec.structs.fields(FACTS[kind]))
    names = [field.name for field in expected]
    if kind is Kind.WAITS_OPENED:
        names += [field.name for field in msgspec.structs.fields(WaitFacts)]
    assert re.findall(r"`(\w+)`", facts) == names


@pytest.mark.parametrize("name", holdfast.__all__)
def test_public_name_is_documented(name: str) -> None:
    documented = names_in(read(REFERENCE / "python.md"))
    assert name in documented or f"holdfast.{name}" in documented


@pytest.mark.mission("S3-167")
@pytest.mark.parametrize("verb", VERBS)
def test_public_verb_is_documented(verb: str) -> None:
    assert verb.partition(".")[2] in names_in(read(REFERENCE / "python.md"))


def columns() -> Iterator[tuple[str, str]]:
    """Every table and column of a new store."""
    folder = Path(holdfast.__file__).parent / "stores" / "sqlite"
    store = apsw.Connection(":memory:")
    for file in sorted((folder / "migrations").glob("*.sql")):
        store.execute(read(file))
    made = re.search(r"CREATE TABLE[^;]+", read(folder / "sql" / "store.sql"))
    assert made is not None
    store.execute(made.group())
    tables = (
        "SELECT name FROM sqlite_schema"
        " WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        # The tables that a full text index has of its own.
        " AND name NOT LIKE 'record_words@_%' ESCAPE '@' ORDER BY name"
    )
    for (table,) in list(store.execute(tables)):
        for _, column, *_ in store.execute(f"PRAGMA table_info({table})"):
            yield str(table), str(column)


@pytest.mark.parametrize(("table", "column"), sorted(columns()))
def test_column_is_documented(table: str, column: str) -> None:
    sections = re.split(r"^### ", read(REFERENCE / "storage.md"), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(f"{table}\n")]
    cells = re.findall(r"^\|([^|]+)\|", section, re.MULTILINE)
    assert f"`{column}`" in " ".join(cells)


@pytest.mark.parametrize("word", WORDS.split())
def test_word_is_in_the_glossary(word: str) -> None:
    assert f"**{word}**" in read(REFERENCE / "glossary.md")


# The state diagrams are the tables of the kernel.


def diagram(page: str, number: int = 0) -> set[Arrow]:
    """The arrows of a state diagram: from, to, and the entry that moves."""
    blocks = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", read(CONCEPTS / page), re.DOTALL)
    found = re.findall(r"(\S+) --> (\S+?)(?:: (\S+).*)?$", blocks[number], re.MULTILINE)
    return {arrow for arrow in found if arrow[1] != "[*]"}


def test_diagram_of_runs_is_the_table_of_moves() -> None:
    moves = {
        (source.value, target.value, kind.value)
        for kind, (allowed, target) in runs.MOVES.items()
        for source in allowed
    }
    moves |= {("[*]", "ready", "RUN_CREATED"), ("waiting", "ready", "GROUP_CLOSED")}
    assert diagram("runs.md") == moves


def test_diagram_of_effects_is_what_settling_allows() -> None:
    moves = {("[*]", "issued", "EFFECT_ISSUED")}
    for before, after in product(effects.EffectStatus, effects.EffectStatus):
        effect = msgspec.structs.replace(EFFECT, status=before)
        try:
            draft = effects.settle(effect, after)
        except errors.IllegalMove:
            continue
        moves.add((before.value, after.value, draft.kind.value))
    assert diagram("effects.md") == moves


def test_diagram_of_waits_is_what_settles_them() -> None:
    moves = {("[*]", "open", "WAITS_OPENED")}
    moves |= {("open", status.value, kind.value) for status, kind in waits.KIND_OF.items()}
    moves |= {("open", "cancelled", kind) for kind in ("GROUP_CLOSED", *_ending_kinds())}
    assert diagram("waits.md") == moves


def test_diagram_of_groups_is_what_counts_decide() -> None:
    decided = {
        waits.judge(waits.Group(tenant="", run_id="", group_id="", **counts)).value
        for counts in (
            {"need": need, "total": 3, "resolved": resolved, "failed": failed}
            for need, resolved, failed in product(range(4), repeat=3)
            if resolved + failed <= 3
        )
    }
    moves = {("[*]", "open", "WAITS_OPENED")}
    moves |= {("open", status, "GROUP_CLOSED") for status in decided - {"open"}}
    moves |= {("open", "cancelled", kind) for kind in _ending_kinds()}
    assert diagram("waits.md", 1) == moves


def test_diagram_of_signals_is_what_receives_and_takes_them() -> None:
    received = signals.receive(runs.RunRow(tenant="", run_id="a"), "id", "go", b"", groups={})
    signal = signals.Signal(
        tenant="", run_id="a", signal_id="id", name="go", seq=1, received_at=0, received_by=""
    )
    (kind,) = [draft.kind.value for draft in received]
    moves = {("[*]", "untaken", kind), ("untaken", "taken", signals.take(signal).kind.value)}
    assert diagram("signals.md") == moves


def test_diagram_of_leases_ends_a_lease_where_the_run_stops_running() -> None:
    ends = {
        kind.value for kind, (allowed, _) in runs.MOVES.items() if runs.RunStatus.RUNNING in allowed
    }
    arrows = diagram("leases.md")
    assert {kind for source, _, kind in arrows if source == "held"} == ends
    assert ("[*]", "held", "RUN_LEASED") in arrows


def _ending_kinds() -> list[str]:
    return [kind.value for kind, facts in indexes.FACTS.items() if facts is runs.RunFinished]


# Links, tests and paths that the pages name.


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_in(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_of_the_page_resolve(page: str) -> None:
    broken: list[str] = []
    for link in links_in(PAGES[page]):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def defined_tests() -> set[str]:
    suite = Path(holdfast.__file__).parent / "testing"
    files = [*(ROOT / "tests").rglob("*.py"), *suite.rglob("*.py")]
    return {
        name for file in files for name in re.findall(r"\bdef (test_\w+)\(", read(file)) if name
    }


@pytest.mark.parametrize("page", sorted(PAGES))
def test_tests_that_the_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", read(PAGES[page])))
    assert named - defined_tests() == set()


OF_THE_CODE = sorted(
    page
    for page in PAGES
    if page.startswith(("docs/internals/", "docs/decisions/"))
    or page in ("ARCHITECTURE.md", "CONTRIBUTING.md")
)


@pytest.mark.parametrize("page", OF_THE_CODE)
def test_files_that_the_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`((?!NNNN)[\w/]+\.(?:py|sql))`", read(PAGES[page])))
    there = [f"/{file}" for file in tracked_files()]
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in there)] == []


@pytest.mark.parametrize("page", [page for page in OF_THE_CODE if "decisions" not in page])
def test_classes_that_the_page_names_exist(page: str) -> None:
    named = re.findall(r"`(?:[a-z_]+\.)*([A-Z][a-z]\w+)(?:\.\w+)?(?:\(\))?`", read(PAGES[page]))
    package = Path(holdfast.__file__).parent
    source = "\n".join(read(file) for file in package.rglob("*.py"))
    assert [name for name in named if not re.search(rf"\b{name}\b", source)] == []


def tracked_files() -> list[str]:
    folders = ("src", "tests", "tools", "benchmarks", "examples")
    found = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    return [file.relative_to(ROOT).as_posix() for file in found]


def test_every_promise_names_a_test_and_a_page() -> None:
    promises = re.search(r"^## Promises\n(.*?)^## ", read(PAGES["README.md"]), re.M | re.S)
    assert promises is not None
    items = re.split(r"^\d\. ", promises.group(1), flags=re.MULTILINE)[1:]
    assert len(items) == 9
    for item in items:
        assert re.search(r"`test_\w+`", item), item
        assert "](docs/" in item, item


@pytest.mark.parametrize("page", sorted(PAGES))
def test_page_names_no_line_and_no_machine(page: str) -> None:
    text = read(PAGES[page])
    assert not re.search(r"\.py(?::\d+|#L\d+)|\blines? \d+ of \S+\.py", text)
    assert not re.search(r"(?<![\w.])/(?:home|root|work|Users)/", text)


def test_every_page_of_the_docs_is_reached_from_the_index() -> None:
    linked = {
        (ROOT / "docs" / link.partition("#")[0]).resolve()
        for link in links_in(ROOT / "docs" / "index.md")
    }
    missing = [page for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked]
    assert missing == [ROOT / "docs" / "index.md"]


def test_decisions_are_numbered_and_have_three_parts() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for page in decisions:
        for part in ("**Context.**", "**Choice.**", "**Consequences.**"):
            assert part in read(page), page.name
