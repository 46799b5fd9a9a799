"""The committed page of the MCP conformance kit tells what the repository pins and expects."""

from tests.edges.mcp.conformance.kit import VERSION, WIRES
from tests.edges.mcp.conformance.report import PAGE, expected_failures
from tests.edges.mcp.conformance.scenarios import TOOLS_OF
from tests.edges.mcp.conformance.server import PLAIN, RUNS


def test_the_page_tells_the_pinned_kit_and_both_wires() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"| @modelcontextprotocol/conformance | {VERSION} |" in page
    assert f"| scenario | made of | {' | '.join(WIRES)} |" in page


def test_the_page_lists_the_expected_failures_with_their_reasons() -> None:
    _, _, told = PAGE.read_text(encoding="utf-8").partition("## Expected failures\n\n")
    entries = [f"- `{entry}`: {reason}" for entry, reason in expected_failures().items()]
    assert told.strip() == ("\n".join(entries) or "None.")


def test_every_tool_the_page_names_is_in_the_fixture_server() -> None:
    named = {tool for tools in TOOLS_OF.values() for tool in tools}
    assert named - {each.name for each in PLAIN} - RUNS == set()
