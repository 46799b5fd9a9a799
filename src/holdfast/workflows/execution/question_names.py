"""How the questions in a tree of runs are named, so that an answer finds the one it is meant for.

What a workflow asks goes by the path of the block. What an agent asks goes by the block that called
the agent, and its own name: `help/approve`. An agent may ask under one name again, and a late or
repeated answer must not count for the next question: that one is `help/approve~2`.
"""

from collections import Counter
from typing import Final

import msgspec

from holdfast.agents.definitions.questions import FOR_PEOPLE
from holdfast.engine.runs import Runs
from holdfast.engine.waits import Waits
from holdfast.errors import AnswerRefused
from holdfast.kernel.runs import ENDED, RunRow
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.workflows.execution.kit import AGENT

_PAGE: Final = 1000


class AskedQuestion(msgspec.Struct, frozen=True):
    """A question, open or settled, and the name to answer it by."""

    name: str
    wait: Wait

    @property
    def is_open(self) -> bool:
        return self.wait.status is WaitStatus.OPEN

    def is_called(self, name: str) -> bool:
        return name in (self.name, self.wait.wait_id)


async def questions_of(
    runs: Runs, waits: Waits, run_id: str, *, ended: bool = True
) -> list[AskedQuestion]:
    """Return all questions in a tree of runs, with those of ended runs below if `ended`."""
    found: list[AskedQuestion] = []
    ahead = [(run_id, "")]
    while ahead:
        asker, path = ahead.pop()
        asked = [wait for wait in await waits.of_run(asker) if wait.kind in FOR_PEOPLE]
        found += _named(asked, path)
        below = await _below(runs, asker)
        ahead += [
            (run.run_id, _path_of(run, path)) for run in below if ended or run.status not in ENDED
        ]
    return found


def meant(questions: list[AskedQuestion]) -> AskedQuestion:
    """Return the open question of a name, or else the last; raises AnswerRefused for two open."""
    asking = [each for each in questions if each.is_open]
    if len(asking) > 1:
        listed = ", ".join(sorted(each.wait.wait_id for each in asking))
        raise AnswerRefused(
            f"{len(asking)} open questions are named {asking[0].name!r}, so nobody knows which is "
            f"meant; answer by their ids: {listed}"
        )
    return asking[0] if asking else max(questions, key=lambda each: each.wait.opened_at)


def _path_of(run: RunRow, path: str) -> str:
    """Return the prefix of the names of a run's questions: its block, or that of its caller."""
    return "" if run.agent == AGENT else path or run.subject


def _named(asked: list[Wait], path: str) -> list[AskedQuestion]:
    if not path:
        return [AskedQuestion(wait.name or wait.wait_id, wait) for wait in asked]
    counts: Counter[str] = Counter()
    found: list[AskedQuestion] = []
    for wait in sorted(asked, key=lambda wait: (wait.opened_seq, wait.wait_id)):
        name = f"{path}/{wait.name or wait.wait_id}"
        counts[name] += 1
        found.append(AskedQuestion(name if counts[name] == 1 else f"{name}~{counts[name]}", wait))
    return found


async def _below(runs: Runs, run_id: str) -> list[RunRow]:
    found: list[RunRow] = []
    page = await runs.list(parent_id=run_id, limit=_PAGE)
    while page:
        found += page
        page = (
            await runs.list(parent_id=run_id, limit=_PAGE, before=page[-1])
            if len(page) == _PAGE
            else []
        )
    return found
