"""Attacks on secrets, expressions and the kit that once got through."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import BlockFailed, WorkflowInvalid
from holdfast.settings import Settings
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Input, Kit
from holdfast.workflows.access.secrets import Secrets
from holdfast.workflows.definitions import expressions
from tests.backends import Backend
from tests.workflows.reaching import block, flow, opened, result
from tests.workflows.unchecked import started_unchecked
from tests.workflows.web import serving

HERE = "memory://"
SEAL = "0123456789abcdef"
CANARY = "CANARY-12345"

NOT_LITERAL = [
    "{{ secrets[inputs.n] }}",
    "{{ secrets['' ~ 'k'] }}",
    "{% set s = secrets %}{{ s.k }}",
    "{% set secrets = secrets %}{{ secrets[inputs.n] }}",
]


def writing(expression: str, **options: Any) -> Any:
    made = block("CreateFile", path="cfg", content=expression)
    return flow(made, inputs={"n": Input(type="str", default="k")}, **options)


@pytest.mark.parametrize("expression", NOT_LITERAL)
@async_test
async def test_a_secret_must_be_named_as_it_is(tmp_path: Path, expression: str) -> None:
    async with opened(HERE, tmp_path, secrets={"k": CANARY}) as hf:
        with pytest.raises(WorkflowInvalid, match="secret"):
            await hf.workflows.run(writing(expression), run_id="r")


@pytest.mark.parametrize("expression", NOT_LITERAL)
@async_test
async def test_a_secret_that_no_definition_names_is_not_given(
    tmp_path: Path, expression: str
) -> None:
    async with opened(HERE, tmp_path, secrets={"k": CANARY}) as hf:
        outcome = await started_unchecked(hf, writing(expression))
    assert "does not name secret 'k'" in outcome.blocks["it"].error
    assert not (tmp_path / "cfg").exists()


@pytest.mark.parametrize(
    "parts", [["⟪secret {} k⟫", ""], ["⟪secret {}", " k⟫"], ["⟪sec", "ret {} k⟫"]]
)
@async_test
async def test_an_answer_cannot_bring_a_reference(
    backend: Backend, tmp_path: Path, parts: list[str]
) -> None:
    made = flow(
        block("Prompt", "a", prompt="who?"),
        block("Prompt", "b", prompt="and?"),
        block(
            "CreateFile",
            "send",
            path="sent",
            content="{{ blocks.a.outputs.response }}{{ blocks.b.outputs.response }}",
            options={"depends_on": ["a", "b"]},
        ),
        block("Shell", "uses", command=["echo", "{{ secrets.k }}"]),
    )
    async with opened(backend.url, tmp_path, secrets={"k": CANARY}) as hf:
        await hf.workflows.run(made, run_id="r", timeout=60)
        seal = (await hf.runs.input("r"))["start"]["seal"]
        first, second = (part.format(seal) for part in parts)
        outcome = await hf.workflows.resume("r", {"a": first, "b": second}, timeout=60)
    assert outcome.blocks["uses"].status == "completed"
    assert "came with data" in outcome.blocks["send"].error
    assert not (tmp_path / "sent").exists()


@async_test
async def test_the_rounds_of_a_loop_cannot_bring_a_reference(tmp_path: Path) -> None:
    made = flow(
        block("Prompt", "a", prompt="who?"),
        block(
            "Prompt",
            "each",
            prompt="{{ each.value }}",
            options={"depends_on": ["a"], "for_each": "{{ [blocks.a.outputs.response] }}"},
        ),
    )
    async with opened(HERE, tmp_path, secrets={"k": CANARY}) as hf:
        await hf.workflows.run(made, run_id="r", timeout=60)
        seal = (await hf.runs.input("r"))["start"]["seal"]
        outcome = await hf.workflows.resume("r", {"a": f"⟪secret {seal} k⟫"}, timeout=60)
    assert "came with data" in outcome.blocks["each"].error


def test_references_are_stored_the_same_in_every_pass() -> None:
    passes = [Secrets({"k": CANARY}.get, SEAL, named=["k"]) for _ in range(2)]
    fresh = [str(each.fresh_reference("k")) for each in passes]
    stored = [each.sealed(text) for each, text in zip(passes, fresh, strict=True)]
    assert fresh[0] != fresh[1]
    assert stored[0] == stored[1] == str(passes[0].reference("k"))
    assert passes[1].reveal(stored[0]) == CANARY


@async_test
async def test_a_kit_of_two_tenants_mixes_nothing_up(backend: Backend, tmp_path: Path) -> None:
    """The same run ids, the same names of workflows, and one kit."""
    kit, found, told = Kit(root=tmp_path), dict[str, Any](), dict[str, list[Any]]()
    for tenant in ("alice", "bob"):
        (folder := tmp_path / tenant).mkdir()
        (folder / "parent.yaml").write_text(
            "name: parent\nblocks:\n  - {id: c, type: Workflow, inputs: {workflow: child}}\n"
            "outputs: {r: '{{ blocks.c.outputs.r }}'}\n"
        )
        (folder / "child.yaml").write_text(
            "name: child\nblocks:\n"
            f"  - {{id: s, type: Shell, inputs: {{command: echo {tenant}}}}}\n"
            "outputs: {r: '{{ blocks.s.outputs.stdout | trim }}'}\n"
        )
        made = holdfast.Holdfast(backend.url, settings=Settings(tenant=tenant), workflows=kit)
        async with made as hf:
            outcome = await hf.workflows.run(
                folder / "parent.yaml",
                run_id="release-1",
                timeout=60,
                observe=told.setdefault(tenant, []).append,
            )
        found[tenant] = outcome.outputs
    assert found == {"alice": {"r": "alice"}, "bob": {"r": "bob"}}
    assert len(told["alice"]) == len(told["bob"]) > 0


BOMBS = [
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ (['a'] * 1000000) | join('b' * 1000000) }}",
    "{{ ('b' * 1000000).join(['a'] * 1000000) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ [1] | slice(1000000000) | list }}",
    "{{ 1 | round(1000000000) }}",
    "{{ [[1]] | tojson(1000000000) }}",
    "{{ [[1]] | tojson(indent='x' * 1000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ 'a'.encode().ljust(10000000000) }}",
    "{{ 'a'.translate({97: 'b' * 1000000}) }}",
    "{{ range(10001) | list }}",
    "{{ ([range(10000)] * 1000000) | map('list') | list }}",
    "{{ [range(10000)] * 1000000 }}",
    "{{ (['a' * 1000000] * 1000000) | json }}",
    "{{ (['a' * 1000000] * 1000000) ~ '' }}",
    "x{{ ['a' * 1000000] * 1000000 }}",
    "{{ (([{'a': 'b' * 1000000}] * 100) ~ '') == '' }}",
    "{% set n = namespace(v='a' * 1000000) %}"
    "{% for x in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
    "{% set n = namespace(v=['a']) %}{% for x in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "{% set n = namespace(v=9) %}{% for x in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "{% for a in range(9999) %}" + "x" * 10_000 + "{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% for a in [1, 2] recursive %}{% if loop.depth < 40 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
    "{{ range(10000) | map('in', range(10000) | list) | list }}",
    "{{ (range(10000) | list) | select('in', range(10000) | list) | list }}",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_expression_makes_no_huge_value_and_no_long_work(bomb: str) -> None:
    with pytest.raises(BlockFailed):
        expressions.render(bomb, {})


def test_what_is_large_but_bounded_is_evaluated() -> None:
    scope = {"inputs": {"text": "a" * 2_000_000, "rows": [{"n": n} for n in range(10_000)]}}
    assert len(expressions.render("{{ inputs.text | upper | quote }}", scope)) == 2_000_000
    assert expressions.render("{{ inputs.rows | map(attribute='n') | sum }}", scope) == 49_995_000
    made = expressions.render("{% for r in inputs.rows %}{{ r.n }},{% endfor %}", scope)
    assert made.count(",") == 10_000
    assert expressions.render("{{ 'a' ~ 1 ~ [2] }}-{{ ['x', 'y'] | join('+') }}", {}) == "a1[2]-x+y"
    assert expressions.render("{{ 'a.b'.replace('.', '-') + ','.join(['c']) }}", {}) == "a-bc"


@pytest.mark.parametrize("replaced", [".replace('a', inputs.new)", " | replace('a', inputs.new)"])
def test_replacing_makes_ten_million_characters_at_most(replaced: str) -> None:
    """The old text counts too: before it is replaced, nobody knows how much of it is left."""
    expression = "{{ (inputs.text" + replaced + ") | length }}"
    scope = {"inputs": {"text": "a" * 1000, "new": "b" * 9_999}}
    assert expressions.render(expression, scope) == 9_999_000
    scope["inputs"]["new"] += "b"
    with pytest.raises(BlockFailed, match="makes 10,001,000 characters"):
        expressions.render(expression, scope)


@pytest.mark.parametrize("expression", ["{{ inputs.n | dictsort }}", "{{ inputs.n | items }}"])
def test_whatever_a_filter_raises_is_a_failed_block(expression: str) -> None:
    with pytest.raises(BlockFailed, match="cannot be evaluated"):
        expressions.render(expression, {"inputs": {"n": 5}})


@pytest.mark.parametrize(
    ("value", "shown"),
    [("4815162342", 4815162342), ("4815162342", 4815162342.0), ("12.5e3", 12500)],
)
def test_a_secret_is_taken_out_as_a_number_too(value: str, shown: float) -> None:
    made = Secrets({"pin": value}.get, SEAL, named=["pin"])
    assert made.redact({"a": [shown, 7, True]}) == {"a": ["***", 7, True]}


def test_numbers_that_are_found_everywhere_are_left() -> None:
    made = Secrets({"pin": "0001"}.get, SEAL, named=["pin"])
    assert made.redact([1, 1.0, True]) == [1, 1.0, True]


@async_test
async def test_commands_do_not_get_addresses_with_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_STORE", "HOLDFAST_TRANSPORT", "WORKFLOW_CHECKPOINT_DSN"):
        monkeypatch.setenv(name, "postgresql://u:dbpassw0rd@h/db")
    found = await result(HERE, tmp_path, block("Shell", command="env"))
    assert "PATH=" in found.outputs["stdout"]
    assert "dbpassw0rd" not in found.outputs["stdout"]


@async_test
async def test_another_host_is_sent_no_secrets(tmp_path: Path) -> None:
    headers = {"X-Api-Key": "{{ secrets.k }}", "X-Plain": "plain"}
    with serving() as first, serving() as other:
        first.away = f"{other.url}/echo"
        sent = {"url": f"{first.url}/away", "headers": headers, "follow_redirects": True}
        found = await result(HERE, tmp_path, block("HttpCall", **sent), secrets={"k": CANARY})
        body = block("HttpCall", method="POST", body="{{ secrets.k }}", **sent)
        stays = await result(HERE, tmp_path, body, secrets={"k": CANARY})
    assert found.status == "completed"
    assert CANARY in repr(first.seen)
    assert CANARY not in repr(other.seen)
    assert "plain" in repr(other.seen)
    assert (stays.status, stays.outputs["status"], len(other.seen)) == ("failed", 307, 1)
