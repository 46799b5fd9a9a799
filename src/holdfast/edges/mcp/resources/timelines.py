"""The record of a run as text: a line for each entry, also of those that are damaged or erased.

An entry is shown only if its digest fits the chain; for any other, the line says that it does not.
"""

from typing import Final

import msgspec

from holdfast import ids
from holdfast.app import Holdfast
from holdfast.edges.mcp.resources import addresses
from holdfast.edges.mcp.resources.lines import (
    awaited,
    facts_in,
    in_a_line,
    line_of,
    moment,
    names_in,
)
from holdfast.engine.reading.erasures import is_among
from holdfast.errors import NotFoundError
from holdfast.kernel import effects, journal, waits
from holdfast.kernel.journal import GENESIS, Entry
from holdfast.kernel.runs import RunRow

PAGE: Final = 200
_SETTLED: Final = frozenset({*effects.STATUS_OF, *waits.STATUS_OF})
_DAMAGED: Final = "DAMAGED: it does not fit the chain, so what it says is not shown"
_MISSING: Final = "DAMAGED: what it held is missing, and no erasure is on the record"


class TimelineLine(msgspec.Struct, frozen=True):
    """An entry that is there: whole, or with what is wrong with it in its text."""

    seq: int
    text: str
    entry: Entry | None = None
    is_erased: bool = False


async def read(hf: Holdfast, run_id: str, *, after: int, limit: int = PAGE) -> list[TimelineLine]:
    """The entries after a seq, in order, each in a line."""
    # The one before is read as well: its link is what the first must fit.
    page = await hf.journal.read(
        run_id, after=max(after - 1, 0), limit=limit + (after > 0), checked=False
    )
    link = GENESIS if after == 0 else b""
    if after and page and page[0].seq == after:
        link = page.pop(0).link
    is_any_missing = any(each.body is None for each in page)
    erased = await hf.journal.erased(run_id) if is_any_missing else []
    problems: dict[int, str] = {}
    for entry in page:
        if not journal.is_intact(entry, link):
            problems[entry.seq] = _DAMAGED
        elif entry.body is None and not is_among(entry.seq, erased):
            problems[entry.seq] = _MISSING
        link = entry.link
    whole = [entry for entry in page if entry.seq not in problems]
    names = await _names(hf, whole)
    return [
        TimelineLine(entry.seq, problems[entry.seq])
        if entry.seq in problems
        else TimelineLine(entry.seq, line_of(entry, names), entry, entry.body is None)
        for entry in page
    ]


async def _names(hf: Holdfast, entries: list[Entry]) -> dict[str, str]:
    """Return the names of the calls and waits that end here, wherever they began."""
    found = names_in(entries)
    ending = [facts_in(each) for each in entries if each.kind in _SETTLED]
    for facts in ending:
        try:
            if isinstance(facts, effects.EffectSettled):
                if (key := str(facts.effect_id)) not in found:
                    found[key] = (await hf.effects.get(facts.effect_id)).tool
            elif isinstance(facts, waits.WaitSettled) and facts.wait_id not in found:
                wait = await hf.waits.get(facts.wait_id)
                found[facts.wait_id] = awaited(wait.kind, wait.name)
        except NotFoundError:
            continue
    return found


async def page_of(hf: Holdfast, run: RunRow, after: int | None) -> str:
    """A page of a run's record as Markdown: the newest, or the one after a seq."""
    run_id = run.run_id
    head = await hf.journal.head(run_id)
    begin = max(0, head - PAGE) if after is None else after
    lines = await read(hf, run_id, after=begin)
    rows = [f"# Timeline of run {in_a_line(run_id)}", "", _summary(run, head), ""]
    if begin > 0 and after is None:
        rows += [f"Earlier entries: {addresses.timeline(run_id, after=max(0, begin - PAGE))}", ""]
    rows += [_shown(line) for line in lines] or ["There is no entry after that."]
    if lines and lines[-1].seq < head:
        rows += ["", f"More: {addresses.timeline(run_id, after=lines[-1].seq)}"]
    return "\n".join(rows) + "\n"


def _summary(run: RunRow, head: int) -> str:
    what = in_a_line(" ".join(filter(None, (run.agent, run.subject))) or "no agent")
    why = f" ({run.blocked_reason})" if run.blocked_reason else ""
    return f"{what} · {run.status}{why} · {head} entries"


def _shown(line: TimelineLine) -> str:
    entry = line.entry
    if entry is None:
        return f"- {line.seq} · {line.text}"
    actor = entry.actor if ids.is_worker_id(entry.actor) else f"by {in_a_line(entry.actor, 100)}"
    erased = " (its content is erased)" if line.is_erased else ""
    return f"- {line.seq} · {moment(entry.at)} · {entry.kind} · {actor} · {line.text}{erased}"
