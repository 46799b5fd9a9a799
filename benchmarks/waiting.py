"""Very many waiting runs: whether what goes on among them costs what it does without them."""

from collections.abc import Awaitable, Callable, Sequence

import holdfast
from benchmarks import clones, idle, plans
from benchmarks.contract import Place
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from holdfast import Holdfast

_FEW = 200
_DUE = 10
_FLAT = 2.0

Probe = Callable[[Holdfast, Stopwatch], Awaitable[None]]


def names(sizes: Sequence[int]) -> tuple[str, ...]:
    """The numbers of stores with so many waiting runs."""
    parts = (*_PROBES, "plans", *idle.NAMES)
    return tuple(f"waiting_{runs}_{part}" for runs in sizes for part in parts)


async def waiting(place: Place, sizes: Sizes) -> list[Row]:
    """Numbers of stores with many waiting runs, each beside a store with a few."""
    few = await clones.fill(place, _FEW)
    rows: list[Row] = []
    for runs in sizes.waiting:
        many = await clones.fill(place, runs)
        rows += await _probe_all(runs, many, few, rounds=sizes.waiting_rounds)
        rows.append(plans.of_waiting_runs(f"waiting_{runs}_plans", place, many))
        rows += await idle.compare(f"waiting_{runs}", place, many, few)
    return rows


async def _probe_all(runs: int, many: str, few: str, *, rounds: int) -> list[Row]:
    rows: list[Row] = []
    async with holdfast.open(many) as full, holdfast.open(few) as empty:
        for name, probe in _PROBES.items():
            ours, floor = Stopwatch(), Stopwatch()
            pair = [(full, ours), (empty, floor)]
            for _ in range(rounds):
                pair.reverse()
                for hf, stopwatch in pair:
                    await probe(hf, stopwatch)
            label = f"waiting_{runs}_{name}"
            rows.append(judged(label, ours.median, "ms", floor=floor.median, at_most=_FLAT))
    return rows


async def _sweep(hf: Holdfast, stopwatch: Stopwatch) -> None:
    with stopwatch:
        found = await hf.waits.expire_due() + await hf.leases.expire_lost()
    assert not found, "nothing is due"


async def _sweep_due(hf: Holdfast, stopwatch: Stopwatch) -> None:
    for _ in range(_DUE):
        wait_id = await clones.wait(hf, clones.new_token())
        await hf.waits.extend(wait_id, timeout_seconds=0)
    with stopwatch:
        found = await hf.waits.expire_due()
    assert found == _DUE, f"{found} of {_DUE} waits were due"
    for _ in range(_DUE):
        await _lease_and_end(hf)


async def _wake(hf: Holdfast, stopwatch: Stopwatch) -> None:
    wait_id = await clones.wait(hf, clones.new_token())
    with stopwatch:
        await hf.waits.resolve(wait_id, {"approved": True}, by="peer")
        run = await hf.leases.next()
    assert run is not None, "its wait was answered"
    await run.complete()


async def _lease(hf: Holdfast, stopwatch: Stopwatch) -> None:
    await hf.runs.create(f"run-{clones.new_token()}", agent="support")
    with stopwatch:
        run = await hf.leases.next()
    assert run is not None, "one was just made"
    await run.complete()


async def _lease_and_end(hf: Holdfast) -> None:
    run = await hf.leases.next()
    assert run is not None, "its wait has expired"
    await run.complete()


async def _page(hf: Holdfast, stopwatch: Stopwatch) -> None:
    with stopwatch:
        page = await hf.runs.list(status="waiting", limit=100)
    assert len(page) == 100, "there are more than that"


async def _rare_page(hf: Holdfast, stopwatch: Stopwatch) -> None:
    with stopwatch:
        page = await hf.runs.list(status="blocked", limit=100)
    assert not page, "none is blocked"


async def _workers(hf: Holdfast, stopwatch: Stopwatch) -> None:
    with stopwatch:
        await hf.leases.workers()


_PROBES: dict[str, Probe] = {
    "sweep": _sweep,
    f"sweep_{_DUE}_due": _sweep_due,
    "wakeup": _wake,
    "lease": _lease,
    "page": _page,
    "rare_page": _rare_page,
    "workers": _workers,
}
