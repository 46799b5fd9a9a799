"""Whose a run was at every point of its journal, read by SQL alone: nothing of Holdfast is here."""

from collections import Counter
from typing import Any

import msgspec

from tests.backends import Raw

JOURNAL = "SELECT seq, kind, actor, facts FROM journal WHERE run_id = ? ORDER BY seq"
ENDS = {"RUN_RELEASED", "RUN_WAITING", "RUN_COMPLETED", "RUN_FAILED"}
STEPS = ("HANDOFF_RECEIVED", "HANDOFF_VERIFIED", "HANDOFF_SELECTED")


class Owners:
    """Plays the journal of one run; `problems` says everything that cannot be right."""

    def __init__(self, raw: Raw, run_id: str) -> None:
        self.problems: list[str] = []
        self.acknowledged: Counter[str] = Counter()
        self.given: list[str] = []
        self.reverted: set[str] = set()
        self.kinds: Counter[str] = Counter()
        self._steps: list[str] = []
        self._agent, self._holder, self._open, self._assigned = "", "", "", ""
        for seq, kind, actor, facts in raw.rows(JOURNAL, run_id):
            self._at = f"{run_id} at entry {seq}, {kind}"
            self.kinds[kind] += 1
            self._play(kind, actor, msgspec.msgpack.decode(facts) if facts else [])
        self._at = f"{run_id} in the end"
        lost = [h for h in self.given if not self.acknowledged[h] and h not in self.reverted]
        self._check(not lost, f"lost handoffs: {lost}")
        self._check(max(self.acknowledged.values(), default=1) == 1, "acknowledged twice")
        self._check(self.kinds["RUN_COMPLETED"] == 1, "it has not completed once")

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.problems.append(f"{self._at}: {what}")

    def _play(self, kind: str, actor: str, facts: list[Any]) -> None:
        if kind == "RUN_CREATED":
            self._agent = facts[0]
        elif kind == "RUN_LEASED":
            self._check(not self._holder, f"{self._holder} holds it")
            self._check(not self._open or bool(self._assigned), "nobody was chosen yet")
            self._holder = facts[0]
        elif kind == "LEASE_EXPIRED":
            self._check(self._holder == facts[0], f"it was {self._holder or 'nobody'}'s")
            self._holder = ""
        elif kind == "RUN_BLOCKED":  # by anybody; it is its giver's again
            self.reverted |= {self._open} - {""}
            self._open, self._holder = "", ""
        elif kind in ENDS:
            self._check(self._holder == actor, f"{actor} does not hold it")
            self._holder = ""
        elif kind == "CHECKPOINT_CREATED" or kind.startswith("EFFECT_ISSUED"):
            self._check(self._holder == actor, f"{actor} does not hold it")
        else:
            self._hand_over(kind, actor, facts)

    def _hand_over(self, kind: str, actor: str, facts: list[Any]) -> None:
        if kind == "AGENT_HANDOFF":
            self._check(not self._open, f"it is in handoff {self._open}")
            self._check(self._holder == actor, f"{actor} does not hold it")
            self._check(facts[3] == self._agent, f"{facts[3]} gives what is {self._agent}'s")
            self._open, self._assigned, self._holder = facts[0], "", ""
            self._steps = []
            self.given.append(facts[0])
        elif kind in STEPS:
            self._check(facts[0] == self._open, "it is in another handoff")
            self._check(not self._assigned, "it was assigned before")
            self._steps.append(kind)
        elif kind == "HANDOFF_ASSIGNED":
            self._check(facts[0] == self._open, "it is in another handoff")
            self._check(tuple(self._steps) == STEPS, f"only {self._steps} came before")
            self._check(not self._assigned, "it was assigned before")
            self._assigned = facts[1]
        elif kind == "HANDOFF_ACKNOWLEDGED":
            self._check(facts[0] == self._open, "it is in another handoff")
            self._check(facts[1] == self._assigned, f"{self._assigned} was chosen")
            self._check(self._holder == actor == facts[2], f"{actor} does not hold it")
            self.acknowledged[facts[0]] += 1
            self._agent, self._open = facts[1], ""
        elif kind == "HANDOFF_REVERTED":
            self._check(facts[0] == self._open, "it is in another handoff")
            self._check(facts[1] == self._agent, f"it was {self._agent}'s")
            self.reverted.add(facts[0])
            self._open, self._holder = "", ""
