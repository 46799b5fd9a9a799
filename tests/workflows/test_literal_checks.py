"""Mistakes that can be seen in what is written out, without carrying anything out."""

import pytest

from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.checks.definition_reader import parse
from holdfast.workflows.checks.library import examine
from tests.workflows.test_checking import TYPES


def told(tmp_path_text: str, path: str) -> list[str]:
    with open(path, "w", encoding="utf-8") as file:
        file.write(tmp_path_text)
    return [str(each).partition(": ")[2] for each in examine(path, {}, types=TYPES).problems]


def of_block(block: str, tmp_path: object) -> list[str]:
    text = (
        "name: flow\ninputs:\n  many: {type: int}\n  some: {type: list}\n"
        f"blocks:\n  - {{id: first, type: Shell, inputs: {{command: ls}}}}\n  - {block}\n"
    )
    return told(text, f"{tmp_path}/flow.yaml")


WRONG = {
    "{id: a, type: Shell, depends_on: [first, first], inputs: {command: ls}}": "'first' twice",
    "{id: a, type: Shell, inputs: {command: ls, cwd: ../..}}": "'../..' leads out of",
    "{id: a, type: Shell, inputs: {command: ls, cwd: a/../../b}}": "leads out of",
    "{id: a, type: CreateFile, inputs: {path: /etc/passwd, content: x}}": "is absolute",
    "{id: a, type: EditFile, inputs: {path: ../x, edits: []}}": "leads out of",
    "{id: a, type: ReadFiles, inputs: {paths: [x, '/etc/*']}}": "'/etc/*' is absolute",
    "{id: a, type: HttpCall, inputs: {url: 'localhost:99/x'}}": "no address of http://",
    "{id: a, type: HttpCall, inputs: {url: 'http://x', method: FETCH}}": "no method 'FETCH'",
    "{id: a, type: Shell, for_each: '{{ inputs.many }}', inputs: {command: ls}}": (
        "not the input many of type int"
    ),
    "{id: a, type: Shell, inputs: {command: ls, timeout: 3}}": "belongs one level up",
}


@pytest.mark.parametrize("block", WRONG)
def test_mistake_is_told_once(block: str, tmp_path: object) -> None:
    (problem,) = of_block(block, tmp_path)
    assert WRONG[block] in problem


@pytest.mark.parametrize(
    "block",
    [
        "{id: a, type: Shell, inputs: {command: ls, cwd: a/../b}}",
        "{id: a, type: Shell, inputs: {command: ls, cwd: '{{ inputs.some[0] }}'}}",
        "{id: a, type: CreateFile, inputs: {path: ..x, content: x}}",
        "{id: a, type: HttpCall, inputs: {url: 'HTTPS://x', method: patch}}",
        "{id: a, type: HttpCall, inputs: {url: '{{ inputs.some[0] }}/x'}}",
        "{id: a, type: Shell, for_each: '{{ inputs.some }}', inputs: {command: ls}}",
        "{id: a, type: Shell, for_each: '{{ range(inputs.many) }}', inputs: {command: ls}}",
    ],
)
def test_what_may_be_right_is_left_alone(block: str, tmp_path: object) -> None:
    assert of_block(block, tmp_path) == []


def test_expression_without_quotes_is_told_to_be_put_in_quotes() -> None:
    (problem,) = parse(b"prompt: {{ inputs.x }}").problems
    assert "in quotes" in problem.reason


def test_every_type_that_names_files_is_known() -> None:
    assert {"Shell", "ReadFiles", "CreateFile", "EditFile", "HttpCall"} <= {
        kind.name for kind in BUILT_IN
    }
