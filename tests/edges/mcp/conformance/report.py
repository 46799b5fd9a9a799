"""Run the official MCP conformance kit and write docs/reference/mcp-conformance.md.

`make conformance-mcp` runs it. It fails when the kit says something that expected-failures.yaml
has not, or no longer says what it has.
"""

import argparse
import contextlib
import importlib.metadata
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from holdfast.testing.postgres import free_port
from tests.edges.mcp.conformance import server
from tests.edges.mcp.conformance.kit import (
    EXPECTED_FAILURES,
    PACKAGE,
    VERSION,
    WIRES,
    Kit,
    Score,
    Verdict,
    node_version,
)
from tests.edges.mcp.conformance.scenarios import TOOLS_OF

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "mcp-conformance.md"
_START_SECONDS = 30

TEXT = """\
# MCP conformance

What the Model Context Protocol's own kit says of our MCP server, on both current versions of the
wire and on the tasks extension. `make conformance-mcp` runs it on
`tests/edges/mcp/conformance/server.py`, a Holdfast server on a SQLite file, and writes this page.

| package | version |
|---|---|
{versions}

The kit calls tools by names of its own. Where it wants a tool that pauses or takes long, that is
an agent of Holdfast exposed as a tool, so a *run* answers; where it wants a kind of content or a
word of the protocol that needs no run, it is a *plain tool* beside ours; *server* means that the
scenario asks only for what the server does by itself, and *prompt* and *resource* are added by
the fixture server, as Holdfast has none like them. For the version of 2025 it keeps
events (`http_app(events=…)`), so that there are sessions. Without them, as `holdfast mcp` serves,
the four scenarios in which a tool asks its client over the connection of the call would fail
(`tools-call-sampling`, `tools-call-elicitation`, both `elicitation-…`): no tool of Holdfast does.

Checks that hold, of all that were made:

| scenario | made of | {wires} |
|---|---|{dashes}
{core}
| all | | {totals} |

The tasks extension, `io.modelcontextprotocol/tasks` (the kit skips status notifications itself):

| scenario | made of | checks |
|---|---|---|
{tasks}
| all | | {tasks_total} |

## Expected failures

{expected}
"""


@dataclass(frozen=True)
class Report:
    """What the kit said: on each wire, and of the tasks extension."""

    wires: dict[str, Verdict]
    tasks: Verdict


def expected_failures() -> dict[str, str]:
    """The reason of each entry of expected-failures.yaml."""
    told = yaml.safe_load(EXPECTED_FAILURES.read_text(encoding="utf-8"))
    reasons: dict[str, str] = told["reasons"]
    if sorted(told["server"]) != sorted(reasons):
        raise SystemExit(f"{EXPECTED_FAILURES.name}: every entry needs a reason, and no other")
    return {entry: " ".join(reasons[entry].split()) for entry in told["server"]}


def versions() -> dict[str, str]:
    return {
        PACKAGE: VERSION,
        "mcp (Python SDK)": importlib.metadata.version("mcp"),
        "Node": node_version(),
    }


def made_of(scenario: str) -> str:
    """How the fixtures of a scenario are made."""
    if tools := TOOLS_OF.get(scenario):
        runs = [name for name in tools if name in server.RUNS]
        plain = [name for name in tools if name not in server.RUNS]
        parts = (("run", runs), ("plain tool", plain))
        return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in parts if names)
    if scenario.startswith(("prompts-", "completion-")) or scenario.endswith("non-tool-request"):
        return "prompt"
    return "resource" if scenario.startswith("resources-") else "server"


def _total(verdict: Verdict) -> Score:
    scores = verdict.scores.values()
    return Score(sum(each.passed for each in scores), sum(each.made for each in scores))


def page_of(report: Report) -> str:
    names = sorted({name for verdict in report.wires.values() for name in verdict.scores})
    core = [
        [name, made_of(name), *(str(each.scores.get(name, "")) for each in report.wires.values())]
        for name in names
    ]
    tasks = [[name, made_of(name), str(score)] for name, score in report.tasks.scores.items()]
    expected = [f"- `{entry}`: {reason}" for entry, reason in expected_failures().items()]
    return TEXT.format(
        versions="\n".join(f"| {name} | {version} |" for name, version in versions().items()),
        wires=" | ".join(report.wires),
        dashes="---|" * len(report.wires),
        core="\n".join(f"| {' | '.join(row)} |" for row in core),
        totals=" | ".join(str(_total(each)) for each in report.wires.values()),
        tasks="\n".join(f"| {' | '.join(row)} |" for row in tasks),
        tasks_total=_total(report.tasks),
        expected="\n".join(expected) or "None.",
    )


@contextlib.contextmanager
def started_server(folder: Path) -> Iterator[str]:
    """The URL of a fixture server that lives as long as the block."""
    port = free_port()
    words = ("--port", str(port), "--store", str(folder / "store.db"))
    started = subprocess.Popen([sys.executable, "-m", server.__name__, *words], cwd=ROOT)
    try:
        _wait_until_listening(port, started)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        started.terminate()
        started.wait(_START_SECONDS)


def _wait_until_listening(port: int, started: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while started.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit("the fixture server did not start: see its words above")


def judge(kit: Kit, url: str, results: Path) -> Report:
    """Run everything, and say on stderr what is being run."""
    wires: dict[str, Verdict] = {}
    for wire in WIRES:
        print(f"wire {wire} …", file=sys.stderr)
        wires[wire] = kit.run(url, results / wire, "--suite", "all", "--spec-version", wire)
    tasks: list[Verdict] = []
    for name in kit.tasks_scenarios():
        print(f"{name} …", file=sys.stderr)
        tasks.append(kit.run(url, results / name, "--scenario", name))
    scores = {name: score for each in tasks for name, score in each.scores.items()}
    return Report(wires, Verdict(scores, good=all(each.good for each in tasks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kit", type=Path, default=ROOT / ".venv" / "conformance", help="folder the kit is in"
    )
    kit = Kit(parser.parse_args().kit)
    kit.install()
    with tempfile.TemporaryDirectory() as name, started_server(Path(name)) as url:
        report = judge(kit, url, Path(name))
    PAGE.write_text(page_of(report), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
    judged = {
        *report.tasks.scores,
        *(name for each in report.wires.values() for name in each.scores),
    }
    unknown = [each for each in expected_failures() if each.partition(":")[0] not in judged]
    if unknown:
        print(f"expected to fail, but the kit has no such scenario: {unknown}", file=sys.stderr)
    if unknown or not all(each.good for each in (*report.wires.values(), report.tasks)):
        raise SystemExit("the kit says what was not expected: see its words above")


if __name__ == "__main__":
    main()
