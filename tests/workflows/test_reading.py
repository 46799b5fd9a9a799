"""Definitions from YAML and JSON: every mistake with its line, and nothing that runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import WorkflowInvalid
from holdfast.workflows import Block, Dependency, Input, Workflow, WorkflowProblem, load, loads
from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.checks import definition_reader, shape
from holdfast.workflows.checks.checker import mistakes_of, problems_of
from holdfast.workflows.definitions.definition import plain
from holdfast.workflows.definitions.sources import UNKNOWN, source_of

TYPES = {kind.name: kind for kind in BUILT_IN}
RELEASE = """
name: release
version: "1.2"
inputs:
  version: {type: str}
  days: {type: int, default: 0x10}
blocks:
  - id: approve
    type: Prompt
    inputs:
      prompt: Release {{ inputs.version }}?
      choices: [yes, no]
  - id: rest
    type: Wait
    depends_on:
      - approve
      - {block: other, required: false}
    inputs: {seconds: 1.5e1}
  - {id: other, type: Agent, inputs: {agent: a, input: null}}
outputs:
  said: "{{ blocks.approve.outputs.response }}"
"""


def told(text: str) -> list[WorkflowProblem]:
    with pytest.raises(WorkflowInvalid) as caught:
        loads(text, "flow.yaml")
    problems = [each for each in caught.value.problems if isinstance(each, WorkflowProblem)]
    assert str(caught.value).splitlines() == [str(each) for each in problems]
    return problems


def test_yaml_is_read_as_the_definition_it_says() -> None:
    assert loads(RELEASE) == Workflow(
        name="release",
        version="1.2",
        inputs={"version": Input(type="str"), "days": Input(type="int", default=16)},
        blocks=[
            Block(
                id="approve",
                type="Prompt",
                inputs={"prompt": "Release {{ inputs.version }}?", "choices": ["yes", "no"]},
            ),
            Block(
                id="rest",
                type="Wait",
                depends_on=["approve", Dependency(block="other", required=False)],
                inputs={"seconds": 15.0},
            ),
            Block(id="other", type="Agent", inputs={"agent": "a", "input": None}),
        ],
        outputs={"said": "{{ blocks.approve.outputs.response }}"},
    )


def test_json_gives_the_same_with_tabs_and_escapes_too(tmp_path: Path) -> None:
    made = loads(RELEASE.replace("Release ", "Release \U0001f600 "))
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(plain(made), indent="\t"))
    assert "\\ud83d\\ude00" in file.read_text()
    assert load(file) == made


def test_lines_are_kept_beside_the_definition_as_long_as_it_lives() -> None:
    made = loads(RELEASE, "flow.yaml")
    source = source_of(made)
    assert source.file == "flow.yaml"
    assert source.line_of(("blocks", 0, "inputs", "prompt")) == 11
    assert source.line_of(("blocks", 1, "depends_on", 1, "block")) == 17
    assert source.line_of(("blocks", 1, "nothing", "here")) == 13
    assert source_of(msgspec.structs.replace(made)) is UNKNOWN


def test_problems_that_a_kit_finds_have_lines_too() -> None:
    made = loads(RELEASE.replace("type: Wait", "type: Weit"), "flow.yaml")
    (problem,) = problems_of(made, types=TYPES)
    assert (problem.file, problem.line, problem.where) == ("flow.yaml", 14, "blocks[1].type")
    assert str(problem) == (
        "flow.yaml:14: block rest: no type of blocks is named 'Weit'; did you mean 'Wait'?"
    )


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("name: a\nname: b\n", 2, "name is given twice; the first is in line 1"),
        ("name: a\nblocks:\n\t- id: x\n", 3, "a tab; indent with spaces"),
        ("name: a\ninputs: {1: {}}\n", 2, "a key must be a text; write it as '1' with quotes"),
        ("name: a\ninputs: {true: {}}\n", 2, "a key must be a text"),
        ("name: a\ninputs: {[x]: {}}\n", 2, "a key must be a word"),
        ("name: a\nbase: &b {}\ninputs: {<<: *b}\n", 3, "`<<` (merging) is not allowed"),
        ("name: !!python/object/apply:os.system [ls]\n", 1, "tags (!…) are not allowed"),
        ("name: a\nversion: 99999999999999999999999\n", 2, "more than 64 bits"),
        ("name: a\nversion: .inf\n", 2, "no number that can be kept"),
        ('name: "\\ud83d"\n', 1, "half of a character"),
        ("name: a\n---\nname: b\n", 2, "a second document begins here"),
        ("- a\n", 1, "a workflow is a map with name and blocks, not a list"),
        ("", 1, "the workflow lacks 'name'"),
        ("name: a\nblocks: {x: {type: Wait}}\n", 2, "blocks must be a list, not a map"),
        ("name: a\nversion: 1.0\n", 2, "version must be a text, not the number 1.0"),
    ],
)
def test_mistake_in_the_text_is_told_with_its_line(text: str, line: int, reason: str) -> None:
    found = [(each.line, each.reason) for each in told(text)]
    assert any(at == line and reason in said for at, said in found), found


def test_mistakes_are_told_all_at_once() -> None:
    text = (
        "nam: a\nversion: 2\ninputs: {1: {}, x: {type: string}}\nblocks: [{id: q}, {type: Wait}]\n"
    )
    assert [each.line for each in told(text)] == [1, 1, 2, 3, 3, 4, 4]


def test_anchors_are_expanded_and_bombs_are_not() -> None:
    shared = "name: a\nblocks:\n  - {id: q, type: Wait, inputs: &w {seconds: 1}}\n"
    assert loads(shared + "  - {id: r, type: Wait, inputs: *w}\n").blocks[1].inputs == {
        "seconds": 1
    }
    layers = "".join(
        f"  l{at}: &l{at} [{', '.join([f'*l{at - 1}'] * 10)}]\n" for at in range(1, 20)
    )
    (problem,) = told(f"name: a\noutputs:\n  l0: &l0 [x]\n{layers}")
    assert "more than 50,000 values, aliases expanded" in problem.reason


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkflowInvalid, match="No such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(WorkflowInvalid, match="cannot be read"):
        load(tmp_path)


def test_without_pyyaml_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from holdfast.workflows import loads\n"
        "try: loads('name: a')\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'holdfast[workflows]'" in done.stdout


WORDS = """name version inputs blocks outputs id type depends_on block required condition for_each
timeout retries default choices prompt schema workflow tool args value $ref pattern"""
KEYS = st.sampled_from(WORDS.split())
TEXTS = st.sampled_from(
    [
        "Prompt",
        "Workflow",
        "Tool",
        "Wait",
        "a",
        "b",
        "{{ blocks.a.outputs }}",
        "{{ secrets.x | nope }}",
        "{{ each",
        "{% for x in inputs %}{{ x }}{% endfor %}",
        "{{ " + "(" * 500,
        "{{ " + "9" * 5000 + " }}",
        "{{ a" + ".b" * 3000 + " }}",
        "http://127.0.0.1:1/x",
        "(a+)+$",
    ]
) | st.text(max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXTS, inner, max_size=5),
    max_leaves=30,
)
BLOCKS = st.lists(st.dictionaries(KEYS, PLAIN, max_size=6), max_size=4)
DATA = PLAIN | st.fixed_dictionaries({"name": TEXTS, "blocks": BLOCKS, "inputs": PLAIN})


@settings(deadline=None, max_examples=150)
@given(DATA)
def test_any_data_gives_problems_or_a_workflow(data: Any) -> None:
    draft = shape.drafted(data, UNKNOWN)
    problems = [*draft.problems, *mistakes_of(draft, types=TYPES, tools=["a"], library={})]
    assert all(each.reason for each in problems)
    if not draft.problems:
        assert msgspec.convert(data, Workflow) == draft.workflow


@settings(deadline=None, max_examples=150)
@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")) | DATA.map(repr))
def test_any_text_is_a_workflow_or_invalid(text: str) -> None:
    problems = list[object](definition_reader.parse(text.encode(errors="replace")).problems)
    try:
        made = loads(text)
    except WorkflowInvalid as error:
        made, problems = None, [*error.problems]
    assert (made is None) == bool(problems)


def test_data_that_holds_itself_or_is_no_data_is_a_problem() -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    for odd in (endless, {"x": object()}, {"x": {1, 2}}, {"x": print}):
        made = Workflow(name="a", blocks=[Block(id="q", type="Wait", inputs=odd)])
        assert problems_of(made, types=TYPES) != []
