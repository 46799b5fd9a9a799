"""LangGraph agents killed at random moments, again and again: each payment is made once."""

import random
from pathlib import Path

from tests.integrations.langgraph.killing import VICTIMS, Scene
from tests.processes import Child

ROUNDS, CHAOS_ROUNDS = 2, 150
MORE_ROUNDS = 20  # a moment chosen by chance may come after the end: until one has died, go on


def test_graphs_killed_at_random_moments_pay_once(
    store: str, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    chance = random.Random(seed)
    rounds = CHAOS_ROUNDS if is_chaos else ROUNDS
    died = 0
    with Child(VICTIMS, kind="langgraph") as child:
        for number in range(rounds + MORE_ROUNDS):
            if died and number >= rounds:
                break
            scene = Scene(
                [child],
                tmp_path,
                store=store,
                thread=f"t{number}",
                shape=chance.choice(["node", "send", "agent"]),
                face=chance.choice(["sync", "async"]),
                many=chance.randint(1, 3),
            )
            given: str | None = "go"
            for _ in range(chance.randint(1, 4)):
                answer = scene.run_when_free(given, seconds=chance.uniform(0.01, 0.5))
                died += "died" in answer
                given = "go" if answer.get("error") == "EmptyInputError" else None
            assert scene.faults(scene.go_on()) == []
    assert died
