"""Answers to what blocks ask: from words, from a file, or from whoever sits at the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from holdfast.agents.definitions.questions import APPROVAL, check_answer
from holdfast.errors import AnswerRefused
from holdfast.sync.app import Holdfast
from holdfast.terminal import inputs
from holdfast.terminal.output import say
from holdfast.terminal.text import printable, to_json
from holdfast.workflows.execution.outcome import Waiting

_VERDICTS: Final = ["yes", "no"]


def answers_of(hf: Holdfast, run_id: str, words: Sequence[str], file: str | None) -> dict[str, Any]:
    """Answers by the paths of the blocks that ask; those in a file are JSON as they are."""
    answers = {} if file is None else inputs.object_of(file, what="answers by blocks")
    open_now = [each.block for each in hf.workflows.status(run_id).waiting]
    for word in words:
        path, text = _split(word, open_now)
        if path in answers:
            raise click.UsageError(f"{path} is answered twice")
        answers[path] = _value(hf, run_id, path, text)
    return answers


def _split(word: str, known: Iterable[str]) -> tuple[str, str]:
    """BLOCK=VALUE; the key of a round may have a = too, so the longest path that asks counts."""
    fitting = [path for path in known if word.startswith(f"{path}=")]
    if fitting:
        path = max(fitting, key=len)
        return path, word[len(path) + 1 :]
    path, sign, text = word.partition("=")
    if not (path and sign):
        raise click.UsageError(f"{word!r} is not BLOCK=VALUE")
    return path, text


def _value(hf: Holdfast, run_id: str, path: str, text: str) -> Any:
    asked = hf.workflows.asked(run_id, path)
    if asked.kind == APPROVAL:
        return inputs.value_of(text)
    return inputs.answer_of(text, schema=asked.schema, choices=asked.choices)


def ask_all(questions: Sequence[Waiting]) -> dict[str, Any]:
    """Ask whoever sits at the terminal, question by question."""
    return {question.block: _ask(question) for question in questions}


def _ask(question: Waiting) -> Any:
    choices = _VERDICTS if question.kind == APPROVAL else question.choices
    say(f"{question.block} asks: {question.prompt}")
    for number, choice in enumerate(choices or (), start=1):
        say(f"  {number}) {_text(choice)}")
    if choices is None and question.schema:
        say(f"  (JSON that fits {to_json(question.schema)})")
    while True:
        label = "Number or answer" if choices else "Answer"
        text = click.prompt(label, default="", show_default=False, err=True)
        try:
            value = _picked(text, choices, question.schema)
            check_answer(value, schema=question.schema, choices=choices)
            return value
        except (AnswerRefused, click.UsageError) as error:
            say(str(error))


def _picked(text: str, choices: "list[Any] | None", schema: Any) -> Any:
    """What was typed: a choice as it is written, or by its number."""
    for choice in choices or ():
        if text == _text(choice):
            return choice
    if choices and text.isdecimal() and 1 <= int(text) <= len(choices):
        return choices[int(text) - 1]
    return inputs.answer_of(text, schema=schema, choices=choices)


def _text(choice: Any) -> str:
    return printable(choice) if isinstance(choice, str) else to_json(choice)
