"""Random operations on a store against a plain model in memory, which knows only the promises."""

import asyncio
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

import holdfast
from holdfast.errors import ConflictError, Fenced, RunCancelled, RunEnded
from holdfast.testing import ManualClock
from tests.backends import Backend

EXAMPLES = {"sqlite": 40, "postgres": 15}
ITEMS = st.integers(-(2**63), 2**64 - 1) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)


class Model:
    """What a run must look like: a list per version, and what became of waits and effects."""

    def __init__(self) -> None:
        self.versions: list[dict[str, Any]] = [{}]
        self.status = "running"
        self.term = 0
        self.waits: dict[str, str] = {}
        self.deadlines: dict[str, float] = {}
        self.effects: dict[int, str] = {}
        self.group: list[str] = []


class StoreMachine(RuleBasedStateMachine):
    """One store, a few runs, several workers; every answer is compared with the model's."""

    held = Bundle("held")
    url: str
    numbers = count(1)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.time = 0.0
        self.models: dict[str, Model] = {}
        self.counter = 0

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaitable, 60))

    @initialize()
    def open(self) -> None:
        # A tenant of its own is a store of its own.
        tenant = holdfast.Settings(tenant=f"machine-{next(self.numbers)}")
        self.hf = holdfast.open(self.url, clock=self.clock, settings=tenant)
        self.do(self.hf.__aenter__())

    def teardown(self) -> None:
        for run_id in self.models:
            assert self.do(self.hf.journal.verify(run_id)) == []
        self.do(self.hf.__aexit__(None, None, None))
        self.loop.close()

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    @rule(target=held)
    @precondition(lambda self: len(self.models) < 4)
    def create(self) -> Any:
        run_id = self.fresh("run")
        self.models[run_id] = Model()
        return self.open_run(run_id)

    @rule(target=held, data=st.data())
    @precondition(lambda self: self.models)
    def take_over(self, data: st.DataObject) -> Any:
        run_id = data.draw(st.sampled_from(sorted(self.models)))
        if self.models[run_id].status in ("running", "ready"):
            return self.open_run(run_id)
        try:
            self.do(self.hf.runs.open(run_id, takeover=True))
        except ConflictError:
            return multiple()
        raise AssertionError(f"{run_id} was leased though it is {self.models[run_id].status}")

    def open_run(self, run_id: str) -> Any:
        model = self.models[run_id]
        run = self.do(self.hf.another_worker().runs.open(run_id, takeover=True))
        assert run.state() == model.versions[-1]
        model.term = run.run.lease_seq
        model.status = "running"
        return run

    def may_write(self, run: Any) -> bool:
        model = self.models[run.run_id]
        return model.status == "running" and model.term == run.run.lease_seq

    def attempt(self, run: Any, awaitable: Any) -> Any:
        """Do it if the model allows; else it must be refused for the right reason."""
        if self.may_write(run):
            return self.do(awaitable)
        model = self.models[run.run_id]
        try:
            self.do(awaitable)
        except Fenced:
            assert model.term != run.run.lease_seq
        except RunCancelled:
            assert model.status == "cancelled"
        except ConflictError:
            assert model.status != "running"
        else:
            raise AssertionError("a write was accepted that should have been refused")
        run.discard()
        return None

    @rule(run=held, items=st.lists(ITEMS, max_size=4), value=ITEMS)
    def save(self, run: Any, items: list[Any], value: Any) -> None:
        run.append("log", *items)
        run.set("value", value)
        saved = self.attempt(run, run.checkpoint())
        if saved is not None:
            model = self.models[run.run_id]
            last = model.versions[-1]
            changed = {"log": [*last.get("log", []), *items], "value": value}
            model.versions.append({**last, **changed})
            assert saved.version == len(model.versions) - 1

    @rule(run=held, log=st.lists(ITEMS, max_size=6), value=ITEMS)
    def save_whole(self, run: Any, log: list[Any], value: Any) -> None:
        state = {"log": log, "value": value, "other": len(log)}
        if self.attempt(run, run.save(state)) is not None:
            self.models[run.run_id].versions.append(state)

    @rule(run=held, number=st.integers(0, 3), fate=st.sampled_from(["done", "not_done", "leave"]))
    def effect(self, run: Any, number: int, fate: str) -> None:
        request = holdfast.EffectRequest(tool="t", args=number, limit_seconds=1e9)
        begun = self.attempt(run, run.begin_effects([request]))
        if begun is None:
            return
        model = self.models[run.run_id]
        expected = {"done": "done", "issued": "in_flight"}.get(
            model.effects.get(number, ""), "fresh"
        )
        assert begun[0].answer == expected
        if expected == "fresh":
            model.effects[number] = "issued"
            if fate == "done":
                self.do(run.finish_effect(begun[0], number * 10))
                model.effects[number] = "done"
            elif fate == "not_done":
                self.do(run.abandon_effect(begun[0]))
                del model.effects[number]
        elif expected == "done":
            assert begun[0].result == number * 10

    @rule(run=consumes(held), count=st.integers(1, 3), timed=st.booleans())
    def wait(self, run: Any, count: int, timed: bool) -> None:
        names = [self.fresh("wait") for _ in range(count)]
        timeout = 10.0 if timed else None
        specs = [holdfast.WaitSpec(wait_id=n, timeout_seconds=timeout) for n in names]
        if self.attempt(run, run.open_waits(specs, suspend=True)) is None:
            return
        model = self.models[run.run_id]
        model.status, model.group = "waiting", names
        model.waits.update(dict.fromkeys(names, "open"))
        if timed:
            model.deadlines.update(dict.fromkeys(names, self.time + 10.0))

    @rule(data=st.data())
    @precondition(lambda self: any(model.waits for model in self.models.values()))
    def answer(self, data: st.DataObject) -> None:
        names = sorted(name for model in self.models.values() for name in model.waits)
        name = data.draw(st.sampled_from(names))
        model = next(model for model in self.models.values() if name in model.waits)
        answer = self.do(self.hf.waits.resolve(name, name))
        assert answer.accepted is (model.waits[name] == "open")
        if answer.accepted:
            model.waits[name] = "resolved"
            self.wake(model)

    def wake(self, model: Model) -> None:
        if model.status == "waiting" and all(model.waits[n] != "open" for n in model.group):
            model.status = "ready"

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.time += seconds
        due = 0
        for model in self.models.values():
            for name, deadline in model.deadlines.items():
                if model.waits[name] == "open" and deadline <= self.time:
                    model.waits[name] = "expired"
                    due += 1
            self.wake(model)
        assert self.do(self.hf.waits.expire_due()) == due

    @rule(data=st.data())
    @precondition(lambda self: self.models)
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[run_id]
        try:
            self.do(self.hf.runs.cancel(run_id))
        except RunEnded:
            assert model.status in ("completed", "cancelled")
            return
        model.status = "cancelled"
        for name, status in model.waits.items():
            if status == "open":
                model.waits[name] = "cancelled"

    @rule(run=consumes(held))
    def complete(self, run: Any) -> None:
        before = self.may_write(run)
        self.attempt(run, run.complete("answer"))
        if before:
            self.models[run.run_id].status = "completed"

    @rule(data=st.data())
    @precondition(lambda self: self.models)
    def load(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.models)))
        versions = self.models[run_id].versions
        version = data.draw(st.integers(0, len(versions) - 1))
        loaded = self.do(self.hf.checkpoints.load(run_id, version))
        assert loaded.parts == versions[version]

    @invariant()
    def statuses_agree(self) -> None:
        for run_id, model in self.models.items():
            assert self.do(self.hf.runs.get(run_id)).status == model.status
            stored = {w.wait_id: w.status.value for w in self.do(self.hf.waits.of_run(run_id))}
            assert stored == model.waits


def test_random_operations_agree_with_a_plain_model(backend: Backend) -> None:
    class Machine(StoreMachine):
        url = "memory://" if backend.name == "sqlite" else backend.url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES[backend.name],
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
