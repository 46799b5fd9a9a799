"""`holdfast runs`: what runs there are, everything about one, and what can be done about it."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple, cast

import click

from holdfast import codec, names
from holdfast.agents.definitions.questions import FOR_PEOPLE
from holdfast.cli import workers
from holdfast.cli.runs import blocked, budgets, called, handoffs, run_status, travel
from holdfast.engine.budgets.costs import Budget
from holdfast.errors import InputDiffers, RunEnded, RunExists
from holdfast.kernel import effects, runs
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry, Kind
from holdfast.kernel.peers import PEER
from holdfast.kernel.runs import BlockedReason, RunRow, RunStatus
from holdfast.kernel.signals import WAIT_KIND as SIGNAL
from holdfast.kernel.waits import WaitStatus
from holdfast.sync import Holdfast
from holdfast.terminal import inputs, output
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import TerminalOutput, say, write
from holdfast.terminal.records import Record, entry_record, record_of, wait_record
from holdfast.terminal.text import count, printable, short, to_json

_RUN_COLUMNS = {
    "RUN": "run_id",
    "STATUS": "status",
    "AGENT": "agent",
    "CREATED": "created_at",
    "WORKER": "worker",
}
_WAIT_COLUMNS = {
    "OPEN WAIT": "wait_id",
    "KIND": "kind",
    "NAME": "name",
    "OPENED": "opened_at",
    "DEADLINE": "deadline",
}
_EFFECT_COLUMNS = {
    "UNSETTLED EFFECT": "effect_id",
    "STATUS": "status",
    "TOOL": "tool",
    "ISSUED": "issued_at",
    "LIMIT": "limit_at",
}
_HIDDEN_FACTS: Final = frozenset({"input_digest", "args_digest", "key", "lease_seq", "limit_at"})
_OUTCOMES: Final = {
    RunStatus.COMPLETED: Exit.OK,
    RunStatus.FAILED: Exit.FAILED,
    RunStatus.CANCELLED: Exit.CONFLICT,
    RunStatus.BLOCKED: Exit.NEEDS_PERSON,
}


@click.group()
def command() -> None:
    """Start, list, watch, hand over, recover, cancel, unblock, fork and rewind runs."""


travel.join(command)
handoffs.join(command)


command.add_command(budgets.budget)
command.add_command(budgets.costs)


@command.command("list")
@click.option(
    "--status", type=click.Choice([s.value for s in RunStatus]), help="Only runs in this state."
)
@click.option("--agent", help="Only runs of this agent.")
@click.option("--parent", metavar="RUN", help="Only runs that this run began, as those of peers.")
@click.option("--owner", metavar="NAME", help="Only runs that this principal started.")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@common
def list_(
    options: Options,
    *,
    status: str | None,
    agent: str | None,
    parent: str | None,
    owner: str | None,
    limit: int,
) -> None:
    """List runs, newest first."""
    with options.open_existing() as hf:
        found = hf.runs.list(status=status, agent=agent, parent_id=parent, owner=owner, limit=limit)
        workers.warn_unserved(hf, found)
    options.output.many(map(record_of, found), ids="run_id", draw=_draw_runs)
    if len(found) == limit and options.output.is_for_people:
        say(f"these are the newest {limit}; there may be more: --limit")


def _draw_runs(records: Iterable[Record]) -> None:
    rows = [
        record | {"status": f"{record['status']} ({record['blocked_reason']})"}
        if record["blocked_reason"]
        else record
        for record in records
    ]
    output.table(_RUN_COLUMNS, empty="no runs")(rows)


@command.command()
@click.argument("agent")
@click.argument("words", nargs=-1, metavar="[INPUT | KEY=VALUE...]")
@click.option("--id", "run_id", metavar="RUN", help="The run's id [default: a new one].")
@click.option("--input-file", metavar="FILE", help="Read the input from a file; - is stdin.")
@click.option("--budget", type=budgets.Amount(), multiple=True, help="A limit, as in 5usd.")
@click.option("--parent", metavar="RUN", help="The run whose budgets it draws on as well.")
@click.option("--follow", is_flag=True, help="Watch the run to its end; exit with its outcome.")
@common
def start(
    options: Options,
    *,
    agent: str,
    words: tuple[str, ...],
    run_id: str | None,
    input_file: str | None,
    budget: Sequence[tuple[str, Decimal]],
    parent: str | None,
    follow: bool,
) -> Exit:
    """Record a run of an agent for the workers.

    INPUT is JSON, or a text; KEY=VALUE words name the agent's parameters. With --id, doing it again
    with the same input changes nothing.
    """
    given = inputs.input_of(words, input_file)
    drawn = _Drawn(parent or "", budgets.budget_of(budget))
    with options.open_existing() as hf:
        run, is_new = _create(hf, run_id, agent, given, drawn)
        workers.warn_if_unserved(hf, agent)
        if follow:
            what = "is recorded" if is_new else f"exists already; it is {run.status}"
            say(f"run {run.run_id} {what}")
            return _follow(hf, run.run_id, options.output, until_blocked=True)
    record = record_of(run) | {"is_new": is_new}
    options.output.one(record, ids="run_id", draw=_draw_started)
    return Exit.OK


class _Drawn(NamedTuple):
    """What a new run may cost, and on whose budgets it draws."""

    parent_id: str
    budget: Budget | None


def _create(
    hf: Holdfast, run_id: str | None, agent: str, given: object, drawn: _Drawn
) -> tuple[RunRow, bool]:
    """The run, and whether it was not there before."""
    names.check(agent, what="agent")
    try:
        made = hf.runs.create(
            run_id, agent=agent, input=given, parent_id=drawn.parent_id, budget=drawn.budget
        )
        return made, True
    except RunExists:
        if run_id is None:
            raise
    found = hf.runs.get(run_id)
    is_same_input = found.input_digest == codec.canonical_digest(given, name="input")
    if found.agent != agent or not is_same_input:
        what = "input" if found.agent == agent else f"agent, {found.agent!r}"
        raise InputDiffers(
            f"run {run_id!r} was started with another {what}; choose another --id, or see "
            f"`holdfast runs show {run_id}`"
        )
    return found, False


@command.command()
@click.argument("run")
@click.option("--follow", is_flag=True, help="Show its entries as they come, until it has ended.")
@click.option("-v", "--verbose", is_flag=True, help="Show what only Holdfast itself needs too.")
@common
def show(options: Options, *, run: str, follow: bool, verbose: bool) -> Exit:
    """Show a run: its status and why, what to do, its input, result, peers, waits and effects."""
    with options.open_existing() as hf:
        if follow:
            return _follow(hf, run, options.output, until_blocked=False)
        record = _everything(hf, run)
        called = hf.runs.list(status="ready", parent_id=run)
        workers.warn_unserved(hf, [hf.runs.get(run), *called])
    options.output.one(record, ids="run_id", draw=partial(_draw, is_verbose=verbose))
    return Exit.OK


@command.command()
@click.argument("run")
@click.option("--by", metavar="NAME", help="Who does so [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@common
def cancel(options: Options, *, run: str, by: str | None, note: str) -> None:
    """End a run now: whoever works on it stops at its next commit."""
    with options.open_existing() as hf:
        try:
            hf.runs.cancel(run, by=by or inputs.user_name(), note=note)
        except RunEnded:
            status = hf.runs.get(run).status
            raise RunEnded(f"run {run} is {status} already; there is nothing to cancel") from None
        found, left = hf.runs.get(run), _unsettled(hf, run)
    options.output.one(record_of(found), ids="run_id", draw=_draw_status)
    if left:
        say(
            f"{count(len(left), 'effect')} of it may have happened all the same: "
            f"`holdfast effects list --run {run}`"
        )


@command.command()
@click.argument("run")
@click.option("--by", metavar="NAME", help="Who does so [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@common
def unblock(options: Options, *, run: str, by: str | None, note: str) -> None:
    """Give a blocked run back to the workers."""
    with options.open_existing() as hf:
        reason = hf.runs.get(run).blocked_reason
        hf.runs.unblock(run, by=by or inputs.user_name(), note=note)
        found, left = hf.runs.get(run), _unsettled(hf, run)
    options.output.one(record_of(found), ids="run_id", draw=_draw_status)
    if reason == BlockedReason.UNKNOWN_EFFECT and left:
        say(
            "it will be blocked again unless its effects are resolved: "
            f"`holdfast effects list --run {run}`"
        )


@command.command("signal")
@click.argument("run")
@click.argument("name")
@click.argument("value", required=False)
@click.option(
    "--id", "signal_id", metavar="ID", help="Counts once in its run [default: a new one]."
)
@click.option("--by", metavar="NAME", help="Who sends it [default: your user name].")
@common
def signal(
    options: Options,
    *,
    run: str,
    name: str,
    value: str | None,
    signal_id: str | None,
    by: str | None,
) -> None:
    """Send a run a named value (JSON, or a text); it is kept until the run takes it.

    With --id, sending it again changes nothing.
    """
    given = None if value is None else inputs.value_of(value)
    with options.open_existing() as hf:
        receipt = hf.signal(run, name, given, id=signal_id, by=by or inputs.user_name())
        status = hf.runs.get(run).status
    record = record_of(receipt) | {"run_status": status.value}
    options.output.one(record, ids="signal_id", draw=_draw_signalled)


def _draw_signalled(record: Record) -> None:
    what = (
        "is sent"
        if record["accepted"]
        else f"was sent before, by {printable(record['received_by'])} at {record['received_at']}"
    )
    write(f"signal {printable(record['signal_id'])} {what}")
    write(f"run {printable(record['run_id'])}: {record['run_status']}")


def _everything(hf: Holdfast, run_id: str) -> Record:
    run = hf.runs.get(run_id)
    newest = hf.checkpoints.history(run_id, limit=1)
    has_ended = run.status in runs.ENDED
    waits = hf.waits.of_run(run_id)
    why = run_status.reason_of(hf, run, newest[0].seq if newest else 0)
    return record_of(run) | {
        "note": why.note,
        "since": why.since,
        "version": newest[0].version if newest else 0,
        "input": hf.runs.input(run_id),
        "result": hf.runs.result(run_id) if has_ended else None,
        "peers": called.records(hf, run_id, waits),
        "open_waits": [wait_record(wait) for wait in waits if wait.status is WaitStatus.OPEN],
        "unsettled_effects": [record_of(effect) for effect in _unsettled(hf, run_id)],
    }


def _unsettled(hf: Holdfast, run_id: str) -> list[Effect]:
    return [e for e in hf.effects.of_run(run_id) if e.status not in effects.SETTLED]


def _follow(hf: Holdfast, run_id: str, out: TerminalOutput, *, until_blocked: bool) -> Exit:
    """Write entries as they come, then the run; with JSON an object on each line."""
    entries = _until_blocked(hf, run_id) if until_blocked else hf.journal.tail(run_id)
    for entry in entries:
        record = entry_record(entry, is_intact=True, with_body=False)
        if out.is_json:
            write(to_json(record))
        elif out.is_for_people:
            write(_entry_line(record))
            if entry.kind == Kind.RUN_WAITING:
                _say_who_is_asked(hf, run_id)
    last = _everything(hf, run_id)
    if out.is_for_people:
        write("")
    TerminalOutput("jsonl" if out.is_json else out.format).one(last, ids="run_id", draw=_draw)
    return _OUTCOMES.get(RunStatus(last["status"]), Exit.OK)


def _say_who_is_asked(hf: Holdfast, run_id: str) -> None:
    """Tell what a run waits for, if it is something that people can give."""
    for asked in hf.approvals.list(run_id=run_id):
        say(f"{asked.prompt} `holdfast approvals show {asked.wait_id}` tells how to answer")
    for wait in hf.waits.of_run(run_id):
        if (wait.kind, wait.status) == (SIGNAL, WaitStatus.OPEN):
            say(f"it waits for `holdfast runs signal {run_id} {wait.name} VALUE`")


def _until_blocked(hf: Holdfast, run_id: str) -> Iterator[Entry]:
    """Entries until the run has ended, or stands until an operator acts."""
    for entry in hf.journal.tail(run_id):
        yield entry
        if entry.kind == Kind.RUN_BLOCKED and not run_status.was_continued(hf, run_id, entry.seq):
            return


def _entry_line(record: Record) -> str:
    stored: Record = record["facts"] or {}
    facts = {name: value for name, value in stored.items() if value and name not in _HIDDEN_FACTS}
    parts = [f"{record['seq']:>6}", record["at"] or "", f"{printable(record['kind']):<20}"]
    return "  ".join([*parts, short(facts) if facts else ""]).rstrip()


def _draw(record: Record, *, is_verbose: bool = False) -> None:
    write(run_status.heading(record))
    _say_what_to_do(record)
    write("")
    tables = {
        "peers": (called.COLUMNS, record["peers"]),
        "open_waits": (_WAIT_COLUMNS, [w for w in record["open_waits"] if w["kind"] != PEER]),
        "unsettled_effects": (_EFFECT_COLUMNS, record["unsettled_effects"]),
    }
    trace = _format_traceback(record)
    hidden = {*tables, *(["result"] if trace else [])}
    shown = {name: value for name, value in record.items() if name not in hidden}
    output.fields(shown if is_verbose else run_status.shown_to_people(shown))
    for columns, rows in tables.values():
        if rows:
            write("")
            output.table(columns, empty="")(rows)
    for line in trace:
        write(printable(line))


def _say_what_to_do(record: Record) -> None:
    """Say which commands let a run continue."""
    if record["status"] == RunStatus.BLOCKED:
        ids = [effect["effect_id"] for effect in record["unsettled_effects"]]
        say(blocked.advice(record["run_id"], record["blocked_reason"], ids))
    for wait in record["open_waits"]:
        if wait["kind"] in FOR_PEOPLE:
            say(f"`holdfast approvals show {wait['wait_id']}` tells what it asks")


def _format_traceback(record: Record) -> list[str]:
    """The lines of what a failed run's agent raised, with a blank one in front."""
    details: Any = record["result"] if record["status"] == RunStatus.FAILED else None
    if not isinstance(details, dict) or "traceback" not in details:
        return []
    return ["", *str(cast("dict[str, Any]", details)["traceback"]).splitlines()]


def _draw_started(record: Record) -> None:
    what = (
        "is recorded for the workers" if record["is_new"] else f"exists; it is {record['status']}"
    )
    write(f"run {printable(record['run_id'])} {what}")


def _draw_status(record: Record) -> None:
    write(f"run {printable(record['run_id'])}: {record['status']}")
