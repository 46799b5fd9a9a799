"""Workers that come back from the dead: stopped past their lease, then let go on."""

import signal

import holdfast
from holdfast.testing import Operation, contradictions
from holdfast.testing.store_suite import async_test
from tests.processes import Child

SHORT_LEASE = 0.3


@async_test
async def test_holder_stopped_past_its_lease_cannot_write_when_it_wakes(store: str) -> None:
    with Child("tests.child", store, SHORT_LEASE) as zombie:
        term = zombie.ask(["open", "a"])
        assert zombie.ask(["append", "a", "before"]) == 1
        zombie.signal(signal.SIGSTOP)
        async with holdfast.open(store, settings=holdfast.Settings(lease_seconds=30)) as hf:
            held = await hf.leases.next(timeout_seconds=20)
            assert held is not None
            held.append("log", "by the successor")
            await held.checkpoint()
            zombie.signal(signal.SIGCONT)
            answer = zombie.ask(["append", "a", "from the grave"])
            assert answer["error"] == "Fenced"
            assert (await hf.checkpoints.load("a"))["log"] == ["before", "by the successor"]
            run = await hf.runs.get("a")
            assert (run.worker, run.attempts) == (hf.worker, 1)
            assert held.run.lease_seq > term
            assert await hf.journal.verify("a") == []


@async_test
async def test_zombie_stopped_before_its_transaction_stops_nobody(store: str) -> None:
    with Child("tests.child", store) as zombie:
        zombie.ask(["open", "a"])
        zombie.ask(["arm", "batch.before_begin", "hang"])
        zombie.tell(["append", "a", "from the grave"])
        async with holdfast.open(store) as hf:
            held = await hf.runs.open("a", takeover=True)
            held.append("log", "by the successor")
            await held.checkpoint()
            assert (await hf.checkpoints.load("a"))["log"] == ["by the successor"]


@async_test
async def test_history_of_takeovers_has_no_write_under_an_old_term(store: str) -> None:
    history: list[Operation] = []
    with Child("tests.child", store) as one, Child("tests.child", store) as two:
        children = {"one": one, "two": two}
        terms: dict[str, int] = {}
        for turn in range(20):
            actor = "one" if turn % 2 else "two"
            terms[actor] = children[actor].ask(["open", "a", True])
            told = children[actor].ask(["clock"])
            history.append(
                Operation(
                    actor=actor, kind="lease", thing="a", ok=True, value=terms[actor], told=told
                )
            )
            for name, child in children.items():
                if name in terms:
                    asked = child.ask(["clock"])
                    ok = isinstance(child.ask(["append", "a", f"{name}-{turn}"]), int)
                    history.append(
                        Operation(
                            actor=name,
                            kind="write",
                            thing="a",
                            ok=ok,
                            value=terms[name],
                            asked=asked,
                        )
                    )
    assert contradictions(history) == []
    assert sum(operation.ok for operation in history if operation.kind == "write") == 20
