"""What subscribers were told, judged by the rows of the journal as a stranger reads them."""

import time
from collections.abc import Callable, Iterable

from tests.backends import Backend

LIMIT_SECONDS = 240.0
ENTRIES = """SELECT j.run_id, j.seq FROM journal j
LEFT JOIN runs r ON r.tenant = j.tenant AND r.run_id = j.run_id
WHERE j.tenant = ? AND coalesce(r.agent, '') <> 'holdfast.subscriber'"""


def ids_on_record(backend: Backend, tenant: str = "default") -> set[str]:
    with backend.raw() as raw:
        return {f"{run_id}/{seq}" for run_id, seq in raw.rows(ENTRIES, tenant)}


def judge(told: Iterable[str], recorded: set[str]) -> None:
    """Each entry on the record was told once, and those of each run in order."""
    seen: dict[str, int] = {}
    count = 0
    for each in told:
        run_id, _, seq = each.rpartition("/")
        assert int(seq) == seen.get(run_id, 0) + 1, f"{each} came after entry {seen.get(run_id)}"
        seen[run_id] = int(seq)
        count += 1
    missing = {
        each
        for each in recorded
        if int(each.rpartition("/")[2]) > seen.get(each.rpartition("/")[0], 0)
    }
    assert not missing
    assert count == len(recorded)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        time.sleep(0.02)
