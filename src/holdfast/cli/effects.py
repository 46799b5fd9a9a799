"""`holdfast effects`: calls whose outcome is open, and a person's word on what became of them."""

from collections.abc import Iterable

import click

from holdfast.clock import MICROSECONDS, SystemClock
from holdfast.errors import IntegrityError
from holdfast.kernel import effects, indexes
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Entry
from holdfast.sync import Holdfast
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, readable_body, record_of
from holdfast.terminal.text import short

_COLUMNS = {
    "EFFECT": "effect_id",
    "RUN": "run_id",
    "TOOL": "tool",
    "CALL": "call_id",
    "ARGUMENTS": "args",
    "AGE": "age",
    "LIMIT": "limit_at",
    "STATUS": "status",
}
_ARGUMENTS_WIDTH = 60
_RESOLVE = "`holdfast effects resolve ID` with --happened RESULT, --did-not-happen or --retry"


@click.group()
def command() -> None:
    """See calls whose outcome is open, and say what became of them."""


@command.command("list")
@click.option("--run", "run_id", metavar="RUN", help="Only effects of this run.")
@click.option("--unknown", is_flag=True, help="Only those that nobody can tell about by himself.")
@click.option("--issued", is_flag=True, help="Only those that may be running.")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@common
def list_(options: Options, *, run_id: str | None, unknown: bool, issued: bool, limit: int) -> None:
    """List effects whose outcome is open, over all runs.

    One that was issued and whose time limit is over counts as unknown: its worker is gone.
    """
    with options.open_existing() as hf:
        found = _of_run(hf, run_id) if run_id is not None else _of_all(hf, limit)
        wanted = [e for e in found if _is_doubtful(e) in _doubtful_or_not(unknown, issued)]
        records = [record_with_args(hf, effect) for effect in wanted[:limit]]
    options.output.many(records, ids="effect_id", draw=_draw_table)
    if len(wanted) >= limit and options.output.is_for_people:
        say(f"these are {limit}; there may be more: --limit")
    if any(map(_is_doubtful, wanted)) and options.output.is_for_people:
        say(f"find out what happened, then {_RESOLVE}")


@command.command()
@click.argument("effect", metavar="ID")
@common
def show(options: Options, *, effect: str) -> None:
    """Show an effect: its call, its status, and what is on record of its outcome."""
    with options.open_existing() as hf:
        found = hf.effects.get(effect)
        run = hf.runs.get(found.run_id)
        record = (
            record_with_args(hf, found) | _outcome(hf, found) | {"run_status": run.status.value}
        )
    options.output.one(record, ids="effect_id", draw=output.fields)
    if _is_doubtful(found) and options.output.is_for_people:
        say(f"find out what happened, then {_RESOLVE}")


@command.command()
@click.argument("effect", metavar="ID")
@click.option("--happened", metavar="RESULT", help="It happened; its result, as JSON or text.")
@click.option("--did-not-happen", is_flag=True, help="It did not; its agent sees that.")
@click.option("--retry", is_flag=True, help="It did not; the call is made again.")
@click.option("--by", metavar="NAME", help="Who says so [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@click.option("--force", is_flag=True, help="Even if its tool may be running just now.")
@common
def resolve(
    options: Options,
    *,
    effect: str,
    happened: str | None,
    did_not_happen: bool,
    retry: bool,
    by: str | None,
    note: str,
    force: bool,
) -> None:
    """Say what became of an effect: a run that is blocked because of it goes on at once.

    Find out first: what is said here is believed, and stays.
    """
    if [happened is not None, did_not_happen, retry].count(True) != 1:
        raise click.UsageError("give exactly one of --happened RESULT, --did-not-happen, --retry")
    outcome = "retry" if retry else "did_not_happen" if did_not_happen else "happened"
    result = None if happened is None else inputs.value_of(happened)
    who = by or inputs.user_name()
    with options.open_existing() as hf:
        settled = hf.effects.resolve(effect, outcome, result=result, by=who, note=note, force=force)
        run = hf.runs.get(settled.run_id)
    record = record_of(settled) | {"retry": retry, "run_status": run.status.value}
    options.output.one(record, ids="effect_id", draw=_draw_resolved)


def _of_run(hf: Holdfast, run_id: str) -> list[Effect]:
    hf.runs.get(run_id)
    return [e for e in hf.effects.of_run(run_id) if e.status not in effects.SETTLED]


def _of_all(hf: Holdfast, limit: int) -> list[Effect]:
    return [
        effect
        for status in (EffectStatus.UNKNOWN, EffectStatus.ISSUED)
        for effect in hf.effects.unsettled(status=status, limit=limit)
    ]


def _doubtful_or_not(unknown: bool, issued: bool) -> set[bool]:
    """Which are wanted; both unless one is named."""
    return {True, False} if unknown == issued else {unknown}


def _is_doubtful(effect: Effect) -> bool:
    return effects.is_in_doubt(effect, now=SystemClock().now())


def record_with_args(hf: Holdfast, effect: Effect) -> Record:
    """An effect with the arguments of its call; None if their entry is damaged."""
    issued = _entry(hf, effect.run_id, effect.issued_seq)
    age = (SystemClock().now() - effect.issued_at) / MICROSECONDS
    return record_of(effect) | {
        "args": None if issued is None else readable_body(issued),
        "age_seconds": round(max(0.0, age), 3),
        "in_doubt": _is_doubtful(effect),
    }


def _outcome(hf: Holdfast, effect: Effect) -> Record:
    entry = _entry(hf, effect.run_id, effect.result_seq) if effect.result_seq else None
    if entry is None:
        return {"settled_by": "", "note": "", "retry": False, "result": None}
    facts = indexes.facts_of(entry)
    return {
        "settled_by": entry.actor,
        "note": facts.note,
        "retry": facts.retry,
        "result": readable_body(entry),
    }


def _entry(hf: Holdfast, run_id: str, seq: int) -> Entry | None:
    """One entry that was checked; None if it is damaged."""
    try:
        (entry,) = hf.journal.read(run_id, after=seq - 1, limit=1)
    except (IntegrityError, ValueError):
        return None
    return entry


def _draw_table(records: Iterable[Record]) -> None:
    rows = [
        record
        | {
            "args": short(record["args"], limit=_ARGUMENTS_WIDTH),
            "age": _age(record["age_seconds"]),
            "status": record["status"]
            + (", limit is over" if record["in_doubt"] and record["status"] == "issued" else ""),
        }
        for record in records
    ]
    output.table(_COLUMNS, empty="no effects whose outcome is open")(rows)


def _draw_resolved(record: Record) -> None:
    outcome = record["status"] + (", to be made again" if record["retry"] else "")
    write(f"{record['tool']} {record['effect_id']}: {outcome}")
    write(f"run {record['run_id']}: {record['run_status']}")


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
