"""The demo of handoffs: a context fills, hands over twice, a worker is killed, and it finishes."""

import json
from pathlib import Path

import pytest

from holdfast import sync
from holdfast.sync.records import CheckpointService
from tests.acceptance.test_demo import HOLDFAST, run

DEMO = [*HOLDFAST, "demo", "handoff"]


@pytest.mark.mission("S3-003", "S3-006", "S3-010", "S3-057", "S3-191")
def test_chain_is_what_the_journal_says(tmp_path: Path) -> None:
    store = tmp_path / "demo.db"
    done = run(*DEMO, "--json", "--store", str(store), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["handoffs"], record["kills"], record["run_status"]) == (2, 1, "completed")
    assert record["max_context_utilization"] < 0.7
    assert record["problems"] == []
    assert [link["handoff"] for link in record["chain"]] == ["acknowledged"] * 2
    with sync.open(str(store)) as hf:
        told = [entry.kind for entry in hf.journal.read(record["run_id"], limit=1000)]
        result = hf.runs.result(record["run_id"])
        service = CheckpointService(hf)
        final = service.search_checkpoints({"phase": "handoff", "status": "handoff"}).checkpoints
    assert told.count("AGENT_HANDOFF") == told.count("HANDOFF_ACKNOWLEDGED") == 2
    assert told.count("RECOVERY_COMPLETED") >= 1
    assert result == "all 9 items are built"
    assert [each.execution_state.phase.value for each in final] == ["handoff"] * 2
    assert all(each.is_final and each.recovery.continuation_prompt for each in final)


def test_people_see_the_chain(tmp_path: Path) -> None:
    done = run(*DEMO, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is gone, by signal 9" in done.stdout
    assert "Shown: 2 handoffs, 1 kill" in done.stdout
    assert list(tmp_path.iterdir()) == [], "the store is gone"
