"""Run LangGraph's conformance kit and write docs/reference/langgraph-conformance.md.

`make conformance` runs it; a test compares the page with what the kit says now.
"""

import asyncio
import importlib.metadata
import tempfile
from pathlib import Path

from langgraph.checkpoint.conformance.report import CapabilityReport

from holdfast.testing.postgres import PostgresServer
from tests.integrations.langgraph.kit import CASES, run_kit
from tests.integrations.langgraph.savers import FACES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "langgraph-conformance.md"
PACKAGES = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-conformance")
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

TEXT = """\
# LangGraph conformance

What `langgraph-checkpoint-conformance`, LangGraph's own test kit for checkpoint savers, says of
`HoldfastSaver`. The kit calls async methods only; here it also runs on the sync ones, through an
adapter. `make conformance` writes this page, and a test fails when it no longer holds.

| package | version |
|---|---|
{versions}

Passed cases of all cases, by capability:

| store | methods | {capabilities} | all |
|---|---|{dashes}---|
{rows}

The kit on PyPI has no cases for `get_delta_channel_history`; ours are in
`tests/integrations/langgraph/test_delta_history.py`.
"""


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def row_of(store: str, face: str, report: CapabilityReport) -> str:
    """One line of the table."""
    results = [report.results[name] for name in CASES]
    cells = [f"{each.tests_passed}/{each.tests_passed + each.tests_failed}" for each in results]
    passed = sum(each.tests_passed for each in results)
    failed = sum(each.tests_failed for each in results)
    return f"| {STORES[store]} | {face} | {' | '.join(cells)} | {passed}/{passed + failed} |"


def page_of(rows: list[str]) -> str:
    return TEXT.format(
        versions="\n".join(f"| {name} | {version} |" for name, version in versions().items()),
        capabilities=" | ".join(CASES),
        dashes="---|" * len(CASES),
        rows="\n".join(rows),
    )


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder) / "postgres") as server,
    ):
        urls = {"sqlite": f"{folder}/store.db", "postgres": server.url()}
        rows = [
            row_of(store, face, asyncio.run(run_kit(url, face))[0])
            for store, url in urls.items()
            for face in FACES
        ]
    PAGE.write_text(page_of(rows), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
