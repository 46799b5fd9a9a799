"""Every mistake of a definition is found before anything runs."""

from typing import Any, ClassVar, Literal

import msgspec
import pytest

from holdfast.workflows import Block, BlockRun, Input, Workflow, WorkflowProblem, loads
from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.checks.checker import problems_of
from holdfast.workflows.checks.definition_reader import parse
from holdfast.workflows.checks.library import examine


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class OwnInputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["fast", "slow"] = "fast"
    count: int | None = None
    inner: list[Inner] = []
    names: dict[str, bool] = {}


class Own:
    """A type of blocks as a user writes it."""

    name: ClassVar[str] = "Own"
    inputs: ClassVar[type[msgspec.Struct]] = OwnInputs
    waits: ClassVar[bool] = False
    takes_secrets: ClassVar[bool] = True

    async def execute(self, block: BlockRun, inputs: OwnInputs) -> Any:
        return {}


TYPES = {kind.name: kind for kind in (*BUILT_IN, Own())}
CHILD = Workflow(
    name="child",
    inputs={"who": Input(), "size": Input(type="int", default=1, choices=[1, 2])},
)
FLOW = """
name: flow
inputs:
  who: {{}}
  items: {{type: list, default: []}}
blocks:
  - {{id: first, type: Own}}
  - {{id: my-block, type: Own}}
  - {block}
outputs:
  out: {output}
"""


def found(block: str, output: str = "1") -> list[WorkflowProblem]:
    made = Workflow(**_raw(FLOW.format(block=block, output=output)))
    return problems_of(made, types=TYPES, tools=["deploy"], library={"child": CHILD})


def _raw(text: str) -> dict[str, Any]:
    document = parse(text.encode())
    assert document.problems == []
    return document.data


def own(text: str) -> str:
    return f"{{id: last, type: Own, depends_on: [first], {text}}}"


def of_prompt(text: str, more: str = "") -> str:
    return f"{{id: last, type: Prompt, inputs: {{prompt: hi, {text}}} {more}}}"


def nested(text: str) -> str:
    return f"{{id: last, type: Workflow, inputs: {{{text}}}}}"


def says(text: str) -> str:
    """A block whose input has this expression."""
    return f'{{id: last, type: Own, depends_on: [first], inputs: {{mode: "{text}"}}}}'


@pytest.mark.parametrize(
    ("block", "where", "reason", "suggestion"),
    [
        # shape
        ("{id: last, type: Own, tiemout: 5}", "blocks[2].tiemout", "knows no key", "'timeout'"),
        ("{id: last, type: Own, needs: [first]}", "blocks[2].needs", "no key", "'depends_on'"),
        ("{id: last}", "blocks[2]", "block last lacks 'type'", "add `type:`"),
        ("{type: Own}", "blocks[2]", "block number 3 lacks 'id'", "add `id:`"),
        ("{id: 5, type: Own}", "blocks[2].id", "must be a text, not the number 5", "quotes"),
        ("{id: 5x, type: Own}", "blocks[2].id", "'5x' cannot be a block's id", "letters"),
        (f"{{id: {'x' * 65}, type: Own}}", "blocks[2].id", "cannot be", "at most 64"),
        ("{id: first, type: Own}", "blocks[2].id", "two blocks 'first'", "another id"),
        ("{id: last, type: Onw}", "blocks[2].type", "no type of blocks", "did you mean 'Own'?"),
        (own("continue_on_error: yes"), "blocks[2].continue_on_error", "true or false", "true"),
        (own("for_each_mode: serial"), "blocks[2].for_each_mode", "one of", "sequential"),
        (own("timeout: '{{ 5 }}'"), "blocks[2].timeout", "a number", "not evaluated here"),
        # limits
        (own("max_parallel: 0"), "blocks[2].max_parallel", "from 1 to 100, not 0", ""),
        (own("retries: 21"), "blocks[2].retries", "from 0 to 20, not 21", ""),
        (own("timeout: 0"), "blocks[2].timeout", "more than 0 seconds", ""),
        (own("for_each: 5"), "blocks[2].for_each", "a list or a map, not the number 5", "{{"),
        (own("for_each: inputs.items"), "blocks[2].for_each", "not the text", "{{"),
        (own("for_each: 'a {{ inputs.who }}'"), "blocks[2].for_each", "a text with", "{{"),
        # inputs of a type
        (own("inputs: {mod: fast}"), "blocks[2].inputs.mod", "no key 'mod'", "'mode'"),
        (own("inputs: {mode: quick}"), "blocks[2].inputs.mode", "one of 'fast', 'slow'", ""),
        (own("inputs: {count: many}"), "blocks[2].inputs.count", "a whole number", ""),
        (own("inputs: {inner: [{size: 1}, {}]}"), "blocks[2].inputs.inner[1]", "'size'", "add"),
        (own("inputs: {names: {a: 1}}"), "blocks[2].inputs.names.a", "true or false", ""),
        ("{id: last, type: Prompt}", "blocks[2].inputs", "lacks 'prompt'", "add `prompt:`"),
        # dependencies
        ("{id: last, type: Own, depends_on: [frist]}", "blocks[2].depends_on[0]", "is not there",
         "did you mean 'first'?"),
        ("{id: last, type: Own, depends_on: [last]}", "blocks[2].depends_on", "last -> last", ""),
        # expressions
        (says("{{ inputs.who"), "blocks[2].inputs.mode", "is no expression", ""),
        (says("{{ input.who }}"), "blocks[2].inputs.mode", "called 'input'", "'inputs'"),
        (says("{{ who }}"), "blocks[2].inputs.mode", "called 'who'", "inputs.who"),
        (says("{{ inputs.whom }}"), "blocks[2].inputs.mode", "no input 'whom'", "'who'"),
        (says("{{ inputs.items }}"), "blocks[2].inputs.mode", "every map", "inputs['items']"),
        (says("{{ blocks.frist.status }}"), "blocks[2].inputs.mode", "no block", "'first'"),
        (says("{{ blocks.my-block.status }}"), "blocks[2].inputs.mode", "no block 'my'",
         "blocks['my-block']"),
        (says("{{ blocks['my-block'].status }}"), "blocks[2].inputs.mode", "may not have ended",
         "add my-block to its depends_on"),
        (says("{{ blocks.last.status }}"), "blocks[2].inputs.mode", "refers to itself", ""),
        (says("{{ blocks.first.output.x }}"), "blocks[2].inputs.mode", "no 'output'", "'outputs'"),
        (says("{{ blocks.first.stdout }}"), "blocks[2].inputs.mode", "has no 'stdout'",
         "blocks.first.outputs.stdout"),
        (says("{{ each.value }}"), "blocks[2].inputs.mode", "`each` is known in", "for_each"),
        (own("for_each: [1], inputs: {mode: '{{ each.vale }}'}"), "blocks[2].inputs.mode",
         "`each` has no 'vale'", "'value'"),
        (own("for_each: '{{ [each.value] }}'"), "blocks[2].for_each", "`each` is known in", ""),
        (says("{{ inputs.who | uper }}"), "blocks[2].inputs.mode", "no filter 'uper'", "'upper'"),
        (says("{{ inputs.who is defind }}"), "blocks[2].inputs.mode", "no test", "'defined'"),
        (says("{% include 'x' %}"), "blocks[2].inputs.mode", "includes no templates", ""),
        (own("condition: blocks.frist.failed"), "blocks[2].condition", "no block", "'first'"),
        (own("condition: yes"), "blocks[2].condition", "called 'yes'", "'true'"),
        # secrets
        (own("condition: secrets.x == 'a'"), "blocks[2].condition", "secrets cannot decide", ""),
        (of_prompt("default: '{{ secrets.x }}'", ", timeout: 5"), "blocks[2].inputs.default",
         "blocks of type Prompt take no secrets", ""),
        (says("{{ secrets.x | upper }}"), "blocks[2].inputs.mode", "value of a secret", "as it is"),
        (says("{{ secrets }}"), "blocks[2].inputs.mode", "one by one", "secrets.NAME"),
        # Prompt
        (of_prompt("choices: []"), "blocks[2].inputs.choices", "empty", ""),
        (of_prompt("schema: {type: strin}"), "blocks[2].inputs.schema", "JSON Schema", ""),
        (of_prompt("schema: {$ref: 'http://127.0.0.1:1/'}"), "blocks[2].inputs.schema",
         "refers to another", ""),
        (of_prompt("default: a"), "blocks[2].inputs.default", "there is no timeout", "timeout"),
        (of_prompt("default: c, choices: [a, b]", ", timeout: 5"), "blocks[2].inputs.default",
         "the default is no answer", ""),
        (of_prompt("default: c, schema: {type: integer}", ", timeout: 5"),
         "blocks[2].inputs.default", "the default is no answer", ""),
        # Wait, Tool, Workflow
        ("{id: last, type: Wait}", "blocks[2].inputs", "says not what it waits for", "seconds"),
        ("{id: last, type: Wait, inputs: {seconds: 1, signal: s}}", "blocks[2].inputs",
         "seconds and signal", "one of"),
        ("{id: last, type: Tool, inputs: {tool: deplyo}}", "blocks[2].inputs.tool",
         "no tool 'deplyo'", "'deploy'"),
        (nested("workflow: chidl"), "blocks[2].inputs.workflow", "no workflow", "'child'"),
        (nested("workflow: '{{ inputs.who }}'"), "blocks[2].inputs.workflow", "a literal", "name"),
        (nested("workflow: child"), "blocks[2].inputs.inputs", "must be given 'who'", "add"),
        (nested("workflow: child, inputs: {who: a, sise: 1}"), "blocks[2].inputs.inputs.sise",
         "has no input 'sise'", "'size'"),
        (nested("workflow: child, inputs: {who: a, size: b}"), "blocks[2].inputs.inputs.size",
         "must be of type int", ""),
        (nested("workflow: child, inputs: {who: a, size: 3}"), "blocks[2].inputs.inputs.size",
         "one of its choices", ""),
    ],
)  # fmt: skip
def test_mistake_of_a_block_is_found(block: str, where: str, reason: str, suggestion: str) -> None:
    problems = found(block)
    assert any(
        each.where == where and reason in each.reason and suggestion in each.suggestion
        for each in problems
    ), problems


@pytest.mark.parametrize(
    "block",
    [
        own("condition: blocks.first.succeeded and not blocks.first.outputs.x is defined"),
        own("for_each: '{{ inputs[\"items\"] }}', inputs: {count: '{{ each.index }}'}"),
        own("for_each: {a: 1}, condition: each.first, inputs: {inner: '{{ each.value }}'}"),
        own("inputs: {count: null, names: {a: '{{ inputs.who }}'}, mode: '{{ secrets.x }}'}"),
        says("{% for k, v in inputs.items() %}{{ k ~ loop.index }}{% endfor %}"),
        says("{% set x = now() %}{{ x.isoformat() ~ range(3) | list | json | base64 }}"),
        says("{{ blocks.get('first').status }} {{ inputs.who.upper() | quote }}"),
        says("{{ blocks['fi' ~ 'rst'].rounds[0].outputs.x }}"),
        says("{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{{ m(inputs.who) }}"),
        of_prompt("default: b, choices: [a, b]", ", timeout: 5"),
        of_prompt("schema: {type: object, properties: {a: {$ref: '#/$defs/x'}}, $defs: {x: {}}}"),
        of_prompt("choices: '{{ inputs[\"items\"] }}', default: x", ", timeout: 5"),
        "{id: last, type: Wait, inputs: {until: '2026-11-16T09:00:00Z'}}",
        "{id: last, type: Tool, inputs: {tool: deploy, args: {token: 'x {{ secrets.t }}'}}}",
        nested("workflow: child, inputs: {who: '{{ inputs.who }}', size: 2}"),
    ],
)
def test_what_is_right_is_not_complained_about(block: str) -> None:
    assert found(block, "{value: '{{ blocks.last.outputs }}', type: any}") == []


def test_outputs_are_checked() -> None:
    (secret,) = found("{id: last, type: Own}", "'{{ secrets.x }}'")
    assert (secret.where, "outputs of a workflow" in secret.reason) == ("outputs.out", True)
    (typed,) = found("{id: last, type: Own}", "{value: 1, typ: str}")
    assert (typed.where, typed.suggestion) == ("outputs.out.typ", "did you mean 'type'?")
    (deep,) = found("{id: last, type: Own}", "{value: {a: ['{{ blocks.lost.status }}']}}")
    assert deep.where == "outputs.out.value.a[0]"


@pytest.mark.parametrize(
    ("spec", "where", "reason"),
    [
        ({"type": "int", "default": "a"}, "inputs.x.default", "not of type int"),
        ({"default": 1}, "inputs.x.default", "not of type str"),
        ({"type": "int", "default": True}, "inputs.x.default", "not of type int"),
        ({"default": None}, "inputs.x.default", "its default is nothing"),
        ({"choices": []}, "inputs.x.choices", "empty"),
        ({"choices": ["a", 1]}, "inputs.x.choices[1]", "is not of type str"),
        ({"choices": ["a"], "default": "b"}, "inputs.x.default", "not one of its choices"),
        ({"type": "string"}, "inputs.x.type", "must be one of"),
        ({"typ": "str"}, "inputs.x.typ", "knows no key"),
        ("str", "inputs.x", "must be a map"),
    ],
)
def test_mistake_of_an_input_is_found(spec: Any, where: str, reason: str) -> None:
    made = Workflow(name="a", inputs={"x": spec})
    (problem,) = problems_of(made, types=TYPES)
    assert (problem.where, reason in problem.reason) == (where, True)


@pytest.mark.parametrize(
    ("spec", "suggestion"),
    [
        ({"default": 5}, "put it in quotes"),
        ({"choices": [1.5]}, "put it in quotes"),
        ({"default": True}, ""),
        ({"type": "bool", "default": 5}, ""),
    ],
)
def test_only_a_number_that_should_be_a_text_is_to_be_put_in_quotes(
    spec: Any, suggestion: str
) -> None:
    (problem,) = problems_of(Workflow(name="a", inputs={"x": spec}), types=TYPES)
    assert problem.suggestion == suggestion


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (2**64 - 1, "the number 18446744073709551615"),
        (2**64, "a huge number"),
        (-(2**64), "a huge number"),
    ],
)
def test_a_number_of_more_than_64_bits_is_not_written_out(number: int, shown: str) -> None:
    made = Workflow(name="a", inputs={"x": Input(default=number)})
    (problem,) = problems_of(made, types=TYPES)
    assert problem.reason == f"input x: its default is {shown}, not of type str"


def test_every_circle_is_named_whole() -> None:
    def block(name: str, *needs: str) -> Block:
        return Block(id=name, type="Own", depends_on=list(needs))

    blocks = [block("a", "b"), block("b", "c"), block("c", "a"), block("d", "e"), block("e", "d")]
    found = [each.reason for each in problems_of(Workflow(name="x", blocks=blocks), types=TYPES)]
    assert found == [
        "these blocks wait for each other: a -> b -> c -> a",
        "these blocks wait for each other: d -> e -> d",
    ]


def test_transitive_dependencies_can_be_referred_to() -> None:
    text = """
name: chain
blocks:
  - {id: a, type: Own}
  - {id: b, type: Own, depends_on: [a]}
  - {id: c, type: Own, depends_on: [{block: b, required: false}], condition: blocks.a.failed}
"""
    assert problems_of(loads(text), types=TYPES) == []


def test_a_broken_block_does_not_hide_the_mistakes_of_others() -> None:
    text = """
name: many
blocks:
  - {id: a, type: Own, retries: lots}
  - {id: b, type: Own, depends_on: a, inputs: {count: "{{ blocks.a.status }}", mode: "{{ x }}"}}
"""
    made = Workflow(**_raw(text))
    assert [each.where for each in problems_of(made, types=TYPES)] == [
        "blocks[0].retries",
        "blocks[1].depends_on",
        "blocks[1].inputs.mode",
    ]


def test_there_is_an_end_to_how_many_blocks_are_looked_at() -> None:
    blocks = [Block(id=f"b{at}", type="Own") for at in range(1001)]
    (problem,) = problems_of(Workflow(name="x", blocks=blocks), types=TYPES)
    assert "1,000 at most" in problem.reason


def test_a_thousand_blocks_in_a_row_are_checked() -> None:
    blocks = [
        Block(id=f"b{at}", type="Own", depends_on=[f"b{at - 1}"] if at else [])
        for at in range(1000)
    ]
    blocks[-1] = msgspec.structs.replace(blocks[-1], condition="blocks.b0.succeeded")
    assert examine(Workflow(name="x", blocks=blocks), {}, types=TYPES).problems == []
