"""Entries that wait for the next commit of their run, and go in front of it.

A model's reply is stored together with the intents that follow from it, a tool's result together
with the checkpoint: what belongs together costs one commit. Until then an entry is named by a
token, a `Ref` with a negative seq.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.codec import Ref
from holdfast.kernel.journal import Draft, Entry


class Staged(NamedTuple):
    """An entry without a place yet."""

    token: int
    draft: Draft


class StagedEntries:
    """The staged entries of one run. `recorded` are the bodies that may be named in its state."""

    def __init__(self, recorded: dict[int, bytes]) -> None:
        self._waiting: list[Staged] = []
        self._planned: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        self._count = 0
        self.recorded = recorded

    @property
    def is_waiting(self) -> bool:
        """Whether something is not stored yet."""
        return bool(self._waiting)

    @property
    def drafts(self) -> list[Draft]:
        """What is not stored yet."""
        return [staged.draft for staged in self._waiting]

    def add(self, draft: Draft) -> Ref:
        self._count += 1
        self._waiting.append(Staged(-self._count, draft))
        return Ref(-self._count)

    def seq_of(self, token: int) -> int:
        """Where an entry lies, or will lie if the plan that is being made is stored."""
        return self._stored.get(token) or self._planned[token]

    def forget_stored(self) -> None:
        """Nothing names what is stored by its token any more."""
        self._stored.clear()

    def take(self) -> list[Draft]:
        """What is not stored yet, and is not to be stored any more."""
        drafts, self._waiting = self.drafts, []
        return drafts

    def plan(self, seq: int) -> list[Staged]:
        """What waits now, to be stored from `seq` on."""
        self._planned = {item.token: seq + at for at, item in enumerate(self._waiting)}
        return list(self._waiting)

    def settle(self, staged: Sequence[Staged], entries: Sequence[Entry]) -> None:
        """The first of these entries are those that were staged."""
        self._waiting = self._waiting[len(staged) :]
        for item, entry in zip(staged, entries, strict=False):
            self._stored[item.token] = entry.seq
            if item.token in self.recorded:
                self.recorded[entry.seq] = self.recorded[item.token]
