"""Attacks on secrets, expressions and the kit that once got through."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import WorkflowInvalid
from holdfast.settings import Settings
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Input, Kit
from holdfast.workflows.secrets import Secrets
from tests.backends import Backend
from tests.workflows.reaching import block, flow, opened
from tests.workflows.unchecked import started_unchecked

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
            "name: child\n"
            f"blocks:\n  - {{id: s, type: Shell, inputs: {{command: echo {tenant}}}}}\n"
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
