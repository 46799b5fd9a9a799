"""Copies of threads: every checkpoint and its writes under the same ids, in another thread."""

from collections.abc import Sequence

from holdfast.engine.marked.marked_run import MarkedRun, VersionChange
from holdfast.engine.reading.log_views import LogView
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.host import Host
from holdfast.kernel import marks
from holdfast.kernel.marks import Mark, Marked, Written

_PAGE = 100


async def copy_thread(host: Host, source: str, target: str) -> None:
    """Copy what a thread has now. Checkpoints that the target has already are left out.

    A copy that was interrupted resumes where it stopped when it is requested again.
    """
    source_id, target_id = host.run_of(source), host.run_of(target)
    every = await host.marks.of_run(source_id)
    if not every:
        return
    known = {(marked.space, marked.name) for marked in await host.marks.of_run(target_id)}
    await host.marks.open_copy(target_id, source_id)
    missing = [marked for marked in every if (marked.space, marked.name) not in known]
    for start in range(0, len(missing), _PAGE):
        await _copy_some(host, source_id, target_id, missing[start : start + _PAGE])


async def _copy_some(host: Host, source_id: str, target_id: str, found: Sequence[Marked]) -> None:
    views = await host.marks.views(source_id, {m.version for m in found}, host.known(source_id))
    rows = await host.marks.writes(source_id, [(m.space, m.name) for m in found])
    read = await host.marks.read_writes(source_id, rows)
    writes: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        writes.setdefault((row.space, row.name), []).append(row.seq)
    for marked in found:
        # Its writes come first: a copy that is cut off has no checkpoint without its writes.
        for seq in writes.get((marked.space, marked.name), ()):
            written, tokens = read[seq]
            await host.advance(target_id, _recording(written, tokens))
        await host.advance(target_id, _saving(marked, views[marked.version]))


def _recording(written: Written, tokens: layout.Items):
    async def record(run: MarkedRun) -> None:
        await run.write(written, tokens)

    return record


def _saving(marked: Marked, view: LogView):
    mark = Mark(marked.space, marks.pack(marked.name), marks.pack(marked.parent), marked.tags)
    logs, values = layout.own_parts(view, marked.space)

    def change(known: LogView) -> VersionChange:
        return VersionChange(logs, values, layout.replaced(known, marked.space, {*logs, *values}))

    async def save(run: MarkedRun) -> None:
        await run.save(mark, change)

    return save
