"""Pictures of workflows: everything is there once, nothing overlaps, nothing breaks out."""

import asyncio
import itertools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.cli.workflows import graph as workflow_graph
from holdfast.errors import MisuseError
from holdfast.workflows import Block, Dependency, Kit, Outcome, Waiting, Workflow
from holdfast.workflows.drawing.graph import mermaid, states_of
from holdfast.workflows.drawing.style import FAINT_INK, INK, STATES, BlockState
from holdfast.workflows.drawing.svg import svg
from holdfast.workflows.execution.state import BlockResult
from tests.workflows import pictures
from tests.workflows.drawn import Drawing, read_mermaid, read_svg

SECONDS = 60
NASTY = (
    "end",
    'a"]; b1 --> b2',
    "<script>alert(1)</script>",
    "]]>",
    "%% {init}",
    "`md` **x**",
    "#quot;",
    "&lt;b&gt;",
    "graph TD",
    "o x-y",
    "日本語の名前",
    "deploy_the_service_to_all_regions_of_the_world_" * 4,
    "'single'",
    "a\nb\tc",
    "--",
)
IDS = st.one_of(
    st.sampled_from(NASTY),
    st.from_regex(r"[a-z][a-z0-9_-]{0,30}", fullmatch=True),
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20),
)
STATE_NAMES = tuple(STATES)


@st.composite
def workflows(draw: st.DrawFn, most: int = 16) -> Workflow:
    names = draw(st.lists(IDS, max_size=most, unique=True))
    blocks: list[Block] = []
    for at, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:at]), max_size=4, unique=True)) if at else []
        blocks.append(
            Block(
                id=name,
                type=draw(st.sampled_from(pictures.TYPES)),
                depends_on=[Dependency(block=b, required=draw(st.booleans())) for b in before],
                condition=draw(st.sampled_from([None, "{{ inputs.x }}"])),
                for_each=draw(st.sampled_from([None, ["a"]])),
                inputs=draw(st.sampled_from([{}, {"tool": "charge"}, {"agent": "{{ x }}"}])),
            )
        )
    return Workflow(name=draw(IDS), blocks=blocks)


def given_states(workflow: Workflow) -> dict[str, BlockState]:
    names = (block.id for block in workflow.blocks)
    return dict(zip(names, itertools.cycle(STATE_NAMES)))


def depths(workflow: Workflow) -> dict[str, int]:
    """The wave of each block, counted from 1: one more than the last of those before it."""
    found: dict[str, int] = {}
    for block in workflow.blocks:
        found[block.id] = 1 + max((found[d.block] for d in block.dependencies), default=0)
    return found


def edges(workflow: Workflow) -> dict[tuple[str, str], bool]:
    return {(d.block, b.id): d.required for b in workflow.blocks for d in b.dependencies}


def check_svg(workflow: Workflow, states: dict[str, BlockState] | None = None) -> Drawing:
    """That a drawing has all of a workflow, and its geometry holds."""
    drawing = read_svg(svg(workflow, states))
    assert drawing.boxes.keys() == {block.id for block in workflow.blocks}
    assert {pair: not line.is_dashed for pair, line in drawing.lines.items()} == edges(workflow)
    for one, other in itertools.combinations(drawing.boxes.values(), 2):
        assert not one.where.overlaps(other.where)
    for name, wave in depths(workflow).items():
        assert drawing.bands[wave - 1].contains(drawing.boxes[name].where)
    for one, other in itertools.combinations(drawing.bands, 2):
        assert not one.overlaps(other)
    check_lines(drawing)
    check_words(drawing, workflow, states)
    return drawing


def check_lines(drawing: Drawing) -> None:
    for (source, target), line in drawing.lines.items():
        start, end = drawing.boxes[source].where, drawing.boxes[target].where
        assert line.points[0] == pytest.approx((start.right, start.y + start.height / 2), abs=0.2)
        assert line.points[-1] == pytest.approx((end.x, end.y + end.height / 2), abs=0.2)
        steps = itertools.pairwise(x for x, _ in line.points)
        assert all(after >= before - 0.2 for before, after in steps), "a line never goes back"
        for name, box in drawing.boxes.items():
            inside = [point for point in line.points[1:-1] if box.where.has_inside(point)]
            assert not inside, f"{source} to {target} crosses {name}"
        for x, y in line.points:
            assert 0 <= x <= drawing.page.width
            assert 0 <= y <= drawing.page.height


def check_words(drawing: Drawing, workflow: Workflow, states: dict[str, BlockState] | None) -> None:
    assert all(drawing.page.contains(rect) for rect in drawing.rects)
    assert all(drawing.page.contains(text.where) for text in drawing.texts)
    for block in workflow.blocks:
        box = drawing.boxes[block.id]
        assert box.title.startswith(f"{block.id} ({block.type}")
        assert box.is_stacked == block.is_loop
        assert box.state == (states[block.id] if states is not None else None)
        said = [text.said for text in box.texts]
        assert ("for each" in said[2:]) == block.is_loop
        assert ("if" in said[2:]) == (block.condition is not None)
        assert all(box.where.contains(text.where) for text in box.texts), said
    if states is not None:
        legend = {text.said for text in drawing.texts}
        assert set(states.values()) <= legend


@settings(max_examples=60, deadline=None)
@given(workflows(), st.booleans())
def test_drawing_of_any_workflow_holds_together(workflow: Workflow, has_states: bool) -> None:
    check_svg(workflow, given_states(workflow) if has_states else None)


@pytest.mark.parametrize("seed", range(3))
def test_drawing_of_sixty_blocks_holds_together(seed: int) -> None:
    workflow = pictures.random_workflow(seed, 60)
    check_svg(workflow, given_states(workflow))


def test_drawing_of_two_hundred_blocks_holds_together() -> None:
    check_svg(pictures.random_workflow(5, 200, reach=40))


def test_wide_wave_is_drawn_in_several_columns() -> None:
    blocks = [Block(id=f"b{number}", type="Tool") for number in range(200)]
    last = Block(id="all", type="Prompt", depends_on=[block.id for block in blocks])
    drawing = check_svg(Workflow(name="wide", blocks=[*blocks, last]))
    assert len(drawing.bands) == 2
    assert drawing.page.height < 3 * drawing.page.width
    assert drawing.page.width < 3 * drawing.page.height


def test_single_block_is_a_small_drawing() -> None:
    drawing = check_svg(Workflow(name="one", blocks=[Block(id="hello", type="Shell")]))
    assert drawing.page.width < 300
    assert drawing.page.height < 300


def test_chain_is_a_straight_line() -> None:
    names = [f"step-{number}" for number in range(8)]
    blocks = [Block(id=names[0], type="Shell")]
    blocks += [Block(id=b, type="Shell", depends_on=[a]) for a, b in itertools.pairwise(names)]
    drawing = check_svg(Workflow(name="chain", blocks=blocks))
    assert len({box.where.y for box in drawing.boxes.values()}) == 1


def test_lines_that_need_not_cross_do_not() -> None:
    """Two strands, told in an order in which their lines would cross, are laid side by side."""
    strands = {"a": ["a1", "a2", "a3"], "b": ["b1", "b2", "b3"]}
    blocks = [
        Block(id="a1", type="Shell"),
        Block(id="b1", type="Shell"),
        Block(id="b2", type="Shell", depends_on=["b1"]),
        Block(id="a2", type="Shell", depends_on=["a1"]),
        Block(id="a3", type="Shell", depends_on=["a2"]),
        Block(id="b3", type="Shell", depends_on=["b2"]),
    ]
    drawing = check_svg(Workflow(name="strands", blocks=blocks))
    for strand in strands.values():
        assert len({drawing.boxes[name].where.y for name in strand}) == 1


def test_long_name_is_shortened_and_told_whole_in_the_tooltip() -> None:
    name = "deploy_the_service_to_every_region_of_the_world"
    drawing = check_svg(Workflow(name="long", blocks=[Block(id=name, type="Shell")]))
    shown = drawing.boxes[name].texts[0].said
    head, tail = shown.split("…")
    assert name.startswith(head)
    assert name.endswith(tail)
    assert name in drawing.boxes[name].title


def test_drawing_has_nothing_that_runs_or_loads() -> None:
    blocks = [Block(id=name, type="Shell", description=name) for name in NASTY]
    root = ET.fromstring(svg(Workflow(name="<b>", description="</desc><x/>", blocks=blocks)))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "rect", "path", "text", "tspan", "title", "desc", "circle"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name}


def test_drawing_has_no_character_that_a_terminal_acts_on() -> None:
    block = Block(id="a\x1b[31m\x9b\u202e\x00\ud800", type="Shell", description="\x07")
    document = svg(Workflow(name="\x1b]0;x\x07", blocks=[block]))
    assert all(letter.isprintable() or letter == "\n" for letter in document)
    ET.fromstring(document)


@settings(max_examples=60, deadline=None)
@given(workflows(), st.booleans())
def test_flowchart_of_any_workflow_has_all_of_it_once(workflow: Workflow, has_states: bool) -> None:
    states = given_states(workflow) if has_states else None
    chart = read_mermaid(mermaid(workflow, states))
    name_of = {f"b{number}": block.id for number, block in enumerate(workflow.blocks, 1)}
    assert json.loads(chart.title) == workflow.name
    drawn = [(name_of[a], name_of[b], is_solid) for a, b, is_solid in chart.edges]
    assert sorted(drawn) == sorted((a, b, is_on) for (a, b), is_on in edges(workflow).items())
    waves = {name_of[key]: at for at, wave in enumerate(chart.waves, 1) for key in wave}
    assert waves == depths(workflow)
    for key, (name, about, *marks) in chart.labels.items():
        block = workflow.block(name_of[key])
        head, _, tail = name.partition("…") if len(block.id) > 48 else (block.id, "", "")
        assert name == block.id or (block.id.startswith(head) and block.id.endswith(tail))
        assert about.startswith(block.type)
        assert ("for each" in marks) == block.is_loop
        assert ("if" in marks) == (block.condition is not None)
        if states is not None:
            assert marks[-1].endswith(f" {states[block.id]}")
            assert chart.classes[key] == states[block.id].replace(" ", "_")
    assert states is not None or not chart.classes


def test_kinds_of_blocks_have_shapes_of_their_own() -> None:
    kinds = ["Prompt", "Tool", "Agent", "Workflow", "Wait", "ReadFile"]
    blocks = [Block(id=kind.lower(), type=kind) for kind in kinds]
    chart = read_mermaid(mermaid(Workflow(name="kinds", blocks=blocks)))
    assert len(set(chart.shapes.values())) == len(kinds)


@pytest.mark.parametrize("draw", [mermaid, svg])
def test_cycle_is_refused_by_name(draw: Any) -> None:
    blocks = [
        Block(id="a", type="Shell", depends_on=["b"]),
        Block(id="b", type="Shell", depends_on=["a"]),
    ]
    with pytest.raises(MisuseError, match=r"round has no waves.*a -> b -> a"):
        draw(Workflow(name="round", blocks=blocks))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("state", STATE_NAMES)
def test_words_and_frames_of_a_state_are_easily_seen(state: BlockState) -> None:
    look = STATES[state]
    assert contrast(INK, look.fill) >= 7
    assert contrast(FAINT_INK, look.fill) >= 4.5
    assert contrast(look.line, look.fill) >= 3
    assert contrast(look.line, "#ffffff") >= 4.5


def test_no_two_states_differ_by_colour_alone() -> None:
    assert len({look.mark for look in STATES.values()}) == len(STATES)
    assert len({look.drawn for look in STATES.values()}) == len(STATES)


def outcome(status: str, ended: dict[str, Any], *waiting: str) -> Outcome:
    return Outcome(
        run_id="r",
        workflow="w",
        status=status,
        waiting=[Waiting(block=path, prompt="?", wait_id="x", run_id="r") for path in waiting],
        blocks={name: BlockResult(status=each) for name, each in ended.items()},
        waves=[["a", "b"], ["c", "d", "e"], ["f"]],
    )


FIRST = {"a": "completed", "b": "failed"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (outcome("ready", {}), "not yet,not yet,not yet,not yet,not yet,not yet"),
        (outcome("running", {}), "running,running,not yet,not yet,not yet,not yet"),
        (outcome("waiting", FIRST, "c"), "completed,failed,waiting,running,running,not yet"),
        (
            outcome("waiting", FIRST, "c[eu/1]/a/b", "e/x/d"),
            "completed,failed,waiting,running,waiting,not yet",
        ),
        (
            outcome("waiting", FIRST, "above/d/x"),
            "completed,failed,running,waiting,running,not yet",
        ),
        (outcome("blocked", FIRST), "completed,failed,waiting,waiting,waiting,not yet"),
        (
            outcome("cancelled", FIRST | {"c": "skipped"}),
            "completed,failed,skipped,cancelled,cancelled,cancelled",
        ),
    ],
)
def test_states_follow_from_where_a_run_stands(found: Outcome, expected: str) -> None:
    assert ",".join(states_of(found).values()) == expected


FLOW = Workflow(
    name="flow",
    blocks=[
        Block(id="ask", type="Prompt", inputs={"prompt": "Go on?"}),
        Block(id="rest", type="Wait", inputs={"seconds": 0}),
        Block(
            id="never",
            type="Prompt",
            inputs={"prompt": "?"},
            depends_on=["rest"],
            condition="{{ false }}",
        ),
        Block(id="then", type="Prompt", inputs={"prompt": "And?"}, depends_on=["ask"]),
    ],
)


def test_states_of_a_run_from_its_start_to_its_end(store: str) -> None:
    async def follow() -> None:
        async with holdfast.Holdfast(store, workflows=Kit()) as hf:
            begun = await hf.workflows.start(FLOW, run_id="flow-1")
            assert set(states_of(begun).values()) == {"not yet"}
            asked = await hf.workflows.run(FLOW, run_id="flow-1", timeout=SECONDS)
            assert states_of(asked)["ask"] == "waiting"
            assert states_of(asked)["then"] == "not yet"
            again = await hf.workflows.resume("flow-1", {"ask": "yes"}, timeout=SECONDS)
            assert states_of(again)["ask"] == "completed"
            assert states_of(again)["then"] == "waiting"
            ended = await hf.workflows.resume("flow-1", {"then": "fine"}, timeout=SECONDS)
            assert states_of(ended) == {
                "ask": "completed",
                "rest": "completed",
                "never": "skipped",
                "then": "completed",
            }
            check_svg(await hf.workflows.definition("flow-1"), states_of(ended))

    asyncio.run(follow())


def test_states_of_a_cancelled_run(store: str) -> None:
    async def cancelled() -> dict[str, BlockState]:
        async with holdfast.Holdfast(store, workflows=Kit()) as hf:
            await hf.workflows.run(FLOW, run_id="flow-2", timeout=SECONDS)
            await hf.workflows.cancel("flow-2")
            return states_of(await hf.workflows.status("flow-2"))

    states = asyncio.run(cancelled())
    assert (states["ask"], states["then"]) == ("cancelled", "cancelled")


@pytest.fixture
def stored(store: str) -> str:
    """A store with a run that asks."""

    async def begin() -> None:
        async with holdfast.Holdfast(store, workflows=Kit()) as hf:
            await hf.workflows.run(FLOW, run_id="flow-3", timeout=SECONDS)

    asyncio.run(begin())
    return store


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(workflow_graph.graph, list(arguments), standalone_mode=False)


def test_command_draws_a_run_as_mermaid(stored: str) -> None:
    chart = read_mermaid(invoke("flow-3", "--store", stored).stdout)
    assert chart.classes["b1"] == "waiting"


def test_command_draws_a_run_into_a_file(stored: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.svg"
    done = invoke("flow-3", "-f", str(file), "--store", stored, "-o", "json")
    told = json.loads(done.stdout)
    assert (told["workflow"], told["format"], told["file"]) == ("flow", "svg", str(file))
    assert told["states"]["ask"] == "waiting"
    assert read_svg(file.read_text(encoding="utf-8")).boxes["ask"].state == "waiting"


def test_command_tells_of_a_run_that_is_not_there(stored: str) -> None:
    done = invoke("no-such-run", "--store", stored)
    assert done.return_value == 3
    assert "no-such-run" in done.stderr


def test_command_makes_no_store(tmp_path: Path) -> None:
    done = invoke("flow-3", "--store", str(tmp_path / "none.db"))
    assert done.return_value == 3
    assert not list(tmp_path.iterdir())


def test_command_draws_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(
        "name: small\nblocks:\n- id: ask\n  type: Prompt\n  inputs: {prompt: 'Go on?'}\n",
        encoding="utf-8",
    )
    assert read_mermaid(invoke(str(file)).stdout).labels == {"b1": ["ask", "Prompt"]}
    assert list(read_svg(invoke(str(file), "--format", "svg").stdout).boxes) == ["ask"]


def test_picture_of_the_documentation_is_the_one_that_is_drawn() -> None:
    """After a change: `python -m tests.workflows.pictures`, and look at it."""
    drawn = svg(pictures.RELEASE, pictures.RELEASE_STATES)
    assert pictures.PICTURE.read_text(encoding="utf-8") == drawn
    check_svg(pictures.RELEASE, pictures.RELEASE_STATES)
    page = (pictures.DOCS / "how-to" / "workflow-graphs.md").read_text(encoding="utf-8")
    chart = re.search(r"```mermaid\n(.*?)```", page, re.DOTALL)
    assert chart is not None
    assert chart[1] == mermaid(pictures.RELEASE)
