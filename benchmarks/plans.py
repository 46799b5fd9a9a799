"""Whether the databases go by their indexes: in a full store, and in one that was just made.

PostgreSQL keeps the plan it makes at first use until it has gathered statistics, which a new store
does not have for its first minute or two.
"""

from collections.abc import Mapping

import holdfast
from benchmarks.contract import Place
from benchmarks.report import Row, judged
from benchmarks.sizes import Sizes

# What is asked again and again, and the index that must lead there; "" is the one of its key.
_OF_WAITING_RUNS = {
    "find_due_waits": "waits_due",
    "find_ready_runs": "runs_ready",
    "find_lost_runs": "runs_running",
    "next_deadline": "waits_due",
    "next_ready_at": "runs_ready",
    "list_runs_by_status": "runs_by_status",
    "list_waits": "waits_by_group",
    "list_waits_of_group": "waits_by_group",
    "cancel_waits_of_group": "waits_by_group",
    "cancel_waits_of_run": "waits_by_group",
    "list_waits_by_id": "waits_pkey",
    "list_groups_of_waits": "wait_groups_pkey",
    "list_snapshots": "runs_pkey",
    "lock_runs": "runs_pkey",
    "note_duplicate": "",
    "get_run_at_head": "",
}
_OTHERS = {
    "get_checkpoint": "",
    "get_effect": "",
    "get_signal": "",
    "list_signals_by_id": "signals_pkey",
    "list_untaken_signals": "signals_untaken",
    "list_waits_for_signal": "waits_for_signals",
    "list_waits_for_signals": "waits_for_signals",
    "take_signal_once": "",
}


async def of_new_store(place: Place, sizes: Sizes) -> list[Row]:
    """The plans of a store that has no rows yet, and no statistics."""
    url = place.new_store()
    async with holdfast.open(url):
        pass
    return [_judge("new_store_plans", place, url, {**_OF_WAITING_RUNS, **_OTHERS})]


def of_waiting_runs(name: str, place: Place, url: str) -> Row:
    """The plans of a store in which many runs wait."""
    return _judge(name, place, url, _OF_WAITING_RUNS)


def _judge(name: str, place: Place, url: str, queries: Mapping[str, str]) -> Row:
    """How many queries go by an index, and not through all that a tenant has."""
    asked = {query: index for query, index in queries.items() if query in place.queries}
    missed = [query for query, index in asked.items() if not _is_good(place, url, query, index)]
    note = f"not so: {', '.join(missed)}" if missed else ""
    good = len(asked) - len(missed)
    return judged(name, good, "queries by index", at_least=len(asked), note=note)


def _is_good(place: Place, url: str, query: str, index: str) -> bool:
    plan = place.plan(url, query)
    return index in plan and not place.whole.search(plan)
