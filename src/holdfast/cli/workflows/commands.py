"""`holdfast workflows`: carry out workflows, answer what they ask, and see how far they are."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec
import yaml

from holdfast import app
from holdfast.cli import workers
from holdfast.cli.runs import blocked
from holdfast.cli.workflows import check as workflow_check
from holdfast.cli.workflows import cleanup as workflow_cleanup
from holdfast.cli.workflows import graph as workflow_graph
from holdfast.cli.workflows.answers import answers_of, ask_all
from holdfast.cli.workflows.progress import duration, shown
from holdfast.cli.workflows.text import (
    code_of,
    draw,
    draw_question,
    record_of_outcome,
    resume_command,
    say_next,
)
from holdfast.cli.workflows.use import NO_RUNS, Use, asking_for, name_store, using
from holdfast.errors import RunEnded, UnsupportedValue, WorkflowInvalid
from holdfast.kernel import effects
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.sync import Holdfast
from holdfast.terminal import exits, inputs, output
from holdfast.terminal.exits import Exit
from holdfast.terminal.options import Count, Options, common
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count, printable, short
from holdfast.workflows.definitions import definition
from holdfast.workflows.definitions import inputs as workflow_inputs
from holdfast.workflows.definitions.definition import Input, Workflow
from holdfast.workflows.drawing.graph import states_of
from holdfast.workflows.execution.kit import Kit
from holdfast.workflows.execution.outcome import Outcome

_RUN_COLUMNS: Final = {
    "RUN": "run_id",
    "WORKFLOW": "subject",
    "STATUS": "status",
    "CREATED": "created_at",
    "BELOW": "parent_id",
    "WORKER": "worker",
}
_BLOCK_COLUMNS: Final = {
    "WAVE": "wave",
    "BLOCK": "block",
    "TYPE": "type",
    "STATE": "state",
    "TOOK": "took",
    "OUTPUTS": "outputs",
    "ERROR": "error",
}
_WAITING: Final = frozenset(each.name for each in Kit().types.values() if each.waits)
_OUTPUTS_WIDTH: Final = 60
_TREE_PAGE: Final = 1000
_GRACE_SECONDS: Final = 1.5
_HAND_BACK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.02
_TIMEOUT = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait at most so long."
)
_BY = click.option("--by", metavar="NAME", help="Who does so [default: your user name].")


@click.group()
def command() -> None:
    """Run workflows, answer what they ask, and see how far they are.

    \b
    holdfast workflows run release.yaml --input version=1.2
    holdfast workflows resume ID --answer approve=yes
    holdfast workflows show ID
    """


def _starting(run: Any) -> Any:
    """Give a command what it takes to start a workflow."""
    for option in reversed(
        (
            click.argument("file", metavar="FILE"),
            click.option(
                "--input", "words", multiple=True, metavar="NAME=VALUE", help="An input; repeat it."
            ),
            click.option(
                "--inputs", "inputs_file", metavar="FILE", help="Inputs as JSON; - is stdin."
            ),
            click.option("--run-id", metavar="ID", help="The run's id [default: a new one]."),
            using,
        )
    ):
        run = option(run)
    return run


@command.command("run")
@_starting
@_TIMEOUT
@click.option("--detach", is_flag=True, help="Only record it, for the workers; as `start` does.")
@common
def run_(
    options: Options,
    *,
    timeout: float | None,
    detach: bool,
    use: Use,
    **given: Any,
) -> Exit:
    """Carry out the workflow in FILE, until it has ended or asks somebody.

    Inputs are read as what the workflow says they are. With --run-id, doing it again goes on with
    the run that is there. Exit code 6: it asks something, or an operator must act.

    \b
    holdfast workflows run release.yaml --input version=1.2 --input count=3
    holdfast workflows run release.yaml --inputs inputs.json -o json
    holdfast workflows run release.yaml --app mytools:hf
    """
    begin = _starter(use, **given)
    with use.open(options, makes=True) as hf:
        name_store(hf, use)
        outcome = begin(hf)
        if detach:
            return _tell_started(hf, outcome, options, use)
        return _Going(hf, options, use, timeout).to_the_end(outcome.run_id)


@command.command()
@_starting
@common
def start(options: Options, *, use: Use, **given: Any) -> Exit:
    """Record a run of the workflow in FILE, and leave it to the workers.

    \b
    holdfast workflows start release.yaml --input version=1.2 --run-id release-1.2
    """
    begin = _starter(use, **given)
    with use.open(options, makes=True) as hf:
        name_store(hf, use)
        return _tell_started(hf, begin(hf), options, use)


@command.command()
@click.argument("run", metavar="ID")
@click.option(
    "--answer", "words", multiple=True, metavar="BLOCK=VALUE", help="An answer; repeat it."
)
@click.option("--answers", "answers_file", metavar="FILE", help="Answers as JSON; - is stdin.")
@click.option("-i", "--interactive", is_flag=True, help="Ask what is asked, here, one by one.")
@_BY
@using
@_TIMEOUT
@common
def resume(
    options: Options,
    *,
    run: str,
    words: tuple[str, ...],
    answers_file: str | None,
    interactive: bool,
    by: str | None,
    use: Use,
    timeout: float | None,
) -> Exit:
    """Answer what a workflow asks, and go on until it has ended or asks again.

    VALUE is the text itself if the question takes it, else JSON; an empty one is an answer too.
    Without an answer it goes on where it was left, as after a crash.

    \b
    holdfast workflows resume ID --answer approve=yes --answer deploy/count=3
    holdfast workflows resume ID --answers answers.json
    holdfast workflows resume ID --interactive
    """
    with use.open(options, makes=False) as hf, asking_for(run):
        name_store(hf, use)
        answers = answers_of(hf, run, words, answers_file)
        going = _Going(hf, options, use, timeout, by or inputs.user_name())
        try:
            if not answers and not interactive:
                interactive = _offer(hf.workflows.status(run), options)
            return going.to_the_end(run, answers, interactive=interactive)
        except click.Abort:
            return going.tell_unanswered(run)


@command.command("list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--status", type=click.Choice([s.value for s in RunStatus]), help="Only runs in this state."
)
@click.option("--nested", is_flag=True, help="Also those that other workflows began.")
@click.option("--limit", type=Count, default=100, show_default=True, help="At most so many.")
@common
def list_(
    options: Options, *, workflow: str | None, status: str | None, nested: bool, limit: int
) -> None:
    """List runs of workflows, newest first."""
    with options.open_existing(advice=NO_RUNS) as hf:
        found = hf.workflows.list(workflow, status=status, nested=nested, limit=limit)
    table = output.table(_RUN_COLUMNS, empty="no runs of workflows")
    options.output.many(map(record_of, found), ids="run_id", draw=table)
    if len(found) == limit and options.output.is_for_people:
        say(f"these are the newest {limit}; there may be more: --limit")


@command.command()
@click.argument("run", metavar="ID")
@click.option("--definition", "wants_definition", is_flag=True, help="Only what it was started as.")
@common
def show(options: Options, *, run: str, wants_definition: bool) -> None:
    """Show a run of a workflow: its blocks, what it asks, and what it gave.

    --definition shows the workflow as it was when the run was started, in YAML.
    """
    with options.open_existing(advice=NO_RUNS) as hf, asking_for(run):
        workflow = hf.workflows.definition(run)
        if wants_definition:
            plain = definition.plain(workflow)
            options.output.one(plain, ids="name", draw=_draw_yaml)
            return
        record = _everything(hf, run, workflow)
    options.output.one(record, ids="run_id", draw=_draw_everything)
    if options.output.is_for_people:
        say_next(record, [])


@command.command()
@click.argument("run", metavar="ID")
@_BY
@click.option("--note", default="", metavar="TEXT", help="Why, for the record.")
@common
def cancel(options: Options, *, run: str, by: str | None, note: str) -> None:
    """End a workflow now, and all that it waits for."""
    with options.open_existing(advice=NO_RUNS) as hf, asking_for(run):
        try:
            hf.workflows.cancel(run, by=by or inputs.user_name(), note=note)
        except RunEnded:
            status = hf.runs.get(run).status
            raise RunEnded(f"run {run} is {status} already; there is nothing to cancel") from None
        record = _record(hf, hf.workflows.status(run))
        left = _unsettled(hf, run)
    options.output.one(record, ids="run_id", draw=draw)
    _say_unsettled(left)


def _starter(
    use: Use, *, file: str, words: Sequence[str], inputs_file: str | None, run_id: str | None
) -> Callable[[Holdfast], Outcome]:
    """What starts the workflow of a file; mistakes are shown before there is a store."""
    workflow = use.read(file)
    given = _given(workflow, words, inputs_file)
    return lambda hf: hf.workflows.start(workflow, given, run_id=run_id)


def _given(workflow: Workflow, words: Sequence[str], file: str | None) -> dict[str, Any]:
    """Inputs from words and a file; raises WorkflowInvalid with all that is wrong with them."""
    given = {} if file is None else inputs.object_of(file, what="inputs")
    wrong: dict[str, str] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise click.UsageError(f"{word!r} is not NAME=VALUE")
        if name in given or name in wrong:
            raise click.UsageError(f"input {name} is given twice")
        kind = workflow.inputs[name].type if name in workflow.inputs else "str"
        try:
            given[name] = workflow_inputs.from_text(text, kind, what=f"input {name!r}")
        except UnsupportedValue as error:
            wrong[name] = str(error)
    problems = list(wrong.values())
    specs = workflow.inputs | {name: Input(type="any", required=False) for name in wrong}
    try:
        workflow_inputs.complete(msgspec.structs.replace(workflow, inputs=specs), given)
    except WorkflowInvalid as error:
        problems += map(str, error.problems)
    if problems:
        raise WorkflowInvalid("; ".join(problems), problems=tuple(problems))
    return given


def _tell_started(hf: Holdfast, outcome: Outcome, options: Options, use: Use) -> Exit:
    options.output.one(_record(hf, outcome), ids="run_id", draw=draw)
    if not any(map(workers.is_alive, hf.leases.workers())):
        go_on = resume_command(outcome.run_id, [], use.words)
        say(f"no worker is alive: start one with `holdfast worker MODULE:NAME`, or `{go_on}`")
    return Exit.OK


def _offer(outcome: Outcome, options: Options) -> bool:
    """Whether somebody at the terminal wants to answer what is open."""
    is_there = sys.stdin.isatty() and sys.stderr.isatty() and options.output.is_for_people
    if not (is_there and outcome.waiting):
        return False
    asked = count(len(outcome.waiting), "question")
    return click.confirm(f"{asked} to answer. Answer here?", default=True, err=True)


@dataclass(frozen=True)
class _Going:
    """Carries out a run, and tells what becomes of it."""

    hf: Holdfast
    options: Options
    use: Use
    timeout: float | None
    by: str = ""

    def to_the_end(
        self, run_id: str, answers: Mapping[str, Any] | None = None, *, interactive: bool = False
    ) -> Exit:
        """Go on until it has ended or asks somebody; who is there is asked again and again."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        outcome = self.hf.workflows.status(run_id)
        if self.options.output.is_for_people:
            say(f"run {run_id} of workflow {outcome.workflow}")
        while True:
            if interactive and outcome.waiting and not answers:
                answers = ask_all(outcome.waiting)
            try:
                outcome = self._advance(run_id, outcome, answers or {})
            except KeyboardInterrupt:
                return self._tell_interrupted(run_id)
            if not (interactive and outcome.waiting):
                return self._tell(outcome)
            answers = None

    def _advance(self, run_id: str, before: Outcome, answers: Mapping[str, Any]) -> Outcome:
        hf = self.hf
        with shown(self.options.output, before, lambda: _worked_elsewhere(hf, run_id)) as display:
            observe = None if display is None else display.see
            outcome = hf.workflows.resume(
                run_id, answers, by=self.by, timeout=self.timeout, observe=observe
            )
            if display is not None:
                display.follow(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> Exit:
        record = _record(self.hf, outcome)
        self.options.output.one(record, ids="run_id", draw=draw)
        if self.options.output.is_for_people:
            say_next(record, self.use.words)
        return code_of(record)

    def tell_unanswered(self, run_id: str) -> Exit:
        """Somebody left a question open: whatever was typed since the last wave was not given."""
        say("")
        if self.options.output.is_json:
            record = _record(self.hf, self.hf.workflows.status(run_id))
            self.options.output.one(record, ids="run_id", draw=draw)
        go_on = resume_command(run_id, [], ["--interactive", *self.use.words])
        say(f"these questions are still to be answered: `{go_on}` asks them again")
        return Exit.INTERRUPTED

    def _tell_interrupted(self, run_id: str) -> Exit:
        exits.end_after(_HAND_BACK_SECONDS)
        if not _is_let_go(self.hf, run_id, within=_GRACE_SECONDS):
            _break_off(self.hf)
            _is_let_go(self.hf, run_id, within=_HAND_BACK_SECONDS / 2)
        if self.options.output.is_json:
            record = _record(self.hf, self.hf.workflows.status(run_id))
            self.options.output.one(record, ids="run_id", draw=draw)
        _say_unsettled(_unsettled(self.hf, run_id))
        go_on = resume_command(run_id, [], self.use.words)
        say(f"interrupted; run {run_id} is handed back: `{go_on}` goes on with it")
        return Exit.INTERRUPTED


def _worked_elsewhere(hf: Holdfast, run_id: str) -> tuple[str, Outcome | None]:
    run = hf.runs.get(run_id)
    if run.status is RunStatus.RUNNING and run.worker != hf.worker:
        return run.worker, hf.workflows.status(run_id)
    return "", None


def _is_let_go(hf: Holdfast, run_id: str, *, within: float) -> bool:
    """Whether this process comes to hold no run of a tree in time."""
    deadline = time.monotonic() + within
    while any(
        run.status is RunStatus.RUNNING and run.worker == hf.worker for run in _tree(hf, run_id)
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _break_off(hf: Holdfast) -> None:
    hf._call(app.break_off, hf._inner)  # pyright: ignore[reportPrivateUsage] - of this package


def _tree(hf: Holdfast, run_id: str) -> Iterator[RunRow]:
    """A run and all below it."""
    ahead = [hf.runs.get(run_id)]
    while ahead:
        run = ahead.pop()
        yield run
        ahead += hf.runs.list(parent_id=run.run_id, limit=_TREE_PAGE)


def _unsettled(hf: Holdfast, run_id: str) -> dict[str, int]:
    """How many effects of each run of a tree may have happened."""
    found: dict[str, int] = {}
    for run in _tree(hf, run_id):
        open_ones = [e for e in hf.effects.of_run(run.run_id) if e.status not in effects.SETTLED]
        if open_ones:
            found[run.run_id] = len(open_ones)
    return found


def _say_unsettled(left: Mapping[str, int]) -> None:
    for run_id, number in left.items():
        say(
            f"{count(number, 'effect')} may have happened all the same: "
            f"`holdfast effects list --run {run_id}`"
        )


def _record(hf: Holdfast, outcome: Outcome) -> Record:
    """An outcome, with what only an operator can mend."""
    return record_of_outcome(outcome) | {"blocked": _blocked(hf, outcome)}


def _blocked(hf: Holdfast, outcome: Outcome) -> list[Record]:
    if outcome.status not in (RunStatus.BLOCKED, RunStatus.WAITING):
        return []
    return [
        _why_blocked(hf, run, outcome)
        for run in _tree(hf, outcome.run_id)
        if run.status is RunStatus.BLOCKED
    ]


def _why_blocked(hf: Holdfast, run: RunRow, outcome: Outcome) -> Record:
    ids = [
        str(effect.effect_id)
        for effect in hf.effects.of_run(run.run_id)
        if effect.status not in effects.SETTLED
    ]
    is_own = run.run_id == outcome.run_id
    open_blocks = ([n for n in wave if n not in outcome.blocks] for wave in outcome.waves)
    open_now = next((names for names in open_blocks if names), list[str]())
    return {
        "run_id": run.run_id,
        "reason": run.blocked_reason,
        "blocks": open_now if is_own else [],
        "note": outcome.error if is_own else "",
        "advice": blocked.advice(run.run_id, run.blocked_reason, ids),
    }


def _everything(hf: Holdfast, run_id: str, workflow: Workflow) -> Record:
    run = hf.runs.get(run_id)
    row = record_of(run)
    outcome = hf.workflows.status(run_id)
    return _record(hf, outcome) | {
        "states": states_of(outcome),
        "version": workflow.version,
        "inputs": hf.runs.input(run_id)["start"].get("inputs", {}),
        "types": {block.id: block.type for block in workflow.blocks},
        "created_at": row["created_at"],
        "worker": run.worker,
        "parent_id": run.parent_id,
    }


def _draw_everything(record: Record) -> None:
    columns = ("run_id", "workflow", "version", "status", "created_at", "worker", "parent_id")
    output.fields({name: record[name] for name in (*columns, "inputs", "outputs", "error")})
    write("")
    output.table(_BLOCK_COLUMNS, empty="it has no blocks")(_block_rows(record))
    for question in record["waiting"]:
        write("")
        draw_question(question)


def _block_rows(record: Record) -> Iterator[Record]:
    asking = [question["block"] for question in record["waiting"]]
    for number, names in enumerate(record["waves"], start=1):
        for name in names:
            result = record["blocks"].get(name)
            asks = any(path == name or path.startswith((f"{name}/", f"{name}[")) for path in asking)
            yield {
                "wave": number,
                "block": name,
                "type": record["types"][name],
                "state": "asks" if asks else record["states"][name],
                "took": _took(result, record["types"][name]),
                "outputs": short(_shown_outputs(result), limit=_OUTPUTS_WIDTH),
                "error": short(result["error"]) if result else "",
            }


def _took(result: Record | None, kind: str) -> str:
    """How long a block took; of one that waited only its last moments are known, and not shown."""
    if result is None or result["status"] == "skipped":
        return ""
    text = duration(result["seconds"])
    return "" if kind in _WAITING and text == duration(0) else text


def _shown_outputs(result: Record | None) -> Any:
    if result is None:
        return ""
    if result["rounds"] is not None:
        done = sum(each["status"] == "completed" for each in result["rounds"])
        return f"{done}/{len(result['rounds'])} rounds completed"
    return "" if result["outputs"] is None else result["outputs"]


def _draw_yaml(plain: Record) -> None:
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    for line in text.splitlines():
        write(printable(line))


for _more in (
    workflow_check.validate,
    workflow_check.schema,
    workflow_graph.graph,
    workflow_cleanup.cleanup,
):
    command.add_command(_more)
