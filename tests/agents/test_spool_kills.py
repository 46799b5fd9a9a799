"""A spooling process killed at every point of its spool: what it said is stored, once, or evidence.

The judge reads the ledger, the rows and the bytes of the files; it uses nothing that wrote them.
"""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from tests.agents.ledger import Ledger
from tests.backends import Backend, Raw
from tests.faults.test_crashes import check_chain
from tests.processes import Child
from tests.spoolers import CHARGED, EVIDENCE, POINTS

TURNS = 6
STUCK_SECONDS = 60.0


def _is_created_in(kept: bytes, name: bytes) -> bool:
    """Whether evidence has the entry that creates a checkpoint; a recovery only names it."""
    at = kept.find(name)
    while at >= 0:
        if kept.rfind(b"CHECKPOINT_CREATED", 0, at) > kept.rfind(b"RECOVERY_COMPLETED", 0, at):
            return True
        at = kept.find(name, at + 1)
    return False


class Spooling:
    """A store, a spool and a ledger, and the processes that use them."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.ledger = Ledger(folder / "ledger")
        self.spool = folder / "spool"
        self.kills = 0

    def start(self, *more: object, runs: int = 1, turns: int = TURNS) -> Child:
        where = self.backend.url, self.spool, self.ledger.path
        return Child("tests.spoolers", *where, runs, turns, *more)

    def play(self, *more: object) -> Any:
        """Run a process to its end; its results, or None if it was killed."""
        with self.start(*more) as child:
            try:
                answer = self.results(child)
            except EOFError:
                assert child.process.wait() == -signal.SIGKILL
                self.kills += 1
                return None
            assert child.wait() == 0
            return answer

    def results(self, child: Child) -> Any:
        """Wait for the results of a process; fails, and says why, if nothing moves any more."""
        seen, until = -1, 0.0
        while (answer := child.answer()) == "open" or answer[0] == "again":
            if (lines := len(self.ledger.lines())) != seen:
                seen, until = lines, time.monotonic() + STUCK_SECONDS
            if time.monotonic() > until:
                raise AssertionError(
                    f"nothing was done any more, {answer}:\n{self._last_of_runs()}"
                )
        return answer

    def _last_of_runs(self) -> str:
        """How each run stands, and the last entries of its journal."""
        with self.backend.raw() as raw:
            rows = raw.rows("SELECT run_id, status FROM runs ORDER BY run_id")
            last = {
                run_id: [(row[0], row[1], row[5]) for row in entries[-12:]]
                for run_id, entries in _entries_by_run(raw).items()
            }
        return "\n".join(f"{run_id} {status}: {last.get(run_id)}" for run_id, status in rows)

    def judge(self, runs: int = 1, turns: int = TURNS) -> list[str]:
        """What is wrong with what is stored, kept and done outside, in words."""
        with self.backend.raw() as raw:
            entries, proofs = _entries_by_run(raw), raw.proofs()
        found: list[str] = []
        for run in entries.values():
            check_chain(run, proofs)
        facts = [
            row[9] for run in entries.values() for row in run if row[1] == "CHECKPOINT_CREATED"
        ]
        kept = b"".join(path.read_bytes() for path in self.spool.rglob("evidence/*"))
        for line in self.ledger.lines():
            if line.what not in ("stored", "spooled"):
                continue
            name = bytes.fromhex(line.key)
            stored = sum(name in each for each in facts)
            is_kept = _is_created_in(kept, name)
            if line.what == "stored" and (stored, is_kept) != (1, False):
                found.append(f"{line} is stored {stored} times, and kept: {is_kept}")
            if stored + is_kept != 1:
                found.append(f"{line} is stored {stored} times, and kept: {is_kept}")
        charges, wanted = self.ledger.count("charge"), Counter[tuple[str, int]]()
        for number in range(runs):
            wanted.update((f"r{number}", t) for t in range(CHARGED - 1, turns, CHARGED))
        if charges != wanted:
            found.append(f"charged {charges}, wanted {wanted}")
        wrong = {"away": "while the store was away", "early": "while its process had it spooled"}
        lines = self.ledger.lines()
        found += [f"{line} {wrong[line.what]}" for line in lines if line.what in wrong]
        found += [f"{path} was left" for path in self.spool.glob("*/*.spool")]
        return found


def _entries_by_run(raw: Raw) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in raw.entries():
        found.setdefault(row[3], []).append(row)
    return found


@pytest.mark.mission("S3-084", "S3-163", "S3-203")
@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.parametrize("point", POINTS)
def test_process_killed_at_a_point_of_its_spool_loses_nothing_it_said(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    spooling = Spooling(backend, tmp_path)
    for skip in POINTS[point]:
        spooling.play(point, skip)
    spooling.play(point, 0)  # this time it may be what the others left
    assert spooling.kills
    assert spooling.play() == [[f"reply {turn}" for turn in range(TURNS)]]
    assert spooling.judge() == []
    # Who dies while the record is written has said nothing.
    assert spooling.ledger.count("spooled") or point.endswith(("_write", "_sync"))


@pytest.mark.mission("S3-084", "S3-163", "S3-203")
@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.parametrize("point", ["", EVIDENCE, "spool.before_cut", "spool.after_cut"])
@async_test
async def test_run_of_a_killed_process_that_was_taken_over_leaves_evidence(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    spooling = Spooling(backend, tmp_path)
    assert spooling.play("spool.after_sync", 1) is None
    async with holdfast.open(backend.url) as other:
        held = await other.leases.take("r0", takeover=True)
        await held.release()
    if point:
        assert spooling.play(point, 0) is None
    assert spooling.play() == [[f"reply {turn}" for turn in range(TURNS)]]
    assert spooling.judge() == []
    assert len([*spooling.spool.rglob("evidence/*")]) == 1


class Refused:
    """A process whose run cannot go on."""

    def answer(self) -> Any:
        return ["again", "r0", "RunBlocked()"]


@async_test
async def test_run_that_cannot_go_on_is_not_waited_for_for_ever(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.STUCK_SECONDS", 0.1)
    async with holdfast.open(backend.url) as hf:
        await (await hf.runs.open("r0")).release()
    refused: Any = Refused()
    with pytest.raises(AssertionError, match=r"RunBlocked\(\).*\nr0 ready: .*RUN_CREATED"):
        Spooling(backend, tmp_path).results(refused)
