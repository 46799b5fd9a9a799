"""Values in shell commands that are not quoted: `validate` warns, and `strict` refuses."""

import json
from pathlib import Path

import pytest

from holdfast.workflows.checks.library import Found, examine
from tests.forked_cli import run

DEFINITION = """
name: main
strict: {strict}
inputs:
  name: {{type: str}}
  many: {{type: list}}
  n: {{type: int}}
  yes: {{type: bool}}
blocks:
  - id: first
    type: Shell
    for_each: "{{{{ inputs.many }}}}"
    inputs:
      {key}: {command}
"""


def examined(folder: Path, command: str, *, key: str = "command", strict: bool = False) -> Found:
    file = folder / "main.yaml"
    text = DEFINITION.format(key=key, command=json.dumps(command), strict=str(strict).lower())
    file.write_text(text)
    return examine(file, {})


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("echo {{ inputs.name }}", "{{ inputs.name }}"),
        ("echo '{{ inputs.name }}'", "{{ inputs.name }}"),
        ("echo {{ inputs.name | upper }}", "{{ inputs.name }}"),
        ("echo {{ inputs.name | quote | lower }}", "{{ inputs.name }}"),
        ("echo {{ each.value }}", "{{ each.value }}"),
        ("echo {{ inputs['name'] }}", "{{ inputs.name }}"),
        ("echo {{ 'a' if inputs.yes else inputs.name }}", "{{ inputs.yes }}"),
        ("echo {{ ('a' ~ inputs.name) }}", "{{ inputs.name }}"),
        ("{% if inputs.yes %}echo {{ inputs.name }}{% endif %}", "{{ inputs.name }}"),
        ("echo {{ inputs.name }} {{ inputs.name | quote }}", "{{ inputs.name }}"),
    ],
)
def test_value_without_quote_is_warned_of(tmp_path: Path, command: str, named: str) -> None:
    found = examined(tmp_path, command)
    assert found.problems == []
    (warning,) = found.warnings
    assert f"{named} is not quoted" in warning.reason
    assert "| quote" in warning.suggestion
    assert warning.line == 14
    (problem,) = examined(tmp_path, command, strict=True).problems
    assert problem.reason == warning.reason


@pytest.mark.parametrize(
    "command",
    [
        "echo hello",
        "echo {{ inputs.name | quote }}",
        "echo {{ inputs.many | join(' ') | quote }}",
        "echo {{ inputs.n }} {{ each.index }} {{ inputs.many | length }}",
        "echo {{ inputs.n > 3 }} {{ 'literal' }}",
        "echo {{ 'yes' if inputs.yes else 'no' }}",
        "{% if inputs.name == 'x' %}echo x{% endif %}",
        "echo {{ 'a' ~ (inputs.name | quote) }}",
    ],
)
def test_what_adds_no_words_is_fine(tmp_path: Path, command: str) -> None:
    found = examined(tmp_path, command, strict=True)
    assert (found.problems, found.warnings) == ([], [])


def test_command_that_verifies_is_looked_at_too(tmp_path: Path) -> None:
    found = examined(tmp_path, "test -e {{ inputs.name }}", key="command: ls\n      verify")
    assert len(found.warnings) == 1


def test_list_of_words_is_not_looked_at_by_a_shell(tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text(
        "name: main\ninputs: {name: {type: str}}\nblocks:\n"
        "  - {id: a, type: Shell, inputs: {command: [echo, '{{ inputs.name }}']}}\n"
    )
    assert examine(file, {}).warnings == []


def test_validate_prints_the_warning_and_finds_the_file_valid(tmp_path: Path) -> None:
    examined(tmp_path, "echo {{ inputs.name }}")
    file = str(tmp_path / "main.yaml")
    done = run("workflows", "validate", file, env={})
    assert done.returncode == 0
    assert f"warning: {file}:14: block first:" in done.stdout
    assert "it is valid, 1 warning" in done.stderr
    record = json.loads(run("workflows", "validate", file, "--json", env={}).stdout)
    assert (record["valid"], len(record["warnings"])) == (True, 1)
