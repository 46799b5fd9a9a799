"""A run that goes on in another process, in another folder, or where something is missing."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import MisuseError
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Kit
from holdfast.workflows.blocks import outside
from tests.workflows.flows import Notes, call, flow, opened, prompt


@async_test
async def test_an_answer_leaves_the_run_to_a_process_that_has_its_tools(store: str) -> None:
    notes = Notes()
    made = flow(prompt("ok"), call("pay", depends_on=["ok"]))
    async with opened(store, tools=[notes.tool]) as hf:
        await hf.workflows.run(made, run_id="r")
    async with opened(store) as hf:
        outcome = await hf.workflows.resume("r", {"ok": "yes"})
        assert (outcome.status, outcome.lacks) == ("ready", ["tool 'note'"])
    async with opened(store, tools=[notes.tool]) as hf:
        assert (await hf.workflows.resume("r")).status == "completed"
    assert notes.done == ["pay"]


@async_test
async def test_files_are_where_the_run_was_started_unless_a_kit_says_else(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    made = flow(
        Block(id="w", type="CreateFile", inputs={"path": "a.txt", "content": "mine"}),
        prompt("ok", depends_on=["w"]),
        Block(id="r", type="ReadFiles", depends_on=["ok"], inputs={"paths": ["a.txt"]}),
        outputs={"text": "{{ blocks.r.outputs.files[0].content }}"},
    )
    monkeypatch.chdir(here)
    async with opened(store) as hf:
        await hf.workflows.run(made, run_id="r")
        await hf.workflows.run(made, run_id="moved")
    monkeypatch.chdir(there)
    async with opened(store) as hf:
        assert (await hf.workflows.resume("r", {"ok": ""})).outputs == {"text": "mine"}
        assert (await hf.workflows.run(made, run_id="r")).status == "completed"
    (here / "a.txt").rename(there / "a.txt")
    here.rmdir()
    async with opened(store) as hf:
        outcome = await hf.workflows.resume("moved", {"ok": ""})
        assert outcome.status == "blocked"
        assert f"no folder {here}" in outcome.error
        await hf.runs.unblock("moved")
    async with opened(store, root=there) as hf:
        assert (await hf.workflows.resume("moved")).outputs == {"text": "mine"}


@async_test
async def test_a_block_whose_secret_is_missing_waits_for_it(store: str) -> None:
    notes = Notes()
    made = flow(call("a", args={"what": "{{ secrets.token }}"}))
    async with opened(store, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert outcome.status == "blocked"
        assert "secret 'token'" in outcome.error
        assert "HOLDFAST_SECRET_TOKEN" in outcome.error
        await hf.runs.unblock("r")
    async with opened(store, tools=[notes.tool], secrets={"token": "canary-77"}) as hf:
        assert (await hf.workflows.resume("r")).status == "completed"
    assert notes.done == ["canary-77"]


def test_what_is_no_type_of_blocks_is_refused_at_once() -> None:
    class Shout:
        name = "Shout"

        async def execute(self, block: Any, inputs: Any) -> None:
            raise AssertionError("it is never carried out")

    wrong: Any = Shout()
    with pytest.raises(MisuseError, match=r"lacks inputs .*, waits .*, takes_secrets"):
        Kit(types=[wrong])
    wrong = Shout
    with pytest.raises(MisuseError, match="give an object of it"):
        Kit(types=[wrong])
    with pytest.raises(MisuseError, match="no type of blocks"):
        holdfast.Holdfast("memory://", workflows=Kit(types=[wrong()]))


@pytest.mark.parametrize(
    ("told", "stdout"), [("done", "done"), (None, ""), ({"stdout": "x"}, "x"), ([1], "[1]")]
)
def test_what_a_person_says_of_a_command_takes_the_form_of_its_outputs(
    told: Any, stdout: str
) -> None:
    """`effects resolve --happened done` is what people write."""
    form = {"stdout": "", "stderr": "", "exit_code": 0}
    assert outside.in_form(told, form, "stdout") == {**form, "stdout": stdout}
