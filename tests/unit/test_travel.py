"""Whether a run may go back."""

import pytest

from holdfast.errors import HoldfastError, LeaseHeld
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.travel import check_rewind


def run_in(status: RunStatus) -> RunRow:
    return RunRow(tenant="default", run_id="r", status=status, worker="w")


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
def test_run_that_ended_does_not_go_back(status: RunStatus) -> None:
    with pytest.raises(HoldfastError, match="run r"):
        check_rewind(run_in(status), holder_alive=False, takeover=True)


def test_run_goes_back_from_a_living_worker_only_if_it_is_taken() -> None:
    with pytest.raises(LeaseHeld, match="--takeover"):
        check_rewind(run_in(RunStatus.RUNNING), holder_alive=True, takeover=False)
    check_rewind(run_in(RunStatus.RUNNING), holder_alive=True, takeover=True)
    check_rewind(run_in(RunStatus.RUNNING), holder_alive=False, takeover=False)
    check_rewind(run_in(RunStatus.WAITING), holder_alive=True, takeover=False)
