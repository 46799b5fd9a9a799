"""`holdfast runs budget` and `holdfast runs costs`: what a run may cost, and what it has cost."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import click

from holdfast.clock import SystemClock
from holdfast.engine.budgets.costs import Budget, Costs
from holdfast.kernel import budgets
from holdfast.kernel.budgets import LIMITS, MICRO, Account, Amounts
from holdfast.kernel.segments import Effort, Segment
from holdfast.sync import Holdfast
from holdfast.terminal import inputs, output
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import moment, printable

_AMOUNT: Final = re.compile(r"\$?(\d[\d_,]*(?:\.\d+)?|\.\d+) *([a-zA-Z]*)")
_UNITS: Final = {
    "usd": "usd",
    "token": "tokens",
    "tokens": "tokens",
    "turn": "turns",
    "turns": "turns",
}
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_COLUMNS: Final = {
    "LIMIT": "limit",
    "ALLOWED": "allowed",
    "SPENT": "spent",
    "RESERVED": "reserved",
    "LEFT": "left",
    "WARNED": "warned",
}
_COSTS: Final = {
    "PER": "per",
    "OF": "of",
    "USD": "usd",
    "INPUT": "input_tokens",
    "OUTPUT": "output_tokens",
    "TURNS": "turns",
}


_EFFORTS: Final = {
    "PER": "per",
    "OF": "of",
    "USD": "usd",
    "INPUT": "input_tokens",
    "OUTPUT": "output_tokens",
    "TURNS": "turns",
    "MODEL": "model_calls",
    "TOOLS": "tools",
    "EFFECTS": "effects",
    "BUSY": "busy_seconds",
    "RECOVERING": "recovering_seconds",
    "WALL": "wall_seconds",
    "VERSIONS": "versions",
}


class Amount(click.ParamType[tuple[str, Decimal]]):
    """A limit as people write it: 5usd, 20000tokens, 10turns, 2h."""

    name = "amount"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Decimal]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType] - it was converted before
        found = _AMOUNT.fullmatch(str(value).strip())
        unit = found[2].lower() if found else ""
        if found and not unit and str(value).strip().startswith("$"):
            unit = "usd"
        if not found or unit not in {*_UNITS, *_SECONDS}:
            self.fail(
                f"{value!r} is not an amount; write money as 5usd, else 20000tokens, 10turns, or a "
                "time as 90s, 30m, 2h or 1d",
                param,
                ctx,
            )
        number = Decimal(re.sub(r"[_,]", "", found[1]))
        if unit in _SECONDS:
            return "seconds", number * _SECONDS[unit]
        if unit != "usd" and number != number.to_integral_value():
            self.fail(f"{value!r} is not a whole number of {_UNITS[unit]}", param, ctx)
        return _UNITS[unit], number


def budget_of(amounts: Sequence[tuple[str, Decimal]], *, soft: float = 0.8) -> Budget | None:
    """The budget that some amounts make; None if there are none."""
    if not amounts:
        return None
    limits: dict[str, Any] = {}
    for name, number in amounts:
        if name in limits:
            raise click.UsageError(f"{name} is given twice")
        limits[name] = float(number) if name in ("usd", "seconds") else int(number)
    return Budget(**limits, soft=soft)


@click.command()
@click.argument("run")
@click.option("--add", "more", type=Amount(), multiple=True, help="Raise a limit, as in 5usd.")
@click.option("--set", "limits", type=Amount(), multiple=True, help="Set a limit, as in 10usd.")
@click.option(
    "--soft", type=click.FloatRange(0, 1, min_open=True), help="Warn from this part on, with --set."
)
@click.option("--by", metavar="NAME", help="Who does so [default: your user name].")
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@common
def budget(
    options: Options,
    *,
    run: str,
    more: Sequence[tuple[str, Decimal]],
    limits: Sequence[tuple[str, Decimal]],
    soft: float | None,
    by: str | None,
    note: str,
) -> None:
    """Show what a run may cost and has cost, or raise it.

    Amounts are money (5usd), tokens (20000tokens), turns (10turns) or time (90s, 30m, 2h, 1d). A
    run that was blocked because its budget was spent goes on, without paying for the past again.
    """
    if more and limits:
        raise click.UsageError("give --add or --set, not both")
    if soft is not None and not limits:
        raise click.UsageError("--soft needs --set")
    who = by or inputs.user_name()
    with options.open_existing() as hf:
        if (raised := budget_of(more)) is not None:
            _check_raise(hf, run, more)
            hf.budgets.add(run, raised, by=who, note=note)
        if limits:
            known = hf.budgets.get(run)
            part = soft or (0.8 if known is None else known.soft_percent / 100)
            wanted = budget_of(limits, soft=part)
            assert wanted is not None, "there are limits"
            hf.budgets.replace(run, wanted, by=who, note=note)
        accounts = hf.budgets.over(run)
        status = hf.runs.get(run).status.value
    records = [_account(account) for account in accounts]
    record = {"run_id": run, "status": status, "budgets": records}
    options.output.one(record, ids="run_id", draw=_draw_budgets)


def _check_raise(hf: Holdfast, run: str, more: Sequence[tuple[str, Decimal]]) -> None:
    """Raising what is not limited would limit it, and what is blocked elsewhere would stay so."""
    for name, number in more:
        if number <= 0:
            raise click.UsageError(f"--add needs more than 0 {name}")
    known = hf.budgets.over(run)
    own = next((account for account in known if account.run_id == run), None)
    unlimited = [name for name, _ in more if own is not None and _is_unlimited(own, name)]
    if unlimited:
        raise click.UsageError(
            f"run {run} has no limit of {', '.join(unlimited)} to raise; --set gives it one"
        )
    if own is None:
        others = [account.run_id for account in known]
        raise click.UsageError(
            f"run {run} has no budget of its own to raise. "
            + (f"It draws on that of {', '.join(others)}: raise that. " if others else "")
            + "--set gives it one"
        )


def _is_unlimited(account: Account, name: str) -> bool:
    limits = account.limits
    found = {
        "usd": limits.usd_micros,
        "tokens": limits.tokens,
        "turns": limits.turns,
        "seconds": limits.microseconds,
    }
    return found[name] is None


@click.command()
@click.argument("run")
@common
def costs(options: Options, *, run: str) -> None:
    """Show what a run has cost: in all, and for each turn, model or tool and run.

    Then what it took, with calls and time: for each of its contexts (from its beginning or a
    handoff to the next one), each agent and each phase of the work.
    """
    with options.open_existing() as hf:
        record = _costs(run, hf.budgets.costs(run))
    options.output.one(record, ids="run_id", draw=_draw_costs)


def _account(account: Account) -> Record:
    now = SystemClock().now()
    return {
        "run_id": account.run_id,
        "since": moment(account.began_at),
        "soft": account.soft_percent / 100,
        "limits": [_limit(account, name, now) for name in LIMITS],
    }


def _limit(account: Account, name: str, now: int) -> Record:
    allowed, spent, reserved = {
        "usd": (account.usd_limit, account.spent_usd, account.reserved_usd),
        "tokens": (account.tokens_limit, account.spent.tokens, account.reserved.tokens),
        "turns": (account.turns_limit, account.spent_turns, account.reserved_turns),
        "time": (account.time_limit, now - account.began_at, 0),
    }[name]
    left = None if allowed is None else max(0, allowed - spent - reserved)
    return {
        "limit": "seconds" if name == "time" else name,
        "allowed": _shown(name, allowed),
        "spent": _shown(name, spent),
        "reserved": _shown(name, reserved),
        "left": _shown(name, left),
        "warned": bool(account.warned & budgets.bit_of(name)),
    }


def _shown(name: str, amount: int | None) -> str | int | None:
    """Money as an exact decimal in a string; all else as a whole number."""
    if amount is None:
        return None
    if name == "usd":
        return budgets.usd_text(amount).replace(",", "")
    return amount // MICRO if name == "time" else amount


def _costs(run_id: str, found: Costs) -> Record:
    return {
        "run_id": run_id,
        "total": _amounts(found.total),
        "lost": _amounts(found.lost),
        "by_turn": {str(turn): _amounts(of) for turn, of in found.by_turn.items()},
        "by_call": {call: _amounts(of) for call, of in found.by_call.items()},
        "by_run": {run: _amounts(of) for run, of in found.by_run.items()},
        "by_agent": {agent: _effort(of) for agent, of in found.by_agent.items()},
        "by_phase": {phase: _effort(of) for phase, of in found.by_phase.items()},
        "segments": [_segment(segment) for segment in found.segments],
        "effort": _effort(found.effort),
    }


def _segment(segment: Segment) -> Record:
    return {
        "number": segment.number,
        "agent": segment.agent,
        "phases": list(segment.phases),
        "began_at": moment(segment.began_at),
        "ended_at": moment(segment.ended_at),
        "began_with": None if segment.began_with is None else str(segment.began_with),
        "ended_with": None if segment.ended_with is None else str(segment.ended_with),
        "first_version": segment.first_version,
        "last_version": segment.last_version,
        "handoff_id": segment.handoff_id,
        "trigger": segment.trigger,
        **_effort(segment.effort),
    }


def _effort(effort: Effort) -> Record:
    return {
        **_amounts(effort.amounts),
        "model_calls": effort.model_calls,
        "tools": effort.tools,
        "effects": effort.effects,
        "checkpoints": effort.checkpoints,
        "recoveries": effort.recoveries,
        "wall_seconds": effort.wall / MICRO,
        "busy_seconds": effort.busy / MICRO,
        "recovering_seconds": effort.recovering / MICRO,
        "handing_over_seconds": effort.handing_over / MICRO,
    }


def _amounts(amounts: Amounts) -> Record:
    return {
        "usd": _shown("usd", amounts.usd_micros),
        "input_tokens": amounts.input_tokens,
        "output_tokens": amounts.output_tokens,
        "turns": amounts.turns,
    }


def _draw_budgets(record: Record) -> None:
    if not record["budgets"]:
        say(
            f"run {record['run_id']} has no budget; "
            f"`holdfast runs budget {record['run_id']} --set 5usd` gives it one"
        )
    for account in record["budgets"]:
        of = "" if account["run_id"] == record["run_id"] else ", which this one draws on as well"
        write(f"budget of run {printable(account['run_id'])}{of}")
        rows = [limit | {"warned": "yes" if limit["warned"] else ""} for limit in account["limits"]]
        output.table(_COLUMNS, empty="")(rows)
    write(f"run {printable(record['run_id'])}: {record['status']}")


def _draw_costs(record: Record) -> None:
    named = {"turn": "by_turn", "call": "by_call", "run": "by_run"}
    rows = [{"per": "in all", "of": ""} | record["total"]]
    if record["lost"] != _amounts(budgets.NOTHING):
        rows.append({"per": "lost", "of": "nobody saw the end of it"} | record["lost"])
    for per, key in named.items():
        rows += [{"per": per, "of": of} | amounts for of, amounts in record[key].items()]
    output.table(_COSTS, empty="")(rows)
    write("")
    _draw_efforts(record)


def _draw_efforts(record: Record) -> None:
    rows: list[Record] = [
        segment
        | {
            "per": "segment",
            "of": f"{segment['number']} {segment['agent']}",
            "versions": _versions(segment["first_version"], segment["last_version"]),
        }
        for segment in record["segments"]
    ]
    for per, key in {"agent": "by_agent", "phase": "by_phase"}.items():
        efforts: dict[str, Record] = record[key]
        rows += [
            effort | {"per": per, "of": of or "(none told)", "versions": ""}
            for of, effort in efforts.items()
        ]
    output.table(_EFFORTS, empty="")([_timed(row) for row in rows])


def _versions(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _timed(row: Record) -> Record:
    """Times as people read them."""
    return {k: f"{v:.3f} s" if k.endswith("_seconds") else v for k, v in row.items()}
