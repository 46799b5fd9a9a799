"""Every Python example of the documentation runs, and shows something."""

import ast
from pathlib import Path

import pytest

from tests import forked
from tests.docs.examples import Example, all_examples, examples_in, pages

EXAMPLES = all_examples(pages())
LOGGED = (
    "raised, and may have happened",
    "what came now is counted and ignored",
    "waits for a person",  # on a busy machine an example is slow to answer itself
)


def kind_of(page: str) -> str:
    """What a program of that page uses, and would spend its time on importing."""
    return next((kind for kind in ("langgraph", "mcp") if kind in page), "holdfast")


def shows_something(block: str) -> bool:
    """Whether a block checks or prints what it did."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Name) and node.id == "print":
            return True
    return False


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_example_runs(example: Example, tmp_path: Path) -> None:
    done = forked.run(
        ["-W", "error", "-c", example.program], cwd=tmp_path, kind=kind_of(example.page)
    )
    assert done.returncode == 0, f"{example.id} fails:\n{done.stderr}"
    # Anything else would be a fault.
    strange = [line for line in done.stderr.splitlines() if not any(map(line.count, LOGGED))]
    assert not strange or LOGGED[0] in done.stderr  # a traceback follows that one


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_example_shows_something(example: Example) -> None:
    assert all(shows_something(block) for block in example.blocks)


def test_readme_and_every_concept_have_an_example() -> None:
    with_example = {example.page for example in EXAMPLES}
    wanted = {"README.md"}
    wanted |= {
        f"docs/concepts/{name}.md"
        for name in (
            "runs",
            "journal",
            "checkpoints",
            "effects",
            "waits",
            "signals",
            "leases",
            "durability",
        )
    }
    assert wanted - with_example == set()


def test_example_of_the_readme_is_short() -> None:
    (first, *_) = [example for example in EXAMPLES if example.page == "README.md"]
    assert all(len(block.splitlines()) <= 40 for block in first.blocks)


def test_blocks_that_continue_are_one_program() -> None:
    text = "```python\na = 1\n```\ntext\n```python continue\nassert a\n```\n```python\nb = 2\n```\n"
    first, second = examples_in("page.md", text)
    assert first.blocks == ("a = 1\n", "assert a\n")
    assert (first.line, second.line) == (1, 8)


@pytest.mark.parametrize("text", ["```python continue\n```\n", "```python later\n```\n"])
def test_fence_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^page\.md: "):
        examples_in("page.md", text)
