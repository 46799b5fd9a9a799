"""The definitions that a workflow may come to: known ones, and files next to the one that names."""

from pathlib import Path

import pytest

from holdfast.errors import WorkflowInvalid
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Kit, Workflow, load
from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.checks.library import collect, examine
from tests.workflows.flows import opened

TYPES = {kind.name: kind for kind in BUILT_IN}


def naming(name: str, *others: str) -> str:
    blocks = "".join(
        f"  - {{id: b{at}, type: Workflow, condition: 1 < 2, inputs: {{workflow: {other}}}}}\n"
        for at, other in enumerate(others)
    )
    return f"name: {name}\nblocks:\n{blocks}" if others else f"name: {name}\n"


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_names_are_known_ones_first_then_files_next_to_the_one_that_names(tmp_path: Path) -> None:
    write(tmp_path, main=naming("main", "known", "beside", "./sub/x.yaml", "main"))
    write(tmp_path, known=naming("file"), beside=naming("other-name"))
    write(tmp_path / "sub", x=naming("x", "y"), y=naming("y", "../beside.yaml"))
    known = Workflow(name="known", description="not the file")
    found = collect(load(tmp_path / "main.yaml"), {"known": known})
    assert {name: each.name for name, each in found.items()} == {
        "main": "main",
        "known": "known",
        "beside": "other-name",
        "./sub/x.yaml": "x",
        "y": "y",
        "../beside.yaml": "other-name",
    }
    assert found["known"] is known


def test_folder_can_be_told_for_what_was_not_read(tmp_path: Path) -> None:
    write(tmp_path, child=naming("child"))
    block = Block(id="b", type="Workflow", inputs={"workflow": "child"})
    main = Workflow(name="main", blocks=[block])
    assert set(collect(main, {}, folder=tmp_path)) == {"main", "child"}
    with pytest.raises(WorkflowInvalid, match="no workflow 'child' is known"):
        collect(main, {})


def test_mistakes_of_all_definitions_are_told_at_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        main=naming("main", "child", "kid", "broken", "missing") + "  - {id: x}\n",
        child="name: child\nblocks:\n  - {id: q, type: Prompt, inputs: {prompt: '{{ what }}'}}\n",
        broken="name: [\n",
    )
    kid = Workflow(name="kid", blocks=[Block(id="w", type="Wiat")])
    found = examine(tmp_path / "main.yaml", {"kid": kid}, types=TYPES)
    told = [str(each).replace(f"{tmp_path}/", "") for each in found.problems]
    assert [each.partition(" ")[0] for each in told] == [
        "workflow",
        "broken.yaml:2:",
        "child.yaml:3:",
        "main.yaml:5:",
        "main.yaml:6:",
        "main.yaml:7:",
    ]
    assert told[0].startswith("workflow kid: blocks[0].type: ")
    assert "workflow 'broken' cannot be read" in told[3]
    assert "no workflow 'missing' is known, and no such file" in told[4]


def test_one_name_cannot_mean_two_files(tmp_path: Path) -> None:
    write(tmp_path, main=naming("main", "./sub/a.yaml", "x"), x=naming("x"))
    write(tmp_path / "sub", a=naming("a", "x"), x=naming("other-x"))
    with pytest.raises(WorkflowInvalid, match="give one of the files another name"):
        collect(load(tmp_path / "main.yaml"), {})


@pytest.mark.parametrize("name", ["/etc/passwd", "./x.txt", "sub/x", "a\0b", "x" * 5000, "./sub"])
def test_only_definitions_are_opened(tmp_path: Path, name: str) -> None:
    write(tmp_path / "sub", x=naming("x"))
    (tmp_path / "x.txt").write_text(naming("x"))
    main = Workflow(name="main", blocks=[Block(id="b", type="Workflow", inputs={"workflow": name})])
    found = examine(main, {}, types=TYPES, folder=tmp_path)
    assert [each.where for each in found.problems] == ["blocks[0].inputs.workflow"]


def test_workflows_that_name_each_other_are_collected_once(tmp_path: Path) -> None:
    write(tmp_path, a=naming("a", "b"), b=naming("b", "a"))
    assert set(collect(load(tmp_path / "a.yaml"), {})) == {"a", "b"}


@async_test
async def test_file_is_run_with_those_it_names_and_may_go_then(store: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        main=naming("main", "./sub/ask.yaml") + 'outputs: {said: "{{ blocks.b0.outputs.said }}"}\n',
    )
    ask = "name: ask\nblocks: [{id: q, type: Prompt, inputs: {prompt: Well}}]\n"
    sub = write(tmp_path / "sub", ask=ask + 'outputs: {said: "{{ blocks.q.outputs.response }}"}\n')
    async with opened(store) as hf:
        outcome = await hf.workflows.run(str(tmp_path / "main.yaml"))
        assert [each.block for each in outcome.waiting] == ["b0/q"]
        (tmp_path / "main.yaml").unlink()
        (sub / "ask.yaml").write_text("name: [")
        outcome = await hf.workflows.resume(outcome.run_id, {"b0/q": "fine"})
    assert (outcome.status, outcome.outputs) == ("completed", {"said": "fine"})


@async_test
async def test_nothing_is_started_of_a_file_with_mistakes(store: str, tmp_path: Path) -> None:
    write(tmp_path, main="name: main\nblocks: [{id: q, type: Promt}, {id: q, type: Wait}]\n")
    async with opened(store) as hf:
        with pytest.raises(WorkflowInvalid) as caught:
            await hf.workflows.start(tmp_path / "main.yaml")
        assert await hf.workflows.list() == []
    assert len(caught.value.problems) == 3
    assert f"{tmp_path}/main.yaml:2: " in str(caught.value)


def test_kit_with_types_of_its_own_says_which_there_are() -> None:
    made = Workflow(name="x", blocks=[Block(id="a", type="Nope")])
    (problem,) = examine(made, {}, types=Kit().types).problems
    assert "Prompt" in problem.suggestion
