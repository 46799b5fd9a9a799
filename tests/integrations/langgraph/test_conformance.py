"""LangGraph's own conformance kit: every capability, on every store, by both faces."""

from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.integrations.langgraph.conformance_report import PAGE, row_of, versions
from tests.integrations.langgraph.kit import CASES, run_kit


@async_test
async def test_every_case_of_the_kit_passes_and_the_page_says_so(
    backend: Backend, face: str
) -> None:
    report, called = await run_kit(backend.url, face)
    failures = {name: result.failures for name, result in report.results.items()}
    assert not any(failures.values()), failures
    assert {name: result.tests_passed for name, result in report.results.items()} == CASES
    assert called == (set(CASES) if face == "sync" else set())
    assert row_of(backend.name, face, report) in PAGE.read_text(encoding="utf-8")


def test_no_case_of_the_kit_is_left_out() -> None:
    assert {capability.value for capability in ALL_CAPABILITIES} == set(CASES)
    assert sum(CASES.values()) == 81


def test_the_page_names_the_versions_that_are_installed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, version in versions().items():
        assert f"| {name} | {version} |" in page
