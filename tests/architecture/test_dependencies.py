"""Every dependency has code behind it, and every extra does what it promises."""

import ast
import importlib
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"all", "conformance", "dev"}
BEHIND = {
    "config": "holdfast.config.documents",
    "langgraph": "holdfast.integrations.langgraph",
    "mcp": "holdfast.edges.mcp.server",
    "nats": "holdfast.peers.transports.jetstream",
    "postgres": "holdfast.stores.postgres.store",
    "pydantic-ai": "holdfast.integrations.pydantic_ai",
    "webhooks": "holdfast.subscribers.http_post",
    "workflows": "holdfast.workflows",
}
"""A module of ours for each extra."""
SPELLED = {"langchain-core": "langchain_core", "nats-py": "nats", "pyyaml": "yaml"}
SPELLED |= {"langgraph-checkpoint": "langgraph", "pydantic-ai-slim": "pydantic_ai"}


def imported_names() -> set[str]:
    """The first part of each module that our source imports."""
    found: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def module_of(requirement: str) -> str:
    name = requirement.partition("[")[0].partition(">")[0]
    return SPELLED.get(name, name)


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_our_source_imports_what_it_needs(requirement: str) -> None:
    assert module_of(requirement) in imported_names()


def test_every_extra_has_a_module_of_ours() -> None:
    assert EXTRAS.keys() - FOR_DEVELOPERS == BEHIND.keys()


@pytest.mark.parametrize("extra", sorted(BEHIND))
def test_extra_gives_what_its_module_imports(extra: str) -> None:
    importlib.import_module(BEHIND[extra])
    for requirement in EXTRAS[extra]:
        if not requirement.startswith("holdfast["):
            assert module_of(requirement) in imported_names()
            importlib.import_module(module_of(requirement))
            assert module_of(requirement) in sys.modules


def test_version_is_that_of_the_distribution() -> None:
    assert holdfast.__version__ == metadata.version("holdfast")
