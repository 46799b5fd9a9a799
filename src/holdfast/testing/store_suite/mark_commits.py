"""Commits about marks, as a framework's saver makes them, for the suites."""

from typing import Any, cast

import msgspec

from holdfast import ids
from holdfast.app import Holdfast
from holdfast.kernel import checkpoints, marks
from holdfast.kernel.journal import Draft, Kind, Origin
from holdfast.kernel.marks import Mark
from holdfast.stores.contract import Commit, Late, LateDecision, Store
from holdfast.stores.entry_sealer import seal_all


def store_of(hf: Holdfast) -> Store:
    """The store that a Holdfast keeps to itself."""
    return cast(Any, hf)._context.store


def saved(
    version: int,
    name: str,
    parent: str = "",
    *,
    space: str = "",
    **tags: Any,
) -> Draft:
    """A checkpoint with a mark."""
    mark = Mark(space, marks.pack(name), marks.pack(parent), tags)
    facts = checkpoints.CheckpointCreated(ids.uuid7(), version, version - 1, 0, mark=mark)
    value = msgspec.Raw(msgspec.msgpack.encode(f"state of {name}"))
    return Draft(
        Kind.CHECKPOINT_CREATED,
        facts,
        checkpoints.encode_body(checkpoints.Delta({}, {"state": value}, [])),
    )


def written(name: str, body: bytes = b"\xa5value", *, space: str = "", task: str = "t") -> Draft:
    facts = marks.Written(space, marks.pack(name), task, "", [(0, "channel", "msgpack", 1)])
    return Draft(Kind.WRITES_RECORDED, facts, body)


def pruned(*versions: tuple[int, int]) -> Draft:
    return Draft(Kind.CHECKPOINTS_PRUNED, marks.Pruned(list(versions)))


def erased(*seqs: tuple[int, int]) -> Draft:
    return Draft(Kind.BODIES_ERASED, marks.Erased(list(seqs)))


async def commit_of(hf: Holdfast, run_id: str, *drafts: Draft) -> Commit:
    """A commit that continues the journal where it ends now."""
    store = store_of(hf)
    at = await store.runs.at_head(run_id)
    assert at is not None, f"there is no run {run_id}"
    origin = Origin(store.tenant, run_id, "tester", store.clock.now())
    sealed = seal_all(at.run, at.position, drafts, origin)
    run = None if sealed.run == at.run else sealed.run
    return Commit(
        store.tenant, run_id, at.position, tuple(sealed.entries), run, tuple(sealed.changes)
    )


async def commit(hf: Holdfast, run_id: str, *drafts: Draft) -> Any:
    """The outcome of such a commit."""
    return await store_of(hf).submit(await commit_of(hf, run_id, *drafts))


async def commit_late(hf: Holdfast, run_id: str, *drafts: Draft) -> Any:
    """The same by a writer from outside."""
    store = store_of(hf)
    return await store.submit(
        Late(store.tenant, run_id, "tester", lambda _: LateDecision("decided", drafts))
    )
