"""The rows that a workflow's progress is drawn from, for every order in which events may come."""

from holdfast.cli.workflows.board import Board, BoardRow, shown_below
from holdfast.cli.workflows.progress import duration
from holdfast.workflows.execution.events import (
    BlockBegan,
    BlockEnded,
    BlockWaits,
    LoopBegan,
    WaveBegan,
)
from holdfast.workflows.execution.outcome import Outcome
from holdfast.workflows.execution.state import BlockResult

NEW = Outcome(run_id="r", workflow="w", status="ready", waves=[["a", "fan"], ["z"]])


def board(before: Outcome = NEW) -> Board:
    made = Board(before)
    made.see(WaveBegan("r", "", 1, 2, ["a", "fan"]))
    return made


def rows(of: Board) -> dict[str, BoardRow]:
    return {row.path: row for wave in of.waves for row in wave.rows}


def below(row: BoardRow, most: int = 8) -> list[tuple[int, str, str]]:
    return [(depth, each.name, each.state) for depth, each in shown_below(row, most=most)]


def test_block_that_has_ended_is_not_begun_again_after_a_pause() -> None:
    made = board()
    made.see(BlockBegan("r", "a", "Tool"))
    made.see(BlockEnded("r", "a", "completed", 2.5))
    for event in (
        WaveBegan("r", "", 1, 2, ["a", "fan"]),
        BlockBegan("r", "a", "Tool"),
        BlockEnded("r", "a", "completed", 0.001),
        BlockWaits("r", "a"),
    ):
        made.see(event)
    found = rows(made)["a"]
    assert (found.state, found.elapsed) == ("completed", 2.5)
    assert [len(wave.rows) for wave in made.waves] == [2]


def test_loop_counts_its_rounds_and_shows_those_that_matter() -> None:
    made = board()
    made.see(LoopBegan("r", "fan", 4))
    for key in "abcd":
        made.see(BlockBegan("r", f"fan[{key}]", "Tool"))
    fan = rows(made)["fan"]
    made.see(BlockEnded("r", "fan[a]", "completed", 0.1))
    made.see(BlockEnded("r", "fan[b]", "failed", 0.1, "no"))
    made.see(BlockWaits("r", "fan[c]"))
    assert (fan.rounds_ended, fan.rounds, fan.is_active) == (2, 4, True)
    assert below(fan) == [(1, "[b]", "failed"), (1, "[c]", "waiting"), (1, "[d]", "running")]
    assert below(fan, most=1) == [(1, "[b]", "failed"), (1, "… and 2 more", "more")]
    made.see(BlockEnded("r", "fan[c]", "skipped", 0.0))
    assert fan.state == "running"
    made.see(BlockEnded("r", "fan[d]", "completed", 0.1))
    assert (fan.state, fan.is_active) == ("failed", False)


def test_nested_blocks_stand_below_and_those_of_another_try_in_their_place() -> None:
    made = board()
    made.see(BlockBegan("r", "a", "Workflow"))
    made.see(BlockWaits("r", "a"))
    made.see(WaveBegan("child", "a", 1, 1, ["x", "y"]))
    made.see(LoopBegan("child", "a/x", 1))
    made.see(BlockBegan("child", "a/x[k/1]", "Prompt"))
    found = rows(made)["a"]
    assert below(found) == [(1, "x", "running"), (2, "[k/1]", "running"), (1, "y", "pending")]
    assert found.is_active
    made.see(BlockWaits("child", "a/x[k/1]"))
    assert not found.is_active
    made.see(WaveBegan("second", "a", 1, 1, ["x", "y"]))
    assert below(found) == [(1, "x", "pending"), (1, "y", "pending")]


def test_what_is_stored_is_taken_over() -> None:
    done = BlockResult(status="completed", seconds=3.0)
    loop = BlockResult(status="completed", rounds=[done, done])
    before = Outcome(**{**vars_of(NEW), "blocks": {"a": done, "fan": loop}})
    made = Board(before)
    assert [wave.number for wave in made.waves] == [1]
    fan = rows(made)["fan"]
    assert (fan.rounds_ended, fan.rounds) == (2, 2)
    made.see(WaveBegan("r", "", 2, 2, ["z"]))
    made.see(BlockBegan("r", "z", "Tool"))
    assert [(path, row.state) for path, row in rows(made).items()] == [
        ("a", "completed"),
        ("fan", "completed"),
        ("z", "running"),
    ]


def vars_of(outcome: Outcome) -> dict[str, object]:
    return {name: getattr(outcome, name) for name in outcome.__struct_fields__}


def test_durations_are_short() -> None:
    told = [duration(seconds) for seconds in (0.04, 59.9, 65, 3_661)]
    assert told == ["0.0 s", "59.9 s", "1 m 05 s", "1 h 01 m"]
