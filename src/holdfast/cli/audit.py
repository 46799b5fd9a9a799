"""`holdfast audit`: whether what is stored is what was written."""

from collections.abc import Iterable, Iterator

import click

from holdfast.errors import HoldfastError, IntegrityError, NotFoundError, SchemaMismatch
from holdfast.kernel.journal import Flaw, Problem
from holdfast.sync import Holdfast
from holdfast.terminal import output, progress
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record
from holdfast.terminal.text import count, printable


@click.group()
def command() -> None:
    """Check that what is stored is what was written."""


@command.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@common
def verify(options: Options, *, runs: tuple[str, ...]) -> Exit:
    """Verify the journals of the runs named, or of all runs: chains, bodies, and indexes."""
    with options.open_existing() as hf:
        total = len(runs) if runs else sum(hf.info().runs.values())
        wanted = progress.shown(
            runs or hf.journal.run_ids(), verb="verified", total=total, output=options.output
        )
        auditing = _Auditing(hf)
        records = auditing.verify(wanted)
        if options.output.format == "ids":
            records = (record for record in records if not record["ok"])
        options.output.many(records, ids="run_id", draw=output.lines(_lines))
    tell = write if options.output.is_for_people else say
    tell(auditing.summary())
    return auditing.judge()


class _Auditing:
    """One pass over runs. What keeps one from being checked does not keep the others."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._verified = 0
        self._damaged = 0
        self._problems = 0
        self._unchecked: HoldfastError | None = None

    def verify(self, run_ids: Iterable[str]) -> Iterator[Record]:
        for run_id in run_ids:
            try:
                problems = self._verify_one(run_id)
            except (NotFoundError, SchemaMismatch) as error:
                self._unchecked = self._unchecked or error
                continue
            yield {"run_id": run_id, "ok": not problems, "problems": problems}

    def _verify_one(self, run_id: str) -> list[Record]:
        try:
            problems = self._hf.journal.verify(run_id)
        except IntegrityError as error:
            problems = [Problem(run_id, 0, Flaw.SENSELESS, f"cannot be read: {error}")]
        self._verified += 1
        self._damaged += bool(problems)
        self._problems += len(problems)
        return [
            {"seq": problem.seq, "flaw": problem.flaw.value, "what": problem.what}
            for problem in problems
        ]

    def summary(self) -> str:
        verified = f"{count(self._verified, 'run')} verified"
        if self._damaged:
            problems = count(self._problems, "problem")
            return f"{verified}: {self._damaged:,} damaged, {problems}"
        return f"{verified}: whole" if self._verified else verified

    def judge(self) -> Exit:
        if self._damaged:
            return Exit.INTEGRITY
        if self._unchecked is not None:
            raise self._unchecked
        return Exit.OK


def _lines(record: Record) -> str:
    problems = [
        f"         entry {problem['seq']}: {printable(problem['what'])}"
        for problem in record["problems"]
    ]
    mark = "ok     " if record["ok"] else "DAMAGED"
    return "\n".join([f"{mark}  {printable(record['run_id'])}", *problems])
