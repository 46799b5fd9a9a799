"""The schema that editors are given: it takes what is right, and refuses what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from holdfast.cli.workflows.check import schema, validate
from holdfast.terminal.exits import Exit
from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.checks.definition_reader import parse
from holdfast.workflows.checks.schema import schema_of
from tests.workflows.test_checking import Own
from tests.workflows.test_reading import RELEASE

SCHEMA = schema_of()
LOOP = """
name: loop
inputs: {regions: {type: list, default: [eu, us], choices: [[eu, us]]}}
blocks:
  - id: deploy
    type: Tool
    for_each: "{{ inputs.regions }}"
    for_each_mode: sequential
    max_parallel: 3
    timeout: 5
    retries: 2
    continue_on_error: true
    condition: each.first
    inputs: {tool: deploy, args: {region: "{{ each.value }}"}}
  - id: rest
    type: Wait
    for_each: {a: 1}
    inputs: {seconds: "{{ each.value }}"}
  - {id: child, type: Workflow, inputs: {workflow: ./x.yaml, inputs: "{{ inputs }}"}}
outputs:
  all: {value: "{{ blocks.deploy.outputs }}", type: list}
  plain: {a: 1}
"""


def errors(text: str, given: dict[str, Any] = SCHEMA) -> list[Any]:
    document = parse(text.encode())
    assert document.problems == []
    validator: Any = Draft202012Validator(given)
    return list(validator.iter_errors(document.data))


def invoke(command: Any, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, words, standalone_mode=False)
    code = done.return_value
    return (0 if code is None else int(code)), done.stdout


def test_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    kinds = SCHEMA["$defs"]["Block"]["properties"]["type"]["anyOf"]
    assert [each["const"] for each in kinds] == [kind.name for kind in BUILT_IN]
    assert all(each["description"] for each in kinds)


def test_every_key_is_described() -> None:
    parts = {"Workflow": SCHEMA, **SCHEMA["$defs"]}
    for name in ("Workflow", "Input", "Output", "Block", "Dependency"):
        assert all(each.get("description") for each in parts[name]["properties"].values())


@pytest.mark.parametrize("text", [RELEASE, LOOP, "name: empty\n"])
def test_what_is_right_is_taken(text: str) -> None:
    assert errors(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "version: '1'\n",
        "name: a\nnam: b\n",
        "name: a\nversion: 1.0\n",
        "name: a\ninputs: {x: {type: string}}\n",
        "name: a\ninputs: {'5x': {}}\n",
        "name: a\ninputs: {x: {choices: []}}\n",
        "name: a\nblocks: {x: {}}\n",
        "name: a\nblocks: [{id: x}]\n",
        "name: a\nblocks: [{id: x, type: Nope}]\n",
        "name: a\nblocks: [{id: 'x y', type: Agent, inputs: {agent: a}}]\n",
        "name: a\nblocks: [{id: x, type: Prompt}]\n",
        "name: a\nblocks: [{id: x, type: Prompt, inputs: {promt: hi}}]\n",
        "name: a\nblocks: [{id: x, type: Prompt, inputs: {prompt: hi, choices: yes}}]\n",
        "name: a\nblocks: [{id: x, type: Wait, inputs: {seconds: soon}}]\n",
        "name: a\nblocks: [{id: x, type: Wait, inputs: {seconds: 1}, retries: 21}]\n",
        "name: a\nblocks: [{id: x, type: Wait, inputs: {seconds: 1}, timeout: 0}]\n",
        "name: a\nblocks: [{id: x, type: Wait, inputs: {seconds: 1}, for_each: text}]\n",
        "name: a\nblocks: [{id: x, type: Wait, inputs: {seconds: 1}, depends_on: [{id: y}]}]\n",
        "name: a\noutputs: {x: {value: 1, typ: str}}\n",
    ],
)
def test_what_is_wrong_is_refused(text: str) -> None:
    assert errors(text) != []


def test_types_of_ones_own_are_in_the_schema() -> None:
    made = schema_of([*BUILT_IN, Own()])
    block = "name: a\nblocks: [{id: x, type: Own, inputs: {inner: [%s]}}]\n"
    assert errors(block.replace("%s", "{size: 1}, {size: '{{ 2 }}'}, '{{ 3 }}'"), made) == []
    assert errors(block.replace("%s", "{size: large}"), made) != []


def test_command_prints_the_schema() -> None:
    for words in ((), ("-o", "json")):
        code, text = invoke(schema, *words)
        assert (code, json.loads(text)) == (0, SCHEMA)


def test_command_tells_every_mistake_with_its_line(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(RELEASE)
    bad.write_text("name: a\nblocks:\n  - {id: x, type: Wiat}\n  - {id: x, type: Prompt}\n")
    assert invoke(validate, str(good)) == (Exit.OK, "")
    code, text = invoke(validate, str(good), str(bad))
    assert code == Exit.USAGE
    assert text.splitlines() == [
        f"{bad}:3: block x: no type of blocks is named 'Wiat'; did you mean 'Wait'?",
        f"{bad}:4: there are two blocks 'x'; the first is in line 3; give one another id",
        f"{bad}:4: block x lacks 'prompt'; add `prompt:`",
    ]


def test_command_gives_json_for_programs(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: a\nblok: []\n")
    code, text = invoke(validate, str(bad), "-o", "json")
    assert code == Exit.USAGE
    assert json.loads(text) == {
        "file": str(bad),
        "valid": False,
        "warnings": [],
        "problems": [
            {
                "file": str(bad),
                "line": 2,
                "where": "blok",
                "reason": "the workflow knows no key 'blok'",
                "suggestion": "did you mean 'blocks'?",
            }
        ],
    }
    code, text = invoke(validate, str(tmp_path / "none.yaml"), "-o", "json")
    assert (code, json.loads(text)["valid"]) == (Exit.USAGE, False)
