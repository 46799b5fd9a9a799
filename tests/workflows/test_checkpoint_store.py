"""The face of seed 001: the same suite for the store in memory, SQLite and PostgreSQL."""

import copy
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import errors, sync
from holdfast.compat.workflow_stores import (
    CheckpointState,
    CheckpointStore,
    InMemoryCheckpointStore,
    PauseMetadata,
    ResumeResult,
)
from holdfast.compat.workflow_stores.stored_checkpoints import AGENT
from holdfast.settings import Settings
from holdfast.stores.sqlfiles import load_queries
from holdfast.sync.checkpoint_store import SqlCheckpointStore, pause_workflow, resume_workflow
from holdfast.testing import ManualClock
from tests.backends import Backend, PostgresBackend, SQLiteBackend
from tests.processes import Child
from tests.workflows.checkpointing import (
    HOUR,
    LittleExecutor,
    aged,
    asking,
    block,
    maker,
    state,
    waves,
)

STORES = ("in-memory", "memory", "sqlite", "postgres")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def checkpoints(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[CheckpointStore]:
    """An empty store of each kind in turn."""
    if request.param == "in-memory":
        yield InMemoryCheckpointStore(clock=clock)
        return
    urls = {"memory": "memory://", "sqlite": str(tmp_path / "c.db")}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    with SqlCheckpointStore(url, clock=clock) as store:
        yield store


# What a checkpoint is.


@pytest.mark.mission("S1-035", "S1-039", "S1-041", "S1-044")
def test_records_have_the_fields_of_the_seed() -> None:
    assert [f.name for f in fields(CheckpointState)] == [
        "checkpoint_id",
        "workflow_name",
        "workflow_inputs",
        "execution_waves",
        "completed_waves",
        "context",
        "created_at",
        "pause_metadata",
    ]
    assert [f.name for f in fields(PauseMetadata)] == ["block_id", "prompt", "response"]
    assert state().pause_metadata is None
    assert PauseMetadata("ask", "Ship it?").response is None


@pytest.mark.mission("S1-040")
def test_created_at_without_a_time_zone_is_in_utc() -> None:
    naive = datetime(2026, 1, 2, 3)  # noqa: DTZ001 - what users of the seed give
    assert state(created_at=naive).created_at == datetime(2026, 1, 2, 3, tzinfo=UTC)


@pytest.mark.mission("S1-038")
def test_state_knows_which_blocks_of_the_open_wave_have_ended() -> None:
    wave = [block("a"), block("b"), block("c")]
    blocks = {"a": {"outputs": {}}, "b": {"outputs": {}, "status": "paused"}}
    assert state(
        execution_waves=[wave], completed_waves=0, context={"blocks": blocks}
    ).ended_blocks == ["a"]


# The five verbs.


@pytest.mark.mission("S1-016", "S1-026", "S1-033", "S1-035", "S1-039", "S1-046", "S1-061")
@pytest.mark.mission("S1-067", "S1-068", "S1-069", "S1-070", "S1-071", "S1-072", "S1-073", "S1-074")
def test_saved_state_comes_back_whole(checkpoints: CheckpointStore) -> None:
    saved = asking(created_at=datetime(2026, 3, 4, tzinfo=timezone(timedelta(hours=2))))
    checkpoints.save(saved)
    assert checkpoints.load("c-1") == saved
    plain = state("c-2")
    checkpoints.save(plain)
    assert checkpoints.load("c-2") == plain


@pytest.mark.mission("S1-046", "S1-047")
def test_missing_checkpoint_is_none_and_deleting_it_is_no_error(
    checkpoints: CheckpointStore,
) -> None:
    checkpoints.delete("nobody")
    assert checkpoints.load("nobody") is None
    assert checkpoints.list() == []


@pytest.mark.mission("S1-047")
def test_deleted_checkpoint_is_gone_and_its_id_can_be_used_again(
    checkpoints: CheckpointStore,
) -> None:
    for number in range(3):
        saved = state(workflow_name=f"release-{number}", completed_waves=number)
        checkpoints.save(saved)
        assert checkpoints.load("c-1") == saved
        checkpoints.delete("c-1")
        assert checkpoints.load("c-1") is None
        assert checkpoints.list() == []


@pytest.mark.mission("S1-067")
def test_saving_again_replaces_what_was_saved(checkpoints: CheckpointStore) -> None:
    context: dict[str, Any] = {"blocks": {"a": {"outputs": [1, 2]}}, "gone": [1], "kind": [1]}
    checkpoints.save(state(context=context))
    later = {"kind": {"now": "a dict"}, "blocks": {"b": {}, "a": {"outputs": [1, 3]}}, "empty": []}
    checkpoints.save(state(context=later, completed_waves=2))
    found = checkpoints.load("c-1")
    assert found is not None
    assert found.context == later
    assert list(found.context) == ["kind", "blocks", "empty"]
    assert list(found.context["blocks"]) == ["b", "a"]
    assert found.completed_waves == 2
    assert len(checkpoints.list()) == 1


@pytest.mark.mission("S1-048")
def test_list_gives_all_or_those_of_one_workflow_oldest_first(
    checkpoints: CheckpointStore,
) -> None:
    for number in range(5):
        name = "release" if number % 2 else "nightly"
        made = datetime(2026, 1, 9 - number, tzinfo=UTC)
        checkpoints.save(state(f"c-{number}", workflow_name=name, created_at=made))
    assert [s.checkpoint_id for s in checkpoints.list()] == ["c-4", "c-3", "c-2", "c-1", "c-0"]
    assert [s.checkpoint_id for s in checkpoints.list("release")] == ["c-3", "c-1"]
    assert checkpoints.list("nobody") == []


@pytest.mark.mission("S1-013")
def test_checkpoint_of_another_workflow_cannot_be_overwritten(
    checkpoints: CheckpointStore,
) -> None:
    checkpoints.save(state())
    with pytest.raises(errors.InputDiffers, match="of workflow 'release', not of 'evil'"):
        checkpoints.save(state(workflow_name="evil", context={}))
    assert checkpoints.load("c-1") == state()


def test_later_changes_of_objects_reach_nobody(checkpoints: CheckpointStore) -> None:
    saved = asking()
    kept = copy.deepcopy(saved)
    checkpoints.save(saved)
    saved.context["blocks"]["build"]["outputs"]["log"] = "changed"
    saved.workflow_inputs.clear()
    assert saved.pause_metadata is not None
    saved.pause_metadata.response = "changed"
    handed_out = checkpoints.load("c-1")
    assert handed_out == kept
    handed_out.context["blocks"].clear()
    handed_out.execution_waves.clear()
    (listed,) = checkpoints.list()
    listed.context.clear()
    assert checkpoints.load("c-1") == kept


@pytest.mark.mission("S1-050")
def test_threads_share_a_store(checkpoints: CheckpointStore) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            checkpoints.save(state(f"c-{number}", completed_waves=turn))
            found = checkpoints.load(f"c-{number}")
            if found is None or found.completed_waves != turn:
                wrong.append((number, turn))
            checkpoints.list()

    wrong: list[tuple[int, int]] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {s.checkpoint_id for s in checkpoints.list()} == {f"c-{n}" for n in range(8)}


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads that take turns all the time: what is not guarded is torn."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.mission("S1-050")
@pytest.mark.usefixtures("hurried_threads")
def test_store_in_memory_is_read_and_cleaned_while_others_save() -> None:
    store, saved, wrong = InMemoryCheckpointStore(), threading.Event(), []
    old = aged(30, store.now())

    def save() -> None:
        for number in range(1000):
            store.save(state(f"c-{number}", **old))
        saved.set()

    def look(read: Callable[[], object]) -> None:
        try:
            while not saved.is_set():
                read()
        except Exception as error:
            wrong.append(error)

    reads: list[Callable[[], object]] = [
        lambda: store.list("nobody"),
        lambda: store.cleanup_expired(48),
    ]
    threads = [threading.Thread(target=save)]
    threads += [threading.Thread(target=look, args=(read,)) for read in reads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.cleanup_expired(24) == 1000


# Values.

EXACT = {
    "text": "é\n",
    "bytes": b"\0\xff",
    "moment": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "tuple": (1, (2, "x")),
    "none": None,
    "nested": {"": [{}, [], {"deep": 1.5}]},
    "": "an empty key",
    "a\nkey that names no part": 1,
    "k" * 400: 2,
}


@dataclass
class Thing:
    name: str


@pytest.mark.mission("S1-056", "S1-058")
def test_values_come_back_as_they_were(checkpoints: CheckpointStore) -> None:
    saved = state(context={**EXACT, "blocks": {**EXACT}}, workflow_inputs=dict(EXACT))
    checkpoints.save(saved)
    found = checkpoints.load("c-1")
    assert found == saved
    assert type(found.context["tuple"]) is tuple
    assert type(found.context["decimal"]) is Decimal


@pytest.mark.mission("S1-056", "S1-058")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1, 2}, 'context["blocks"]["b"]: set is not supported; use a sorted list'),
        ([Thing("x")], 'context["blocks"]["b"][0]: Thing would come back as dict'),
        ({"at": date(2026, 1, 1)}, 'context["blocks"]["b"]["at"]: date is not supported'),
        ({"n": float("nan")}, 'context["blocks"]["b"]["n"]: nan is not a finite number'),
        ({1: "one"}, 'context["blocks"]["b"][1]: dict keys must be strings'),
        (object(), 'context["blocks"]["b"]: object is not supported'),
    ],
    ids=["set", "dataclass", "date", "nan", "key", "object"],
)
def test_value_that_would_change_is_refused_with_its_path(
    checkpoints: CheckpointStore, value: object, told: str
) -> None:
    checkpoints.save(state())
    with pytest.raises(errors.UnsupportedValue) as refused:
        checkpoints.save(state(context={"blocks": {"a": {}, "b": value}}))
    assert told in str(refused.value)
    assert checkpoints.load("c-1") == state()


@pytest.mark.mission("S1-034", "S1-068", "S1-071")
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"checkpoint_id": ""}, errors.InvalidIdentifier),
        ({"checkpoint_id": 7}, errors.InvalidIdentifier),
        ({"workflow_name": ""}, errors.InvalidIdentifier),
        ({"workflow_name": None}, errors.InvalidIdentifier),
        ({"completed_waves": -1}, errors.MisuseError),
        ({"completed_waves": 1.5}, errors.MisuseError),
        ({"created_at": "today"}, errors.MisuseError),
        ({"context": []}, errors.MisuseError),
        ({"execution_waves": [["build"]]}, errors.UnsupportedValue),
    ],
)
def test_what_is_no_state_is_refused(
    checkpoints: CheckpointStore, changed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        checkpoints.save(state(**changed))
    assert checkpoints.list() == []


# Expiry.


@pytest.mark.mission("S1-049", "S1-050")
def test_only_what_is_strictly_older_expires(
    checkpoints: CheckpointStore, clock: ManualClock
) -> None:
    now = checkpoints.now()
    checkpoints.save(state("young", **aged(0, now)))
    checkpoints.save(state("exact", **aged(24, now)))
    checkpoints.save(state("old", created_at=now - timedelta(hours=24, microseconds=1)))
    assert checkpoints.cleanup_expired() == 1
    assert {s.checkpoint_id for s in checkpoints.list()} == {"young", "exact"}
    clock.advance(1)
    assert checkpoints.cleanup_expired(max_age_hours=24) == 1
    assert checkpoints.cleanup_expired(max_age_hours=0) == 1
    assert checkpoints.list() == []
    assert checkpoints.load("old") is None


@pytest.mark.mission("S1-064")
def test_one_that_waits_for_an_answer_stays_unless_it_is_asked_for(
    checkpoints: CheckpointStore, clock: ManualClock
) -> None:
    checkpoints.save(asking("waits", **aged(500, checkpoints.now())))
    answered = asking("answered", **aged(500, checkpoints.now()))
    assert answered.pause_metadata is not None
    answered.pause_metadata.response = ""
    checkpoints.save(answered)
    clock.advance(100 * HOUR)
    assert checkpoints.cleanup_expired() == 1
    assert [s.checkpoint_id for s in checkpoints.list()] == ["waits"]
    assert checkpoints.cleanup_expired(even_waiting=True) == 1
    assert checkpoints.list() == []


def test_one_that_is_being_resumed_does_not_expire(checkpoints: CheckpointStore) -> None:
    checkpoints.save(state(**aged(500, checkpoints.now())))
    with checkpoints.claimed("c-1"):
        assert checkpoints.cleanup_expired(even_waiting=True) == 0
        assert checkpoints.load("c-1") is not None
    assert checkpoints.cleanup_expired() == 1


@pytest.mark.parametrize("age", [-1, "24", None, True, float("nan"), float("inf")])
def test_age_that_is_none_is_refused(checkpoints: CheckpointStore, age: Any) -> None:
    checkpoints.save(state(**aged(500, checkpoints.now())))
    with pytest.raises(errors.MisuseError):
        checkpoints.cleanup_expired(age)
    assert len(checkpoints.list()) == 1


# Pausing and going on.


def started(store: CheckpointStore, done: list[str], made: Any = None) -> Any:
    executor = LittleExecutor("release", {"version": "1.2"}, store, done)
    executor.waves = waves() if made is None else made
    return executor.execute_from_wave(0)


@pytest.mark.mission("S1-034", "S1-036", "S1-037", "S1-041", "S1-042", "S1-043", "S1-044")
@pytest.mark.mission("S1-051", "S1-053", "S1-060", "S1-062")
def test_workflow_pauses_and_goes_on_with_the_answer(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    paused = started(checkpoints, done).value["paused"]
    assert done == ["build"]
    stored = checkpoints.load(paused)
    assert stored is not None
    assert stored.checkpoint_id == paused
    assert stored.workflow_inputs == {"version": "1.2"}
    assert stored.context["blocks"] == {"build": {"outputs": {"by": "build"}}}
    assert stored.execution_waves == waves()
    assert stored.completed_waves == 1
    assert stored.pause_metadata == PauseMetadata("ask", "ask?")
    made: list[LittleExecutor] = []

    class Watched(LittleExecutor):
        def execute_from_wave(self, wave: int) -> Any:
            began.append((self.current_wave, wave))
            answered = checkpoints.load(paused)
            assert answered is not None
            assert answered.pause_metadata == PauseMetadata("ask", "ask?", "yes")
            return super().execute_from_wave(wave)

    def make(name: str, inputs: dict[str, Any]) -> LittleExecutor:
        made.append(Watched(name, inputs, checkpoints, done))
        return made[-1]

    began: list[tuple[int, int]] = []
    result = resume_workflow(paused, "yes", make_executor=make, store=checkpoints)
    assert result.is_success
    assert result.value == {
        "build": {"outputs": {"by": "build"}},
        "ask": {"outputs": {"response": "yes"}},
        "ship": {"outputs": {"by": "ship"}},
    }
    assert done == ["build", "ship"]
    assert (made[0].workflow_name, made[0].inputs) == ("release", {"version": "1.2"})
    assert made[0].context["inputs"] == {"version": "1.2"}
    assert made[0].waves == waves()
    assert began == [(2, 2)]
    assert checkpoints.list() == []


@pytest.mark.mission("S1-034", "S1-036", "S1-051")
def test_every_pause_has_an_id_of_its_own_and_a_copy_of_the_context(
    checkpoints: CheckpointStore,
) -> None:
    executor = LittleExecutor("release", {"version": "1.2"}, checkpoints, [])
    paused: list[str] = []
    for number in range(3):
        executor.context["blocks"]["build"] = {"outputs": {"turn": number}}
        paused.append(pause_workflow(executor, "ask", f"{number}?", store=checkpoints))
        executor.context["blocks"]["build"]["outputs"]["turn"] = "changed"
        executor.inputs["version"] = f"changed {number}"
    assert len(set(paused)) == 3
    found = [checkpoints.load(each) for each in paused]
    assert [s and s.checkpoint_id for s in found] == paused
    assert [s and s.context["blocks"]["build"]["outputs"]["turn"] for s in found] == [0, 1, 2]
    assert [s and s.workflow_inputs["version"] for s in found] == ["1.2", "changed 0", "changed 1"]
    assert [s and s.pause_metadata and s.pause_metadata.prompt for s in found] == ["0?", "1?", "2?"]


@pytest.mark.mission("S1-052", "S1-063")
def test_unknown_checkpoint_is_a_failure_that_says_so(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    make = maker(checkpoints, done)
    missing = resume_workflow("nobody", "yes", make_executor=make, store=checkpoints)
    assert missing == ResumeResult.failure("Checkpoint not found: nobody")
    paused = started(checkpoints, done).value["paused"]
    assert resume_workflow(paused, "yes", make_executor=make, store=checkpoints).is_success
    again = resume_workflow(paused, "yes", make_executor=make, store=checkpoints)
    assert again == ResumeResult.failure(f"Checkpoint not found: {paused}")
    assert done == ["build", "ship"]


@pytest.mark.mission("S1-054")
def test_empty_answer_is_an_answer(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    paused = started(checkpoints, done).value["paused"]
    result = resume_workflow(paused, make_executor=maker(checkpoints, done), store=checkpoints)
    assert result.value["ask"] == {"outputs": {"response": ""}}


@pytest.mark.mission("S1-055")
def test_two_prompts_of_one_wave_are_both_asked_and_nothing_runs_twice(
    checkpoints: CheckpointStore,
) -> None:
    wave = [block("one"), block("ask-a", "Prompt"), block("two"), block("ask-b", "Prompt")]
    done: list[str] = []
    make = maker(checkpoints, done)
    first = started(checkpoints, done, [wave, [block("after")]]).value["paused"]
    assert done == ["one"]
    second = resume_workflow(first, "A", make_executor=make, store=checkpoints).value["paused"]
    assert done == ["one", "two"]
    (waiting,) = checkpoints.list("release")
    assert waiting.pause_metadata == PauseMetadata("ask-b", "ask-b?")
    assert [each.id for wave in waiting.execution_waves for each in wave] == [
        "one",
        "ask-a",
        "two",
        "ask-b",
        "after",
    ]
    end = resume_workflow(second, "B", make_executor=make, store=checkpoints)
    assert done == ["one", "two", "after"]
    answers = {name: end.value[name]["outputs"]["response"] for name in ("ask-a", "ask-b")}
    assert answers == {"ask-a": "A", "ask-b": "B"}


def test_answer_that_was_given_stays(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    paused = started(checkpoints, done).value["paused"]

    def broken(name: str, inputs: dict[str, Any]) -> LittleExecutor:
        raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError):
        resume_workflow(paused, "yes", make_executor=broken, store=checkpoints)
    make = maker(checkpoints, done)
    other = resume_workflow(paused, "no", make_executor=make, store=checkpoints)
    assert not other.is_success
    assert "answered before" in other.error
    assert done == ["build"]
    result = resume_workflow(paused, make_executor=make, store=checkpoints)
    assert result.value["ask"] == {"outputs": {"response": "yes"}}


def test_failure_of_the_executor_keeps_the_checkpoint(checkpoints: CheckpointStore) -> None:
    class Failing(LittleExecutor):
        def execute_from_wave(self, wave: int) -> Any:
            return ResumeResult.failure("the disk is full")

    done: list[str] = []
    paused = started(checkpoints, done).value["paused"]
    result = resume_workflow(
        paused,
        "yes",
        make_executor=lambda name, inputs: Failing(name, inputs, checkpoints, done),
        store=checkpoints,
    )
    assert result == ResumeResult.failure("the disk is full")
    found = checkpoints.load(paused)
    assert found is not None
    assert found.pause_metadata == PauseMetadata("ask", "ask?", "yes")


def test_checkpoint_without_a_pause_goes_on_in_its_wave(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    wave = [block("a"), block("b")]
    context = {"blocks": {"a": {"outputs": {}}}}
    checkpoints.save(state(execution_waves=[wave], completed_waves=0, context=context))
    result = resume_workflow("c-1", make_executor=maker(checkpoints, done), store=checkpoints)
    assert result.is_success
    assert done == ["b"]


def test_two_threads_that_resume_at_once_do_it_once(checkpoints: CheckpointStore) -> None:
    done: list[str] = []
    paused = started(checkpoints, done).value["paused"]
    inside, leave = threading.Event(), threading.Event()

    def slow(name: str, inputs: dict[str, Any]) -> LittleExecutor:
        inside.set()
        assert leave.wait(60)
        return LittleExecutor(name, inputs, checkpoints, done)

    results: list[ResumeResult] = []
    first = threading.Thread(
        target=lambda: results.append(
            resume_workflow(paused, "yes", make_executor=slow, store=checkpoints)
        )
    )
    first.start()
    assert inside.wait(60)
    make = maker(checkpoints, done)
    refused = resume_workflow(paused, "yes", make_executor=make, store=checkpoints)
    leave.set()
    first.join(60)
    assert not refused.is_success
    assert "being resumed" in refused.error
    assert [result.is_success for result in results] == [True]
    assert done == ["build", "ship"]


# What only a database has.


@pytest.mark.mission("S1-066", "S1-079", "S1-082")
def test_another_server_loads_what_was_saved_at_once(unopened: Backend) -> None:
    with SqlCheckpointStore(unopened.url) as one, SqlCheckpointStore(unopened.url) as other:
        for turn in range(3):
            one.save(asking(completed_waves=turn))
            assert other.load("c-1") == asking(completed_waves=turn)
            other.save(state(completed_waves=turn + 10))
            assert one.load("c-1") == state(completed_waves=turn + 10)
            assert [s.completed_waves for s in one.list("release")] == [turn + 10]


@pytest.mark.mission("S1-081")
def test_two_servers_that_resume_at_once_do_it_once(store: str) -> None:
    done: list[str] = []
    with SqlCheckpointStore(store) as one, SqlCheckpointStore(store) as other:
        paused = started(one, done).value["paused"]
        with one.claimed(paused):
            refused = resume_workflow(paused, "yes", make_executor=maker(other, done), store=other)
            assert "being resumed" in refused.error
            with pytest.raises(errors.LeaseHeld, match="being resumed"):
                other.save(state(paused))
        assert resume_workflow(
            paused, "yes", make_executor=maker(other, done), store=other
        ).is_success
    assert done == ["build", "ship"]


@pytest.mark.mission("S1-060")
def test_checkpoint_of_a_process_that_was_killed_is_resumed_by_another(store: str) -> None:
    with Child("tests.workflows.resumer", store) as child:
        paused = child.ask("pause")
        assert child.ask(["resume", paused, "yes"]) == "ship"
        child.process.kill()
        child.wait()
    done: list[str] = []
    settings = Settings(lease_seconds=0.5)
    with SqlCheckpointStore(store, settings=settings) as checkpoints:
        make = maker(checkpoints, done)
        refused = True
        while refused:
            result = resume_workflow(paused, make_executor=make, store=checkpoints)
            refused = "being resumed" in result.error
        assert result.value["ask"] == {"outputs": {"response": "yes"}}
    assert done == ["ship"]


@pytest.mark.mission("S1-083", "S1-084")
def test_saving_again_stores_what_changed(backend: Backend) -> None:
    def stored() -> int:
        with backend.raw() as raw:
            return sum(len(entry[-2] or b"") for entry in raw.entries())

    noise = {f"b{n}": {"outputs": {"log": _noise(n)}} for n in range(100)}
    with SqlCheckpointStore(backend.url) as checkpoints:
        checkpoints.save(state(context={"blocks": noise}))
        first = stored()
        changed = {**noise, "b7": {"outputs": {"log": "changed"}}}
        checkpoints.save(state(context={"blocks": changed}))
        found = checkpoints.load("c-1")
        checkpoints.save(state("zeros", context={"blocks": {"z": "0" * 1_000_000}}))
        squeezed = stored()
    assert found is not None
    assert found.context["blocks"] == changed
    assert first > 500_000
    assert stored() - first < 12_000
    assert squeezed - first < 12_000


def _noise(number: int) -> str:
    """Text that does not compress to nothing."""
    digests = (hashlib.sha256(b"%d/%d" % (number, n)).hexdigest() for n in range(160))
    return "".join(digests)


@pytest.mark.mission("S1-047", "S1-085")
def test_deleted_checkpoint_leaves_no_body_and_a_chain_that_verifies(backend: Backend) -> None:
    secret = "a word that nobody may find again"
    clock = ManualClock()
    with SqlCheckpointStore(backend.url, clock=clock) as checkpoints:
        for turn in range(3):
            checkpoints.save(state(context={"word": secret, "turn": turn}))
        checkpoints.save(state("old", context={"word": secret}, **aged(50, checkpoints.now())))
        with backend.raw() as raw:
            assert max(len(entry[-2] or b"") for entry in raw.entries()) > len(secret)
        checkpoints.delete("c-1")
        assert checkpoints.cleanup_expired() == 1
    with backend.raw() as raw:
        # Bodies are compressed: what holds the word has more bytes than an empty state.
        assert max(len(entry[-2] or b"") for entry in raw.entries()) <= 8
        assert [row[0] for row in raw.rows("SELECT status FROM runs")] == ["cancelled"] * 2
    with sync.open(backend.url, clock=clock) as hf:
        assert [hf.journal.verify(run) for run in ("c-1", "old")] == [[], []]


@pytest.mark.mission("S1-075", "S1-076")
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("list_live_runs_by_subject", "runs_by_subject (tenant=? AND agent=? AND subject=?"),
        ("list_live_runs", "runs_by_agent (tenant=? AND agent=? AND (created_at,run_id)>"),
        ("list_expired_runs", "runs_by_agent (tenant=? AND agent=? AND (created_at,run_id)>"),
    ],
)
def test_checkpoints_are_found_by_an_index(tmp_path: Path, query: str, index: str) -> None:
    path = str(tmp_path / "c.db")
    with SqlCheckpointStore(path) as checkpoints:
        checkpoints.save(state())
    with SQLiteBackend(tmp_path / "c.db").raw() as raw:
        sql = load_queries("holdfast.stores.sqlite")[query]
        given = max(int(number) for number in re.findall(r"\?(\d)", sql))
        plan = raw.rows(f"EXPLAIN QUERY PLAN {sql}", *["x"] * given)
    assert any(index in row[3] for row in plan), plan


@pytest.mark.mission("S1-075", "S1-076")
@pytest.mark.parametrize(
    ("query", "index", "column", "values"),
    [
        ("list_live_runs_by_subject", "runs_by_subject", "subject = 's 7'", (0, "", 100, "s 7")),
        ("list_live_runs", "runs_by_agent", "ROW(created_at, run_id) >", (4900, "", 100)),
    ],
    ids=["name", "time"],
)
def test_checkpoints_are_found_by_an_index_on_a_server(
    postgres_url: str, query: str, index: str, column: str, values: tuple[Any, ...]
) -> None:
    with SqlCheckpointStore(postgres_url) as checkpoints:
        checkpoints.save(state())
    with PostgresBackend(postgres_url).raw() as raw:
        # A few rows are read as they lie, whatever index there is.
        raw.execute(
            "INSERT INTO runs SELECT (jsonb_populate_record(r, jsonb_build_object("
            " 'run_id', 'c ' || n, 'subject', 's ' || n % 100, 'created_at', n))).*"
            " FROM runs r, generate_series(1, 5000) n"
        )
        raw.execute("ANALYZE runs")
        sql = load_queries("holdfast.stores.postgres")[query]
        plan = raw.rows(f"EXPLAIN {sql}", "default", AGENT, *values)
    told = "\n".join(line for (line,) in plan)
    ((used, condition),) = re.findall(r"(runs_by_\w+).*\n *Index Cond: (.*)", told)
    assert used == index, told
    assert column in condition, told


@pytest.mark.mission("S1-013")
def test_tenants_do_not_see_each_other(store: str) -> None:
    with (
        SqlCheckpointStore(store, settings=Settings(tenant="one")) as one,
        SqlCheckpointStore(store, settings=Settings(tenant="two")) as two,
    ):
        one.save(state())
        assert two.load("c-1") is None
        assert two.list() == []
        two.delete("c-1")
        assert two.cleanup_expired(0, even_waiting=True) == 0
        two.save(state(workflow_name="other"))
        assert one.load("c-1") == state()


def test_damaged_checkpoint_is_told_and_does_not_hide_the_others(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with SqlCheckpointStore(backend.url) as checkpoints:
        for name in ("bad", "good"):
            checkpoints.save(state(name, **aged(50, checkpoints.now())))
        with backend.raw() as raw:
            raw.execute(
                "UPDATE journal SET nonce = ? WHERE run_id = ? AND kind = 'CHECKPOINT_CREATED'",
                b"0123456789abcdef",
                "bad",
            )
        with pytest.raises(errors.CheckpointCorrupted):
            checkpoints.load("bad")
        assert [s.checkpoint_id for s in checkpoints.list()] == ["good"]
        assert "run bad cannot be loaded" in caplog.text
        assert checkpoints.cleanup_expired() == 2


def test_id_of_another_run_is_free_for_a_checkpoint(store: str) -> None:
    with sync.open(store) as hf:
        hf.runs.create("c-1", agent="support", input="hello")
    with SqlCheckpointStore(store) as checkpoints:
        assert checkpoints.load("c-1") is None
        checkpoints.save(state())
        assert checkpoints.load("c-1") == state()
        checkpoints.delete("c-1")
    with sync.open(store) as hf:
        assert hf.runs.get("c-1").status == "ready"


def test_store_that_was_closed_says_so(tmp_path: Path) -> None:
    checkpoints = SqlCheckpointStore(str(tmp_path / "c.db"))
    checkpoints.save(state())
    checkpoints.close()
    checkpoints.close()
    with pytest.raises(errors.StoreClosed, match="make another one"):
        checkpoints.load("c-1")


def test_store_of_ones_own_keeps_two_threads_apart() -> None:
    class Own(CheckpointStore):
        def __init__(self) -> None:
            self.inner = InMemoryCheckpointStore()

        def save(self, state: CheckpointState) -> None:
            self.inner.save(state)

        def load(self, checkpoint_id: str) -> CheckpointState | None:
            return self.inner.load(checkpoint_id)

        def delete(self, checkpoint_id: str) -> None:
            self.inner.delete(checkpoint_id)

        def list(self, workflow_name: str | None = None) -> "list[CheckpointState]":
            return self.inner.list(workflow_name)

        def cleanup_expired(self, max_age_hours: float = 24, *, even_waiting: bool = False) -> int:
            return self.inner.cleanup_expired(max_age_hours, even_waiting=even_waiting)

    own = Own()
    with own.claimed("c-1"), pytest.raises(errors.LeaseHeld), own.claimed("c-1"):
        pass
    paused = pause_workflow(LittleExecutor("release", {}, own, []), "ask", "Ship it?", store=own)
    assert own.load(paused) is not None
