"""What was said in a run, as Markdown: messages with their calls, or the blocks of a workflow.

Long texts are cut, and of a long conversation the end is kept; both are said where it happens.
Damaged or erased parts are reported in their place.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

import msgspec

from holdfast.agents.definitions import messages
from holdfast.agents.definitions.messages import Message, Reasoning, Text, ToolCall, ToolResult
from holdfast.app import Holdfast
from holdfast.edges.mcp.resources import addresses
from holdfast.edges.mcp.resources.lines import in_a_line
from holdfast.errors import BodyErased, HoldfastError, IntegrityError
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import WaitStatus
from holdfast.workflows.execution.kit import AGENT as WORKFLOW
from holdfast.workflows.execution.question_names import AskedQuestion, questions_of
from holdfast.workflows.execution.state import BlockResult

MOST_CHARACTERS: Final = 200_000
"""A transcript is not longer: its oldest pieces are left out."""
MOST_IN_ONE: Final = 8_000
"""A longer text in it is cut."""


class Piece(NamedTuple):
    """A part of a transcript, and what it is about: a block, or what names a question."""

    text: str
    about: str = ""


Section = Callable[[Holdfast, RunRow], Awaitable[list[Piece]]]


async def page_of(hf: Holdfast, run: RunRow) -> str:
    """Return what was said in a run, as far as it is stored."""
    what = in_a_line(" ".join(filter(None, (run.agent, run.subject))) or "no agent")
    begin = [Piece(f"# Transcript of run {in_a_line(run.run_id)}"), Piece(f"{what} · {run.status}")]
    begin += await _whole_or_reason(_input, hf, run)
    said = await _whole_or_reason(_blocks if run.agent == WORKFLOW else _messages, hf, run)
    said = _joined(said, await _whole_or_reason(_questions, hf, run))
    ends = await _whole_or_reason(_end, hf, run)
    return "\n\n".join(each.text for each in (*begin, *_newest(said), *ends)) + "\n"


def _joined(pieces: list[Piece], questions: list[Piece]) -> list[Piece]:
    """Each question after the block that asked it, or that what asked it is below."""
    left = list(questions)
    joined: list[Piece] = []
    for piece in pieces:
        joined.append(piece)
        if piece.about:
            here = re.compile(re.escape(piece.about) + r"(?![\w-])")
            joined += [each for each in left if here.match(each.about)]
            left = [each for each in left if not here.match(each.about)]
    return joined + left


async def _whole_or_reason(section: Section, hf: Holdfast, run: RunRow) -> list[Piece]:
    try:
        return await section(hf, run)
    except BodyErased:
        why = "erased."
    except IntegrityError:
        why = "damaged, so not shown. `holdfast audit verify` tells more."
    except HoldfastError as error:
        why = f"cannot be read. {in_a_line(str(error))}"
    return [Piece(f"*{_SECTION_NAMES[section]}: {why}*")]


async def _input(hf: Holdfast, run: RunRow) -> list[Piece]:
    given = await hf.runs.input(run.run_id)
    if run.agent == WORKFLOW and isinstance(given, dict):
        start: Any = cast("dict[str, Any]", given).get("start")
        given = cast("dict[str, Any]", start).get("inputs") if isinstance(start, dict) else None
    return [] if given in (None, {}) else [Piece(f"## Input\n\n{_data(given)}")]


async def _messages(hf: Holdfast, run: RunRow) -> list[Piece]:
    """The logs of the state whose items are messages, whatever they are called."""
    state = await hf.checkpoints.load(run.run_id)
    if await hf.journal.erased(run.run_id) and not state.parts:
        raise BodyErased("its state was erased")
    pieces: list[Piece] = []
    for name, part in state.parts.items():
        talk = _as_messages(part)
        if talk:
            pieces.append(Piece(f"## {in_a_line(name)}: {len(talk)} messages"))
            pieces += [Piece(_message(number, each)) for number, each in enumerate(talk, 1)]
    return pieces


def _as_messages(part: Any) -> list[Message]:
    if not isinstance(part, list) or not part:
        return []
    try:
        return msgspec.convert(part, list[messages.Message])
    except msgspec.ValidationError:
        return []


def _message(number: int, message: Message) -> str:
    when = message.created_at.isoformat(timespec="seconds")
    pieces = [f"### {number} · {message.role} · {when}", *map(_block, message.blocks)]
    return "\n\n".join(pieces)


def _block(block: messages.Block) -> str:
    match block:
        case Text(text):
            return _cut(text)
        case Reasoning(text):
            return f"(thought)\n\n{_cut(text)}"
        case ToolCall(id, name, args):
            return f"**calls {in_a_line(name)}** ({in_a_line(id)})\n\n{_data(args)}"
        case ToolResult(call_id, content, is_error):
            what = "failed" if is_error else "gave"
            return f"**{what}** ({in_a_line(call_id)})\n\n{_fenced(_cut(content))}"


async def _blocks(hf: Holdfast, run: RunRow) -> list[Piece]:
    """The blocks of a workflow in the order of its definition, those that have ended."""
    outcome = await hf.workflows.status(run.run_id)
    defined = {each.id: each for each in (await hf.workflows.definition(run.run_id)).blocks}
    return [
        Piece(_ended(name, defined[name].type, defined[name].inputs, result), name)
        for name, result in outcome.blocks.items()
    ]


def _ended(name: str, kind: str, inputs: Any, result: BlockResult) -> str:
    pieces = [f"## Block {in_a_line(name)} · {kind} · {result.status}"]
    if inputs:
        pieces += ["Inputs, as they are defined:", _data(inputs)]
    if result.outputs is not None:
        pieces += ["Outputs:", _data(result.outputs)]
    if result.is_pruned:
        pieces.append("*Its outputs were pruned.*")
    if result.error:
        pieces.append(f"Failed: {_cut(result.error)}")
    if result.rounds:
        pieces.append(f"{len(result.rounds)} rounds.")
    return "\n\n".join(pieces)


async def _questions(hf: Holdfast, run: RunRow) -> list[Piece]:
    """What people were asked, in the run and below it, and what they said."""
    found = await questions_of(hf.runs, hf.waits, run.run_id)
    found.sort(key=lambda each: (each.wait.opened_at, each.wait.wait_id))
    return [Piece(await _question(hf, each), each.name) for each in found]


async def _question(hf: Holdfast, question: AskedQuestion) -> str:
    title = f"## Question {in_a_line(question.name)}"
    try:
        asked = await hf.approvals.get(question.wait.wait_id)
    except BodyErased:
        return f"{title}\n\n*Erased; it is {question.wait.status}.*"
    except IntegrityError:
        return f"{title}\n\n*Damaged, so not shown; it is {question.wait.status}.*"
    if asked.status is not WaitStatus.RESOLVED:
        return f"{title}\n\n{_cut(asked.prompt)}\n\n*{asked.status}*"
    by = f"Answer, by {in_a_line(asked.answered_by)}:"
    return f"{title}\n\n{_cut(asked.prompt)}\n\n{by}\n\n{_data(asked.answer)}"


async def _end(hf: Holdfast, run: RunRow) -> list[Piece]:
    if run.status in (RunStatus.FAILED, RunStatus.BLOCKED):
        return [Piece(f"## {run.status}\n\n{_cut(await hf.runs.note(run.run_id))}")]
    if run.status is not RunStatus.COMPLETED:
        return []
    result = _data(await hf.runs.result(run.run_id))
    whole = f"The whole of it: {addresses.result(run.run_id)}"
    return [Piece(f"## Result\n\n{result}\n\n{whole}")]


_SECTION_NAMES: Final[dict[Section, str]] = {
    _input: "Input",
    _messages: "Messages",
    _blocks: "Blocks",
    _questions: "Questions",
    _end: "Result",
}


def _newest(pieces: list[Piece]) -> list[Piece]:
    """The last pieces that there is room for, and how many are left out."""
    room, kept = MOST_CHARACTERS, 0
    for piece in reversed(pieces):
        room -= len(piece.text)
        if room < 0 and kept:
            break
        kept += 1
    left_out = len(pieces) - kept
    if not left_out:
        return pieces
    return [Piece(f"*{left_out} earlier pieces are left out.*"), *pieces[left_out:]]


def _data(value: Any) -> str:
    plain = value if isinstance(value, str) else as_json(value)
    return _fenced(_cut(plain), "" if isinstance(value, str) else "json")


def as_json(value: Any) -> str:
    """A value as JSON for reading; what JSON has no form for, in words."""
    return json.dumps(
        msgspec.json.decode(msgspec.json.encode(value, enc_hook=str)), ensure_ascii=False, indent=1
    )


def _cut(text: str) -> str:
    left = len(text) - MOST_IN_ONE
    return text if left <= 0 else f"{text[:MOST_IN_ONE]}… ({left} characters more)"


def _fenced(text: str, language: str = "") -> str:
    """A text between fences that are not in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
