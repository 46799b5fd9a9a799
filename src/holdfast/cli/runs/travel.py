"""`holdfast runs fork` and `rewind`: going back to a version, and what that does not undo."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from holdfast.cli import effects
from holdfast.engine.maintenance.travel import TravelPlan
from holdfast.kernel.peers import PEER
from holdfast.sync import Holdfast
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Options, Ordinal, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, record_of, wait_record
from holdfast.terminal.text import count, printable, short

_EFFECT_COLUMNS = {
    "EFFECT": "effect_id",
    "TOOL": "tool",
    "ARGUMENTS": "args",
    "STATUS": "status",
    "ISSUED": "issued_at",
    "THEN": "then",
}
_CALL_COLUMNS = {"CALLED RUN": "run_id", "AGENT": "agent", "BY": "caller", "THEN": "then"}
_UNCLAIMED_COLUMNS = {"NOT ASKED FOR AGAIN": "item_id", "KIND": "kind", "NAME": "name"}
_WAIT_COLUMNS = {
    "OPEN WAIT": "wait_id",
    "KIND": "kind",
    "NAME": "name",
    "OPENED": "opened_at",
    "DEADLINE": "deadline",
}
_THEN: Final = {
    "given_back": "given back, not sent again",
    "to_be_resolved": "to be resolved: it may have happened",
    "not_there": "did not happen: sent if it is called",
    "sent_again": "SENT AGAIN",
}
_CALL_THEN: Final = {
    "replayed": "its reply is given back",
    "taken_over": "under way: taken over, or stopped if the next turn does not ask for it",
    "made_again": "made again with all that it did, which is not sent again",
    "sent_again": "MADE ANEW, and all below it",
}
_ARGUMENTS_WIDTH: Final = 60


def join(group: click.Group) -> None:
    """Make these commands of `holdfast runs`."""
    group.add_command(fork)
    group.add_command(rewind)


def _travelling(run: Callable[..., Any]) -> Callable[..., Any]:
    """The options that both commands have."""
    for option in (
        click.option("--note", default="", metavar="TEXT", help="Why, for the record."),
        click.option("--by", metavar="NAME", help="Who does so [default: your user name]."),
        click.option("--plan", is_flag=True, help="Write nothing; show what is not undone."),
        click.option(
            "--resend",
            multiple=True,
            metavar="ID",
            help="Send this effect, or make this call, again; may be given several times.",
        ),
        click.option(
            "--set",
            "edits",
            multiple=True,
            metavar="PART=VALUE",
            help="Begin with this in place of a part of the state; @FILE reads it from a file.",
        ),
        click.argument("run"),
    ):
        run = option(run)
    return run


@click.command()
@_travelling
@click.option("--at", type=Ordinal, metavar="VERSION", help="Its version [default: the newest].")
@click.option("--id", "new_run_id", metavar="RUN", help="The fork's id [default: a new one].")
@common
def fork(
    options: Options,
    *,
    run: str,
    at: int | None,
    new_run_id: str | None,
    edits: tuple[str, ...],
    resend: tuple[str, ...],
    plan: bool,
    by: str | None,
    note: str,
) -> None:
    """Make a new run that begins with RUN's state at a version; RUN stays as it is.

    What RUN did outside after that version is given back to the fork when it calls it, and not
    sent again, unless --resend names it.
    """
    changed = inputs.parts_of(edits)
    with options.open_existing() as hf:
        found = hf.runs.plan(run, _version(hf, run, at))
        if plan:
            _tell_plan(hf, options, found, resend, is_rewind=False)
            return
        made = hf.runs.fork(
            run,
            found.version,
            new_run_id=new_run_id,
            by=by or inputs.user_name(),
            note=note,
            edits=changed,
            resend=resend,
        )
        _say_new_parts(hf, found, changed)
    record = record_of(made) | _outside(found, resend)
    options.output.one(record, ids="run_id", draw=_draw_fork)
    _warn(found, resend)


def _say_new_parts(hf: Holdfast, plan: TravelPlan, changed: Mapping[str, object]) -> None:
    """A part that was not there may be meant, or be a slip."""
    known = hf.checkpoints.load(plan.run_id, plan.version).parts
    for name in changed:
        if name not in known:
            others = ", ".join(part for part in known if not part.startswith("holdfast."))
            say(f"version {plan.version} has no part {name}, it is new; there are: {others}")


@click.command()
@_travelling
@click.option("--to", type=Ordinal, metavar="VERSION", help="Its version [default: the newest].")
@click.option("--takeover", is_flag=True, help="Even if a worker holds it: that one must stop.")
@common
def rewind(
    options: Options,
    *,
    run: str,
    to: int | None,
    edits: tuple[str, ...],
    resend: tuple[str, ...],
    plan: bool,
    by: str | None,
    note: str,
    takeover: bool,
) -> None:
    """Let RUN go on from an earlier version, or begin its present turn anew.

    It is ready for a worker then, and its open waits are closed, but for calls of other agents: the
    next turn takes them over, or stops them. What it did outside after that version is given back
    when it calls it, and not sent again, unless --resend names it.
    """
    changed = inputs.parts_of(edits)
    with options.open_existing() as hf:
        found = hf.runs.plan(run, _version(hf, run, to))
        if plan:
            _tell_plan(hf, options, found, resend, is_rewind=True)
            return
        made = hf.runs.rewind(
            run,
            found.version,
            by=by or inputs.user_name(),
            note=note,
            edits=changed,
            resend=resend,
            takeover=takeover,
        )
        newest = hf.checkpoints.history(run, limit=1)[0].version
        _say_new_parts(hf, found, changed)
    record = record_of(made) | {"rewound_to": found.version, "version": newest}
    options.output.one(record | _outside(found, resend), ids="run_id", draw=_draw_rewind)
    closed = [wait for wait in found.open_waits if wait.kind != PEER]
    if closed:
        say(f"{count(len(closed), 'open wait')} of it was closed")
    _warn(found, resend)


def _version(hf: Holdfast, run_id: str, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    newest = hf.checkpoints.history(run_id, limit=1)
    return newest[0].version if newest else 0


def _tell_plan(
    hf: Holdfast, options: Options, plan: TravelPlan, resend: Sequence[str], *, is_rewind: bool
) -> None:
    known = {str(planned.effect.effect_id) for planned in plan.effects}
    known |= {call.run_id for call in plan.calls}
    for wanted in resend:
        if wanted not in known:
            raise click.UsageError(
                f"--resend {wanted} is not among the effects and calls after that version"
            )
    record: Record = {
        "run_id": plan.run_id,
        "version": plan.version,
        "newest_version": plan.newest_version,
        "effects": [
            effects.record_with_args(hf, planned.effect)
            | {"then": "sent_again" if str(planned.effect.effect_id) in resend else planned.then}
            for planned in plan.effects
        ],
        "calls": [
            record_of(call) | {"then": "sent_again" if call.run_id in resend else call.then}
            for call in plan.calls
        ],
        "unclaimed": [record_of(item) for item in plan.unclaimed],
        "open_waits": [
            wait_record(wait) for wait in plan.open_waits if is_rewind and wait.kind != PEER
        ],
        **_outside(plan, resend),
    }
    options.output.one(record, ids="outside", draw=_draw_plan)


def _outside(plan: TravelPlan, resend: Sequence[str]) -> Record:
    return {
        "outside": [str(effect.effect_id) for effect in plan.outside],
        "sent_again": list(resend),
    }


def _warn(plan: TravelPlan, resend: Sequence[str]) -> None:
    """Warn that what exists outside stays, in every format."""
    if not plan.outside:
        return
    kept = f"{count(len(plan.outside), 'effect')} after version {plan.version} of {plan.run_id}"
    again = f", but for the {len(resend)} named by --resend" if resend else ""
    say(f"not undone: {kept}, given back when called and not sent again{again}; --plan lists them")
    doubtful = [p.effect for p in plan.effects if p.then == "to_be_resolved"]
    if doubtful:
        ids = ", ".join(f"`holdfast effects resolve {effect.effect_id}`" for effect in doubtful)
        say(f"of {count(len(doubtful), 'effect')} nobody knows yet whether it happened: {ids}")


def _draw_plan(record: Record) -> None:
    of = f"version {record['version']} of {printable(record['run_id'])}"
    write(f"going back to {of} (its newest is {record['newest_version']})")
    if record["effects"]:
        write(f"not undone: {count(len(record['outside']), 'effect')} that may exist outside")
        write("")
        rows = [
            effect
            | {"then": _THEN[effect["then"]], "args": short(effect["args"], limit=_ARGUMENTS_WIDTH)}
            for effect in record["effects"]
        ]
        output.table(_EFFECT_COLUMNS, empty="")(rows)
    else:
        write("nothing was done outside after it")
    if record["calls"]:
        write("")
        called = [call | {"then": _CALL_THEN[call["then"]]} for call in record["calls"]]
        output.table(_CALL_COLUMNS, empty="")(called)
    if record["unclaimed"]:
        write("")
        output.table(_UNCLAIMED_COLUMNS, empty="")(record["unclaimed"])
        write("it did these before it went back the last time, and has not asked for them since")
    if record["open_waits"]:
        write("")
        output.table(_WAIT_COLUMNS, empty="")(record["open_waits"])
        write("a rewind closes these waits")


def _draw_fork(record: Record) -> None:
    of = f"{printable(record['forked_from'])} at version {record['forked_version']}"
    write(f"run {printable(record['run_id'])} is forked from {of}")


def _draw_rewind(record: Record) -> None:
    now = f"version {record['rewound_to']}, as its version {record['version']}"
    write(f"run {printable(record['run_id'])} goes on from {now}: {record['status']}")
