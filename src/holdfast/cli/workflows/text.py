"""What a workflow's run has come to, for people and programs."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.agents.definitions.questions import APPROVAL
from holdfast.clock import from_datetime
from holdfast.kernel.runs import RunStatus
from holdfast.terminal import output
from holdfast.terminal.exits import Exit
from holdfast.terminal.output import say, write
from holdfast.terminal.records import Record, record_of
from holdfast.terminal.text import count, moment, printable, short, to_json
from holdfast.workflows.execution.outcome import Outcome, Waiting
from holdfast.workflows.execution.state import BlockResult

_COMMAND: Final = re.compile("`[^`]+`")
_CODES: Final = {
    RunStatus.COMPLETED: Exit.OK,
    RunStatus.FAILED: Exit.FAILED,
    RunStatus.CANCELLED: Exit.FAILED,
    RunStatus.BLOCKED: Exit.NEEDS_PERSON,
}


def code_of(record: Record) -> Exit:
    """The exit code that says what became of a run that was carried out here."""
    status = RunStatus(record["status"])
    if status in _CODES:
        return _CODES[status]
    if record["waiting"] or record["blocked"]:
        return Exit.NEEDS_PERSON
    return Exit.OK if record["lacks"] else Exit.TIMED_OUT


def record_of_outcome(outcome: Outcome) -> Record:
    """An outcome as plain data; the first four keys are what most programs need."""
    return {
        "run_id": outcome.run_id,
        "status": outcome.status,
        "waiting": [_waiting(each) for each in outcome.waiting],
        "outputs": outcome.outputs,
        "error": outcome.error,
        "workflow": outcome.workflow,
        "blocks": {name: _result(each) for name, each in outcome.blocks.items()},
        "waves": outcome.waves,
        "completed_waves": outcome.completed_waves,
        "lacks": outcome.lacks,
    }


def _waiting(each: Waiting) -> Record:
    at = None if each.deadline is None else moment(from_datetime(each.deadline))
    return msgspec.structs.asdict(each) | {"deadline": at}


def _result(each: BlockResult) -> Record:
    record = record_of(each)
    rounds = None if each.rounds is None else [_result(one) for one in each.rounds]
    return record | {"rounds": rounds}


def draw(record: Record) -> None:
    """Tell what became of a run."""
    write(f"run {printable(record['run_id'])}: {record['status']}")
    if record["outputs"]:
        write("")
        output.fields(record["outputs"], whole=True)
    if record["status"] == RunStatus.FAILED:
        for line in _failures(record):
            write(line)
    for question in record["waiting"]:
        write("")
        draw_question(question)


def _failures(record: Record) -> Iterator[str]:
    """Each block that failed, with its error; what the run says if it was none of them."""
    failed = {name: r for name, r in record["blocks"].items() if r["status"] == "failed"}
    for name, result in failed.items():
        yield f"  {printable(name)}: {printable(result['error'])}"
        for key, one in _rounds(result):
            if one["status"] == "failed":
                yield f"    {printable(f'{name}[{key}]')}: {printable(one['error'])}"
    if not failed:
        yield f"  {printable(record['error'])}"


def _rounds(result: Record) -> Iterator[tuple[str, Record]]:
    rounds: list[Record] = result["rounds"] or []
    keys: list[Any] = result["keys"] or list(range(len(rounds)))
    for key, one in zip(keys, rounds, strict=True):
        yield str(key), one


def draw_question(question: Record) -> None:
    """A question, and what can be answered."""
    write(f"{printable(question['block'])} asks: {printable(question['prompt'])}")
    if question["problem"]:
        write(f"  again, because {printable(question['problem'])}")
    if question["kind"] == APPROVAL:
        write("  answer: yes or no")
    elif question["choices"] is not None:
        write(f"  choices: {', '.join(_choice(each) for each in question['choices'])}")
    elif question["schema"]:
        write(f"  answer: JSON that fits {to_json(question['schema'])}")
    if question["deadline"]:
        write(f"  until {question['deadline']}")


def _choice(value: Any) -> str:
    return printable(value) if isinstance(value, str) else to_json(value)


def resume_command(run_id: str, asking: Sequence[Record], words: Sequence[str]) -> str:
    """The command that goes on with a run, with a place for each answer it needs."""
    answers = [word for each in asking for word in ("--answer", f"{each['block']}=VALUE")]
    return shlex.join(["holdfast", "workflows", "resume", run_id, *answers, *words])


def _standing(blocked: Record) -> str:
    """Why a run stands, and where; what its note advises is not repeated."""
    at = f" at {', '.join(blocked['blocks'])}" if blocked["blocks"] else ""
    said = f"run {blocked['run_id']} stands{at} until somebody acts"
    note = short(blocked["note"], limit=300)
    named = _COMMAND.findall(blocked["advice"])
    if note and named and all(command in note for command in named):
        return f"{said}: {note}"
    return f"{said}: {note}; {blocked['advice']}" if note else f"{said}; {blocked['advice']}"


def say_next(record: Record, words: Sequence[str]) -> None:
    """What somebody can do about a run that has not ended."""
    run_id = record["run_id"]
    if record["waiting"]:
        asked = count(len(record["waiting"]), "question")
        say(f"{asked} to answer: `{resume_command(run_id, record['waiting'], words)}`")
    for each in record["blocked"]:
        say(_standing(each))
    if record["blocked"] and not record["waiting"]:
        say(f"then `{resume_command(run_id, [], words)}` goes on")
    if record["lacks"]:
        missing = ", ".join(record["lacks"])
        say(f"here is no {missing}: it is left to a worker that has it, or name one with --app")
    elif code_of(record) is Exit.TIMED_OUT:
        say(f"it has not ended: `{resume_command(run_id, [], words)}` goes on with it")
