"""The judge itself: it finds each kind of contradiction, and says it in words."""

from holdfast.testing import Operation, contradictions


def claim(actor: str, *, ok: bool) -> Operation:
    return Operation(actor=actor, kind="claim", thing="w1", ok=ok)


def test_a_history_without_contradiction_is_accepted() -> None:
    history = [
        claim("a", ok=True),
        claim("b", ok=False),
        Operation(actor="a", kind="append", thing="log", ok=True, value=1),
        Operation(actor="b", kind="append", thing="log", ok=False, value=2),
        Operation(actor="a", kind="lease", thing="run", ok=True, value=2, told=1.0),
        Operation(actor="a", kind="write", thing="run", ok=True, value=2, asked=2.0),
        Operation(actor="b", kind="lease", thing="run", ok=True, value=5, told=3.0),
        Operation(actor="a", kind="write", thing="run", ok=False, value=2, asked=4.0),
    ]
    assert contradictions(history, final={"log": [1]}) == []


def test_two_winners_are_named() -> None:
    found = contradictions([claim("a", ok=True), claim("b", ok=True)])
    assert found == ["w1 was claimed by a, and also by b"]


def test_nobody_winning_is_a_contradiction() -> None:
    found = contradictions([claim("a", ok=False), claim("b", ok=False)])
    assert found == ["w1 was claimed by nobody, though a, b tried and all were refused"]


def test_lost_doubled_and_unknown_items_are_named() -> None:
    history = [
        Operation(actor="a", kind="append", thing="log", ok=True, value=1),
        Operation(actor="b", kind="append", thing="log", ok=True, value=2),
    ]
    assert contradictions(history, final={"log": [2, 2, 3]}) == [
        "a was told that 1 is in log; it is not",
        "2 of b is in log 2 times",
        "log holds 3, which nobody appended",
    ]


def test_a_term_with_two_holders_and_a_late_write_are_named() -> None:
    history = [
        Operation(actor="a", kind="lease", thing="run", ok=True, value=2, told=1.0),
        Operation(actor="b", kind="lease", thing="run", ok=True, value=2, told=1.5),
        Operation(actor="b", kind="lease", thing="run", ok=True, value=5, told=2.0),
        Operation(actor="a", kind="write", thing="run", ok=True, value=2, asked=3.0),
    ]
    assert contradictions(history) == [
        "term 2 of run is held by a and by b",
        "a wrote to run under term 2 after b was given term 5",
    ]
