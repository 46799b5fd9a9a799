"""Plays three workflows from Python, with answers that are written down here.

    python examples/workflows/main.py               in a folder that is gone afterwards
    python examples/workflows/main.py --folder DIR  in a folder that stays

See README.md.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.workflows import Kit, Outcome
from holdfast.workflows.execution.events import BlockBegan, BlockEnded, BlockWaits, Event, WaveBegan

HERE = Path(__file__).parent
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Play:
    """A workflow, what it is given, and what people will say to each of its blocks."""

    file: str
    run_id: str
    inputs: dict[str, Any]
    answers: dict[str, str]


PLAYS = [
    Play(
        "approval_chain.yaml",
        "payment-7",
        {"payee": "ada", "cents": 250_000},
        {"manager": "yes", "finance": "yes"},
    ),
    Play(
        "release.yaml",
        "release-1.4.0",
        {"version": "1.4.0"},
        {"approve": "release", "deploy[eu]/healthy": "yes", "deploy[us]/healthy": "yes"},
    ),
    Play(
        "review_round.yaml",
        "review-3",
        {},
        {"team[core]/ask[0]": "good", "team[core]/ask[1]": "too long", "team[docs]/ask[0]": "fine"},
    ),
]


@dataclass
class Timeline:
    """Tells what happens, with the seconds since it began."""

    began: float = field(default_factory=time.monotonic)

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:6.2f} s  {what}")

    def observe(self, event: Event) -> None:
        match event:
            case WaveBegan(path=path, wave=wave, waves=waves, blocks=blocks):
                where = f"{path}: " if path else ""
                self.tell(f"{where}wave {wave} of {waves}: {', '.join(blocks)}")
            case BlockWaits(path=path):
                self.tell(f"  {path} waits")
            case BlockEnded(path=path, status=status, error=error):
                self.tell(f"  {path} is {status}{f': {error}' if error else ''}")
            case BlockBegan() | _:
                pass


async def play(play: Play, folder: Path) -> Outcome:
    """Carry out one workflow. The store is opened anew for each answer: nothing is kept between."""
    print(f"\n{play.file} as {play.run_id}")
    timeline = Timeline()
    kit = Kit(root=folder)
    async with holdfast.open(str(folder / "flows.db"), workflows=kit) as hf:
        outcome = await hf.workflows.run(
            HERE / play.file, play.inputs, run_id=play.run_id, observe=timeline.observe
        )
    while outcome.waiting:
        for question in outcome.waiting:
            timeline.tell(f"  {question.block} asks: {question.prompt}")
        answers = {each.block: play.answers[each.block] for each in outcome.waiting}
        async with holdfast.open(str(folder / "flows.db"), workflows=kit) as hf:
            for block, answer in answers.items():
                timeline.tell(f"  somebody answers {block}: {answer}")
            outcome = await hf.workflows.resume(
                play.run_id, answers, by="somebody", observe=timeline.observe
            )
    return outcome


async def main(folder: Path) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        for each in PLAYS:
            outcome = await play(each, folder)
            print(f"{each.run_id} is {outcome.status}: {outcome.outputs or outcome.error}")
    print(f"\nin the folder: {', '.join(written(folder))}")


def written(folder: Path) -> list[str]:
    """What the blocks wrote: everything but the store."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in files if not path.name.startswith("flows.db"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play three workflows with scripted answers.")
    parser.add_argument("--folder", type=Path, help="a folder that stays [default: one that goes]")
    asked = parser.parse_args()
    if asked.folder is not None:
        asked.folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(main(asked.folder))
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-workflows-") as made:
            asyncio.run(main(Path(made)))
