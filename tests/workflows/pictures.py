"""Workflows that are drawn: the release of the documentation's picture, and random ones."""

import random
from pathlib import Path

from holdfast.workflows import Block, Dependency, Workflow
from holdfast.workflows.drawing.style import BlockState
from holdfast.workflows.drawing.svg import svg

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "images" / "release.svg"

APPROVED = "{{ blocks.approve.outputs.response == 'yes' }}"

RELEASE = Workflow(
    name="release",
    version="1.4",
    description="Builds, tests and approves a version, then rolls it out region by region.",
    blocks=[
        Block(id="checkout", type="Shell", inputs={"command": "git clone ."}),
        Block(id="changes", type="Agent", inputs={"agent": "historian"}),
        Block(id="build", type="Shell", depends_on=["checkout"]),
        Block(
            id="test",
            type="Shell",
            depends_on=["checkout"],
            for_each="{{ inputs.suites }}",
        ),
        Block(
            id="notes",
            type="CreateFile",
            depends_on=["changes"],
            description="The release notes, as text.",
        ),
        Block(
            id="approve",
            type="Prompt",
            depends_on=["build", "test", Dependency(block="notes", required=False)],
        ),
        Block(
            id="deploy",
            type="Workflow",
            inputs={"workflow": "rollout"},
            depends_on=["approve"],
            for_each="{{ inputs.regions }}",
            for_each_mode="sequential",
            condition=APPROVED,
        ),
        Block(
            id="publish", type="Tool", inputs={"tool": "publish"}, depends_on=["notes", "approve"]
        ),
        Block(id="soak", type="Wait", inputs={"seconds": 86_400}, depends_on=["deploy"]),
        Block(
            id="announce",
            type="HttpCall",
            depends_on=["publish", Dependency(block="deploy", required=False)],
            condition="{{ inputs.is_public }}",
        ),
    ],
)

RELEASE_STATES: dict[str, BlockState] = {
    "checkout": "completed",
    "changes": "completed",
    "build": "completed",
    "test": "completed",
    "notes": "failed",
    "approve": "completed",
    "publish": "skipped",
    "deploy": "waiting",
    "soak": "not yet",
    "announce": "not yet",
}

TYPES = ("Shell", "Tool", "HttpCall", "Prompt", "Agent", "Workflow", "Wait", "ReadFiles", "Custom")


def random_workflow(seed: int, count: int, *, density: float = 1.3, reach: int = 12) -> Workflow:
    """A workflow of many blocks, each after some of those shortly before it."""
    chance = random.Random(seed)
    blocks: list[Block] = []
    for number in range(count):
        near = [block.id for block in blocks[-reach:]]
        chosen = chance.sample(near, min(len(near), int(chance.expovariate(1 / density))))
        blocks.append(
            Block(
                id=f"{chance.choice(['load', 'check', 'merge', 'review_the_results_of'])}_{number}",
                type=chance.choice(TYPES),
                depends_on=[
                    each if chance.random() < 0.8 else Dependency(block=each, required=False)
                    for each in chosen
                ],
                for_each="{{ inputs.all }}" if chance.random() < 0.1 else None,
                condition="{{ inputs.some }}" if chance.random() < 0.1 else None,
            )
        )
    return Workflow(name=f"random {seed}", blocks=blocks)


if __name__ == "__main__":
    PICTURE.write_text(svg(RELEASE, RELEASE_STATES), encoding="utf-8")
