"""The serialization of tasks: the eighteen cases of seed 000, and the traps in them."""

import asyncio
import copy
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.compat.mesh import TaskExecutionContext
from holdfast.compat.mesh.security import LEFT_OUT
from tests.peers.tasks import REFERENCE, call, sub_task, task

TOKEN = "eyJhbGciOi.J0b2tlbi1ieXRlcw.c2lnbmF0dXJl"
EXCLUDED = {
    "lock",
    "cancellation_event",
    "event_loop",
    "_original_solace_message",
    "streaming_buffer",
    "_first_text_seen_in_turn",
    "_need_spacing_before_next_text",
}


def restored(made: TaskExecutionContext) -> TaskExecutionContext:
    return TaskExecutionContext.from_checkpoint_dict(made.to_checkpoint_dict())


@pytest.mark.mission("S0-053", "S0-054", "S0-055")
def test_dict_has_the_task_its_context_and_invocation() -> None:
    stored = task().to_checkpoint_dict()
    assert stored["task_id"] == "task-1"
    assert stored["a2a_context"]["user_id"] == "user-1"
    assert stored["current_invocation_id"] == "inv-1"


@pytest.mark.mission("S0-056", "S0-057", "S0-058", "S0-059")
def test_dict_has_the_text_artifacts_signals_and_flags() -> None:
    stored = task().to_checkpoint_dict()
    assert stored["run_based_response_buffer"] == "so far"
    assert stored["produced_artifacts"][0]["filename"] == "report.md"
    assert stored["artifact_signals_to_return"] == [{"filename": "report.md", "version": 1}]
    assert stored["flags"] == {"deep_research_sent": True}


@pytest.mark.mission("S0-060")
def test_dict_has_the_references_of_the_security_context() -> None:
    assert task().to_checkpoint_dict()["security_context"] == {"auth_token": REFERENCE}


@pytest.mark.mission("S0-061")
def test_dict_has_token_usage_in_total_by_model_and_by_source() -> None:
    usage = task().to_checkpoint_dict()["token_usage"]
    assert usage["total_input_tokens"] == 110
    assert usage["total_output_tokens"] == 22
    assert usage["total_cached_input_tokens"] == 5
    assert usage["by_model"]["model-b"]["input_tokens"] == 10
    assert usage["by_source"]["agent"]["cached_input_tokens"] == 5


@pytest.mark.mission("S0-062", "S2-004")
def test_dict_has_the_open_sub_tasks() -> None:
    stored = task(calls=1).to_checkpoint_dict()
    name = sub_task("task-1", "inv-1", 0)
    assert stored["active_peer_sub_tasks"] == {name: call(0, invocation_id="inv-1")}


@pytest.mark.mission("S0-063")
def test_dict_has_the_counts_of_parallel_calls() -> None:
    stored = task(calls=3).to_checkpoint_dict()
    assert stored["parallel_tool_calls"] == {"inv-1": {"total": 3, "completed": 0, "results": []}}


@pytest.mark.mission("S0-064", "S0-065", "S0-066", "S0-067", "S0-068")
def test_dict_has_nothing_transient() -> None:
    made = task()
    made.original_message = object()
    made.streaming_buffer = "half a sent"
    stored = made.to_checkpoint_dict()
    assert EXCLUDED & stored.keys() == set()
    assert vars(made).keys() >= EXCLUDED


@pytest.mark.mission("S0-011", "S0-052")
def test_dict_is_plain_json() -> None:
    made = task()
    made.flags["sent_to"] = ("ann", "bob")
    stored = made.to_checkpoint_dict()
    assert json.loads(json.dumps(stored)) == stored


@pytest.mark.mission("S0-069")
def test_dict_does_not_change_with_the_task() -> None:
    made = task()
    stored = made.to_checkpoint_dict()
    made.a2a_context["user_id"] = "another"
    made.flags.clear()
    made.produced_artifacts.append({"filename": "late.md"})
    assert stored["a2a_context"]["user_id"] == "user-1"
    assert stored["flags"] == {"deep_research_sent": True}
    assert len(stored["produced_artifacts"]) == 1


@pytest.mark.mission("S0-069")
def test_dict_does_not_change_with_what_lies_deep_in_the_task() -> None:
    made = task()
    stored = made.to_checkpoint_dict()
    made.produced_artifacts[0]["tags"].append("final")
    made.token_usage_by_model["model-a"]["input_tokens"] = 0
    made.active_peer_sub_tasks[sub_task("task-1", "inv-1", 0)]["peer_tool_name"] = "another"
    made.parallel_tool_calls["inv-1"]["results"].append("late")
    again = task().to_checkpoint_dict()
    assert stored == again


@pytest.mark.mission("S0-070")
def test_restored_task_has_its_identity_and_text() -> None:
    back = restored(task())
    assert (back.task_id, back.current_invocation_id) == ("task-1", "inv-1")
    assert back.a2a_context["effective_session_id"] == "session-1:run"
    assert back.run_based_response_buffer == "so far"


def test_restored_task_has_its_artifacts_signals_and_flags() -> None:
    back, made = restored(task()), task()
    assert back.produced_artifacts == made.produced_artifacts
    assert back.artifact_signals_to_return == made.artifact_signals_to_return
    assert back.flags == made.flags


def test_task_of_a_dict_that_lacks_everything_but_its_id_is_empty() -> None:
    back = TaskExecutionContext.from_checkpoint_dict({"task_id": "task-1"})
    assert (back.produced_artifacts, back.artifact_signals_to_return) == ([], [])
    assert (back.flags, back.retry_counts, back.run_based_response_buffer) == ({}, {}, "")
    assert back.to_checkpoint_dict() == TaskExecutionContext("task-1").to_checkpoint_dict()


def test_restored_task_has_its_token_usage_and_security_context() -> None:
    back, made = restored(task()), task()
    assert back.total_input_tokens == 110
    assert back.token_usage_by_model == made.token_usage_by_model
    assert back.token_usage_by_source == made.token_usage_by_source
    assert back.security_context == {"auth_token": REFERENCE}


@pytest.mark.mission("S0-064", "S0-065", "S0-066", "S0-070")
def test_restored_task_has_a_lock_and_an_event_of_its_own() -> None:
    made = task()
    made.cancel()
    made.event_loop = asyncio.new_event_loop()
    made.event_loop.close()
    back = restored(made)
    assert back.lock is not made.lock
    assert back.cancellation_event is not made.cancellation_event
    assert not back.is_cancelled()
    assert back.event_loop is None


@pytest.mark.mission("S0-067", "S0-068")
def test_restored_task_has_fresh_streaming_state_and_no_message() -> None:
    made = task()
    made.original_message = "the broker's"
    made.streaming_buffer = "half a sent"
    made._first_text_seen_in_turn = True
    made._need_spacing_before_next_text = True
    back = restored(made)
    assert (back.streaming_buffer, back.original_message) == ("", None)
    assert not back._first_text_seen_in_turn
    assert not back._need_spacing_before_next_text


@pytest.mark.mission("S0-070")
def test_restored_task_has_no_sub_tasks_and_counts() -> None:
    back = restored(task(calls=3))
    assert back.active_peer_sub_tasks == {}
    assert back.parallel_tool_calls == {}


def test_full_task_goes_there_and_back() -> None:
    made = task(calls=3)
    gone = {"active_peer_sub_tasks": {}, "parallel_tool_calls": {}}
    assert restored(made).to_checkpoint_dict() == made.to_checkpoint_dict() | gone


def test_minimal_task_goes_there_and_back() -> None:
    made = TaskExecutionContext("task-2")
    assert restored(made).to_checkpoint_dict() == made.to_checkpoint_dict()
    assert TaskExecutionContext.from_checkpoint_dict({"task_id": "x"}).task_id == "x"


def test_retry_counts_go_there_and_back() -> None:
    back = restored(task())
    assert back.count_retry("node") == 2


# Sub-tasks in memory.


@pytest.mark.mission("S0-111", "S2-002", "S2-007")
def test_sub_task_is_claimed_once_however_many_threads_try() -> None:
    made = TaskExecutionContext("task")
    for number in range(200):
        made.register_peer_sub_task(f"s{number}", call(number))
    barrier = threading.Barrier(8)

    def claim_all(_: int) -> list[str]:
        barrier.wait()
        names = [f"s{number}" for number in range(200)]
        return [name for name in names if made.claim_sub_task_completion(name) is not None]

    with ThreadPoolExecutor(8) as pool:
        claimed = [name for names in pool.map(claim_all, range(8)) for name in names]
    assert sorted(claimed) == sorted(f"s{number}" for number in range(200))
    assert made.claim_sub_task_completion("s0") is None


class WatchedLock:
    """The lock of a task, and what the task was when it was taken and when it was given back."""

    def __init__(self, made: TaskExecutionContext) -> None:
        self._made = made
        self._lock = made.lock
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self.seen.append(state_of(self._made))

    def __exit__(self, *_: object) -> None:
        self.seen.append(state_of(self._made))
        self._lock.release()


def state_of(made: TaskExecutionContext) -> dict[str, Any]:
    own = {"lock", "cancellation_event", "_clock"}
    return copy.deepcopy({name: each for name, each in vars(made).items() if name not in own})


CHANGES: dict[str, Callable[[TaskExecutionContext], object]] = {
    "register_peer_sub_task": lambda made: made.register_peer_sub_task("s", call(7)),
    "claim_sub_task_completion": lambda made: made.claim_sub_task_completion("task-1/inv-1/0"),
    "register_parallel_call_sent": lambda made: made.register_parallel_call_sent("inv-1"),
    "record_parallel_result": lambda made: made.record_parallel_result("x", "inv-1"),
    "handle_peer_timeout": lambda made: made.handle_peer_timeout("s", call(7), 5, "inv-1"),
    "register_peer_results": lambda made: made.register_peer_results([{"flags": {"x": True}}]),
    "append_to_run_based_buffer": lambda made: made.append_to_run_based_buffer(" and more"),
    "register_produced_artifact": lambda made: made.register_produced_artifact({"n": 2}),
    "count_retry": lambda made: made.count_retry("node"),
    "record_token_usage": lambda made: made.record_token_usage(1, 2, "model-a"),
}


@pytest.mark.mission("S2-006")
@pytest.mark.parametrize("name", CHANGES)
def test_all_that_a_method_changes_it_changes_under_the_lock(name: str) -> None:
    made = task()
    watched = WatchedLock(made)
    made.lock = watched  # type: ignore[assignment]
    before = state_of(made)
    CHANGES[name](made)
    after = state_of(made)
    assert watched.seen == [before, after]
    assert before != after


@pytest.mark.mission("S0-052")
def test_dict_is_made_while_nobody_else_can_change_the_task() -> None:
    made = task()

    class Meanwhile(WatchedLock):
        """Others change the task in the last moment before, and the first moment after."""

        def __enter__(self) -> None:
            made.flags["before"] = True
            made.security_context["before"] = REFERENCE
            super().__enter__()

        def __exit__(self, *_: object) -> None:
            super().__exit__()
            made.flags["after"] = True
            made.security_context["after"] = REFERENCE

    made.lock = Meanwhile(made)  # type: ignore[assignment]
    stored = made.to_checkpoint_dict()
    assert stored["flags"] == {"deep_research_sent": True, "before": True}
    assert stored["security_context"] == {"auth_token": REFERENCE, "before": REFERENCE}
    assert set(made.flags) == {"deep_research_sent", "before", "after"}


def test_time_since_dispatch_is_read_under_the_lock() -> None:
    made = task(calls=1)
    watched = WatchedLock(made)
    made.lock = watched  # type: ignore[assignment]
    assert list(made.seconds_since_dispatch()) == [sub_task("task-1", "inv-1", 0)]
    assert len(watched.seen) == 2


@pytest.mark.mission("S2-005")
def test_list_of_peer_sub_tasks_is_gone() -> None:
    assert not hasattr(task(), "peer_sub_tasks")


@pytest.mark.mission("S2-022", "S2-024", "S2-025")
def test_timeout_in_memory_is_an_error_in_place_of_the_answer() -> None:
    made = task(calls=2)
    name = sub_task("task-1", "inv-1", 0)
    data = made.claim_sub_task_completion(name)
    assert data is not None
    still_open = dict(made.active_peer_sub_tasks)
    assert not made.handle_peer_timeout(name, data, 600, "inv-1")
    assert made.active_peer_sub_tasks == still_open, "it claims nothing"
    assert made.record_parallel_result("fine", "inv-1")
    error, fine = made.parallel_tool_calls["inv-1"]["results"]
    text = "Request to peer agent tool 'peer_0' timed out after 600 seconds."
    assert error["payload"] == {"error": text}
    assert (error["adk_function_call_id"], fine) == ("call-0", "fine")


# Secrets.


@pytest.mark.mission("S0-107", "S0-108")
def test_raw_token_is_left_out_with_one_warning_that_does_not_tell_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = TaskExecutionContext("task", {"user_id": "u"}, security_context={"auth_token": TOKEN})
    made.register_peer_sub_task("s", {"original_task_context": {"header": f"Bearer {TOKEN}"}})
    stored = made.to_checkpoint_dict()
    assert stored["security_context"] == {}
    assert TOKEN not in json.dumps(stored)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "auth_token" in record.getMessage()
    assert TOKEN not in record.getMessage()


def test_token_with_a_reference_is_stored_as_that() -> None:
    made = TaskExecutionContext(
        "task",
        {"user_id": "a-user-with-a-long-name"},
        security_context={"auth_token": TOKEN, "subject": "a-user-with-a-long-name"},
        security_references={"auth_token": REFERENCE, "subject": "secret://subject"},
    )
    stored = made.to_checkpoint_dict()
    assert stored["security_context"] == {"auth_token": REFERENCE, "subject": "secret://subject"}
    assert TOKEN not in json.dumps(stored)
    assert stored["a2a_context"]["user_id"] == "a-user-with-a-long-name"


@pytest.mark.mission("S0-108")
def test_short_secret_is_taken_out_wherever_it_stands_and_names_stay() -> None:
    made = TaskExecutionContext(
        "task-7",
        {"user_id": "user-1", "password": "hunter2", "note": "say hunter2 twice: hunter2"},
        security_context={
            "auth": "hunter2",
            "pin": b"0417",
            "kind": "task",
            "subject": "user-1",
            "user": {"jwt": "ey.1", "name": "user-1"},
            "credentials": {"id": "AK47"},
            "seal": ["flag", "abc"],
        },
    )
    made.flags["flag"] = "abc"
    made.flags["flagged"] = "0417"
    made.current_invocation_id = "inv-task"
    made.register_peer_sub_task("sub-task-1", {"header": "Bearer ey.1", "id": "AK47"})
    stored = made.to_checkpoint_dict()
    text = json.dumps(stored)
    assert not any(secret in text for secret in ("hunter2", "0417", "ey.1", "AK47"))
    assert stored["a2a_context"]["user_id"] == "user-1"
    assert (stored["task_id"], stored["current_invocation_id"]) == ("task-7", "inv-task")
    assert stored["flags"] == {LEFT_OUT: "abc", "flagged": LEFT_OUT}
    assert list(stored["active_peer_sub_tasks"]) == ["sub-task-1"]
